"""Filter, order, groups and pages of the list of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.store.run_summary import run_entry
from sentinel.web.home.listed_settings import describe_settings
from sentinel.web.home.run_list import ListAge, RunQuery, query_runs

NOW = 1_700_000_000.0


def entry(run, *, is_live=False, **fields):
    summary = {
        "run": run,
        "state": "finished",
        "health": "ended_well",
        "last_written": NOW - 60.0,
    } | fields
    made = run_entry(run, Path(run), (0, 0), json.dumps(summary).encode())
    made.is_live = is_live
    return made


ENTRIES = [
    entry("a-sft", step=5, project="math", tags=["long"], host="gpu-1", last_written=NOW - 300),
    entry("b-grpo", step=50, project="code", tags=["long", "seed 1"], health="ended_badly"),
    entry(
        "c-grpo", step=500, state="running", is_live=True, health="healthy", last_written=NOW - 1
    ),
    entry("d-grpo", state="running", project="math", health="warning", model="Qwen3-8B"),
]


def runs_of(**query):
    return [run["run"] for run in query_runs(ENTRIES, RunQuery(**query), NOW)["runs"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "abcd"),
        ("grpo", "bcd"),
        ("GRPO math", "d"),
        ("tag:seed", "b"),
        ("state:unfinished", "d"),
        ("state:running", "c"),
        ("project:math health:ended_well", "a"),
        ("run:grpo qwen3", "d"),
        ("nothing", ""),
        ("unknown:key", ""),
    ],
)
def test_every_word_of_a_filter_has_to_match(text, expected):
    assert "".join(run[0] for run in runs_of(filter=text, sort="run")) == expected


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("run", "abcd"),
        ("-run", "dcba"),
        ("-step", "cbad"),
        ("-last_written", "cbda"),
        ("-health", "bdca"),
        ("host", "bcda"),
        ("state", "abcd"),
    ],
)
def test_runs_are_in_the_order_asked_for(sort, expected):
    assert "".join(run[0] for run in runs_of(sort=sort)) == expected


def test_groups_are_in_the_order_of_their_names_and_runs_without_one_last():
    answer = query_runs(ENTRIES, RunQuery(group="project", sort="run"), NOW)

    assert answer["groups"] == [
        {"name": "code", "count": 1},
        {"name": "math", "count": 2},
        {"name": "", "count": 1},
    ]
    assert [(run["group"], run["run"][0]) for run in answer["runs"]] == [
        ("code", "b"),
        ("math", "a"),
        ("math", "d"),
        ("", "c"),
    ]


def test_a_run_is_in_the_group_of_each_of_its_tags():
    answer = query_runs(ENTRIES, RunQuery(group="tag", sort="run"), NOW)

    assert (answer["matched"], answer["rows"]) == (4, 5)
    assert [(run["group"], run["run"][0]) for run in answer["runs"]][:3] == [
        ("long", "a"),
        ("long", "b"),
        ("seed 1", "b"),
    ]


def test_a_page_is_a_part_of_all_rows():
    pages = [runs_of(sort="run", offset=offset, limit=3) for offset in (0, 3, 6)]

    assert pages == [["a-sft", "b-grpo", "c-grpo"], ["d-grpo"], []]


def test_a_run_that_should_be_active_and_has_no_agent_is_unfinished():
    answer = query_runs(ENTRIES, RunQuery(sort="run"), NOW)

    assert answer["states"] == {"finished": 2, "running": 1, "unfinished": 1}
    assert [run["is_live"] for run in answer["runs"]] == [False, False, True, False]
    assert [run["age"] for run in answer["runs"]] == [300.0, 60.0, 1.0, 60.0]


def test_the_key_of_an_age_in_the_future_is_zero():
    """Of a node whose clock is ahead."""
    (run,) = query_runs([entry("a", last_written=NOW + 60)], RunQuery(), NOW)["runs"]

    assert run["age"] == 0.0


def test_a_run_that_is_being_read_has_no_age():
    """Its time is that of the file, which a copy of the home directory changes."""
    (run,) = query_runs([entry("a", state="reading")], RunQuery(), NOW)["runs"]

    assert (run["state"], run["age"]) == ("reading", None)


def test_a_list_is_unanswered_from_the_first_request_on():
    """A pause without requests is none in which the folder did not answer."""
    now = 0.0
    age = ListAge(lambda: now)
    age.note_read()
    now = 600.0
    assert age.fields() == {"read_seconds_ago": 600.0, "unanswered_seconds": 0.0}
    age.ask()
    now = 620.0
    age.ask()
    assert age.fields() == {"read_seconds_ago": 620.0, "unanswered_seconds": 20.0}
    age.note_read(interval=50.0)
    age.ask()
    now = 660.0
    assert age.fields()["unanswered_seconds"] == 0.0
    now = 700.0
    assert age.fields()["unanswered_seconds"] == 30.0


SETTINGS = {
    "a-sft": {"lr": 1e-5, "optimizer": "adamw"},
    "b-grpo": {"lr": 9e-6, "optimizer": "sgd"},
    "c-grpo": {"lr": 1e-3, "is_lora": True},
}


def with_settings(**query):
    return query_runs(ENTRIES, RunQuery(**query), NOW, lambda each: SETTINGS.get(each.run, {}))


@pytest.mark.parametrize(
    ("sort", "expected"),
    [("setting:lr", "bacd"), ("-setting:lr", "cabd"), ("setting:optimizer", "abcd")],
)
def test_runs_are_sorted_by_a_setting_with_those_without_it_last(sort, expected):
    """Numbers as numbers: as texts, 1e-05 is before 9e-06."""
    rows = with_settings(sort=sort, columns=("lr", "is_lora"))["runs"]

    assert "".join(run["run"][0] for run in rows) == expected
    assert {run["run"][0]: run["settings"] for run in rows} == {
        "a": {"lr": 1e-5, "is_lora": None},
        "b": {"lr": 9e-6, "is_lora": None},
        "c": {"lr": 1e-3, "is_lora": True},
        "d": {"lr": None, "is_lora": None},
    }


def test_runs_are_grouped_by_a_setting_in_the_order_of_its_numbers():
    answer = with_settings(group="setting:lr", sort="run")

    assert answer["groups"] == [
        {"name": name, "count": 1} for name in ("9e-06", "1e-05", "0.001", "")
    ]
    assert "".join(run["run"][0] for run in answer["runs"]) == "bacd"


def test_settings_are_described_with_those_first_that_differ():
    described = describe_settings(
        [{"lr": float(number), "bf16": True, "opt": f"opt-{number % 4}"} for number in range(1, 9)]
    )

    assert described == [
        {"name": "lr", "runs": 8, "values": 8, "text": "1 to 8"},
        {"name": "opt", "runs": 8, "values": 4, "text": "opt-1, opt-2, opt-3, …"},
        {"name": "bf16", "runs": 8, "values": 1, "text": "true"},
    ]
