"""Replay: the command that judges a log, and the lines it promises to machines."""

import json
from collections.abc import Iterator
from random import Random

import pytest
from runs import rl_run
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.diagnosis import Clue, seen
from sentinel.finding import Severity

KEYS = [
    "type",
    "detector",
    "severity",
    "signal",
    "onset_step",
    "opened_step",
    "resolved_step",
    "rank",
    "episode",
    "flaps",
    "last_good_step",
    "onset",
    "summary",
    "evidence",
    "remedy",
    "case",
]
DIAGNOSIS_KEYS = [
    "type",
    "case",
    "cause",
    "title",
    "confidence",
    "severity",
    "onset_step",
    "opened_step",
    "resolved_step",
    "incidents",
    "evidence",
    "remedy",
    "last_good_step",
]


@pytest.fixture
def log(tmp_path):
    def written(rows):
        path = tmp_path / "run.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return path

    return written


def ask(*arguments):
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def lines(path):
    return [json.loads(line) for line in ask(path, "--json").stdout.splitlines()]


def told(path):
    *found, summary = lines(path)
    return [line for line in found if line["type"] == "incident"], summary


def healthy(count=200) -> Iterator[dict[str, float]]:
    rng = Random(0)
    for step in range(1, count + 1):
        yield {"step": step, "loss": 3 / step**0.3 * rng.uniform(0.9, 1.1), "kl": 0.02}


def collapse():
    """KL and reward of a healthy run, and a blow-up from step 301 on."""
    rows = list(healthy(300))
    return rows + [{"step": 300 + n, "loss": 0.5, "kl": 0.02 * 1.5**n} for n in range(1, 31)]


def test_every_incident_is_a_line_and_the_summary_is_the_last(log):
    incidents, summary = told(log([*collapse(), "broken", {"note": "nothing"}]))

    assert {tuple(incident) for incident in incidents} == {tuple(KEYS)}
    assert incidents[0]["detector"] == "kl_blowup"
    assert incidents[0]["severity"] == "critical"
    assert 301 <= incidents[0]["onset_step"] <= incidents[0]["opened_step"] <= 320
    assert incidents[0]["resolved_step"] is None
    assert incidents[0]["rank"] is None
    assert summary == {
        "type": "summary",
        "records": 331,
        "skipped": 2,
        "steps": 330,
        "incidents": len(incidents),
    }


BACK = [{"step": step, "loss": 1.0} for step in (9, 3, 4)]
"""Goes back, and on from there."""


class Storm:
    """A cause as a plug-in might bring it."""

    title, severity = "storm in the policy", Severity.CRITICAL
    explains = frozenset({"kl_blowup", "kl_drift", "step_regression"})

    def clues(self, scene):
        yield Clue(0.3, "The season is [red]autumn[/red].")
        yield from seen(scene.first("step_regression", "kl_blowup"), 0.8)
        if most := scene.number("max_steps"):
            yield Clue(0.1, f"It was to last {most:g} steps.")

    def remedy(self, _):
        return "Stay in."


@pytest.fixture
def storm(monkeypatch):
    monkeypatch.setattr("sentinel.cli.replay.build_causes", lambda: {"storm": Storm()})


def test_a_cause_is_a_line_after_those_of_its_incidents(log, storm):
    *found, diagnosis, summary = lines(log(collapse()))
    incidents = [line for line in found if line["case"] == diagnosis["case"]]

    assert [line["type"] for line in found] == ["incident"] * summary["incidents"]
    assert list(diagnosis) == DIAGNOSIS_KEYS
    assert (diagnosis["type"], diagnosis["cause"]) == ("diagnosis", "storm")
    assert (diagnosis["title"], diagnosis["severity"]) == ("storm in the policy", "critical")
    assert diagnosis["confidence"] == pytest.approx(0.86)
    assert [clue["step"] for clue in diagnosis["evidence"]] == [diagnosis["onset_step"], None]
    assert diagnosis["incidents"][0] == diagnosis["case"] == "run/kl_blowup#1"
    assert len(diagnosis["incidents"]) == len(incidents)
    assert diagnosis["opened_step"] == incidents[0]["opened_step"]
    assert (diagnosis["remedy"], diagnosis["resolved_step"]) == ("Stay in.", None)


def test_a_case_is_over_with_the_last_of_its_incidents(log, storm):
    rows = [*collapse(), *({"step": n, "kl": 0.02} for n in range(331, 600))]
    *found, diagnosis, _ = lines(log(rows))
    ends = [line["resolved_step"] for line in found if line["case"] == diagnosis["case"]]

    assert diagnosis["resolved_step"] == max(ends)


def test_what_nobody_was_told_of_belongs_to_no_case(log):
    incidents, _ = told(log({"step": s, "grad_norm": "NaN" if s == 21 else 1.0} for s in range(40)))

    assert [(i["severity"], i["case"]) for i in incidents] == [("info", None)]


def test_a_cause_that_is_louder_than_its_incidents_counts_for_failing(log, storm):
    assert told(log(BACK))[0][0]["severity"] == "warning"
    assert ask(log(BACK), "--fail-on", "critical").exit_code == 3


def test_a_person_reads_the_cause_first_and_advice_once(log, storm):
    shown = " ".join(ask(log(collapse())).stdout.split())

    assert "critical: storm in the policy (likely, 86 %)" in shown
    assert "The season is [red]autumn[/red]." in shown
    assert shown.index("What to do: Stay in.") < shown.index("Page due")
    assert "checkpoint before the onset" not in shown, "its detector's advice is of less use"


def test_the_settings_in_a_log_speak_for_a_cause(tmp_path, storm):
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": collapse(), "max_steps": 4000, "save_steps": 500}))
    *_, diagnosis, _ = lines(path)

    assert "It was to last 4000 steps." in [clue["text"] for clue in diagnosis["evidence"]]


def test_when_it_began_is_found_by_looking_back(log):
    """The same each time; and what resolves or repeats later changes nothing."""
    once, _ = told(log(collapse()))
    again, _ = told(log(collapse() + [{"step": n, "kl": 0.02} for n in range(331, 400)]))
    onset = once[0]["onset"]

    assert 299 <= onset["earliest"] <= onset["step"] <= onset["latest"] <= 320
    assert onset["last_good_step"] is None
    assert again[0]["onset"] == onset


def test_a_healthy_run_has_only_a_summary(log):
    incidents, summary = told(log(healthy()))

    assert incidents == []
    assert summary["incidents"] == 0


def test_an_incident_that_ended_is_told_once_with_its_end(log):
    rows = [*collapse(), *({"step": n, "kl": 0.02} for n in range(331, 400))]
    incidents, _ = told(log(rows))

    assert [i["detector"] for i in incidents].count("kl_blowup") == 1
    assert incidents[0]["detector"] == "kl_blowup"
    assert 346 <= incidents[0]["resolved_step"] <= 380
    evidence = incidents[0]["evidence"]
    assert evidence["median_of_5"] > 10 * evidence["expected"], "not what it was when it ended"


def test_what_was_only_worth_noting_is_due_when_it_gets_worse(log):
    """One lost gradient norm is information; the page is due with the second in a row."""
    norms = [1.0] * 20 + ["NaN", 1.0, 1.0, "NaN", "NaN"]
    incidents, _ = told(log({"step": s, "grad_norm": g} for s, g in enumerate(norms, start=1)))

    assert [(i["severity"], i["onset_step"], i["opened_step"]) for i in incidents] == [
        ("warning", 21, 25)
    ]


def test_numbers_that_json_cannot_write_are_written_as_words(log):
    incidents, _ = told(log([{"step": 1, "loss": 1.0}, {"step": 2, "loss": "Infinity"}]))

    assert incidents[0]["evidence"]["loss"] == "inf"


def test_a_lost_value_of_one_run_names_no_rank(log):
    incidents, _ = told(log([{"step": 1, "loss": "NaN"}]))

    assert incidents[0]["rank"] is None


@pytest.mark.parametrize(
    ("rows", "fail_on", "code"),
    [
        (list(healthy()), "warning", 0),
        (collapse(), None, 0),
        (collapse(), "warning", 3),
        (collapse(), "critical", 3),
        (BACK, "critical", 0),
        (BACK, "warning", 3),
    ],
)
def test_fails_on_what_it_was_told_to(log, rows, fail_on, code):
    wish = ["--fail-on", fail_on] if fail_on else []

    assert ask(log(rows), *wish).exit_code == code


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\x1f\x8b\x08\x00", b"{\n"])
def test_what_it_cannot_read_is_one_line_and_exit_2(tmp_path, content):
    path = tmp_path / "log.bin"
    path.write_bytes(content)
    result = ask(path, "--json")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert str(path) in result.stderr
    assert "JSONL" in result.stderr


def test_a_detector_that_failed_is_named_beside_what_the_others_found(log, monkeypatch):
    """Silence of a detector that broke must not read as health."""

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("sentinel.detectors.loss_plateau.LossPlateau.update", broken)
    result = ask(log(healthy()), "--json")

    assert json.loads(result.stdout.splitlines()[-1])["failed"] == ["loss_plateau"]
    assert "loss_plateau failed" in result.stderr


def test_a_missing_file_and_a_folder_without_a_log_are_exit_2(tmp_path):
    missing, empty = ask(tmp_path / "none"), ask(tmp_path)

    assert (missing.exit_code, empty.exit_code) == (2, 2)
    assert "none" in missing.stderr


def test_a_person_reads_what_happened_and_what_to_do(log):
    result = ask(log(collapse()))

    assert "kl_blowup" in result.stdout
    assert "checkpoint before the onset" in " ".join(result.stdout.split())


def test_a_person_reads_that_nothing_happened(log):
    assert ask(log(healthy())).stdout == "No incident in 200 steps.\n"


def test_a_trainer_state_is_replayed_through_the_same_detectors(tmp_path):
    """The counter of huggingface/trl#2124 in the file that transformers leaves behind."""
    history = [{"step": step, "loss": 1.0} for step in range(500, 4501, 100)]
    state = {"log_history": history, "max_steps": 4000, "save_steps": 500}
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state))
    incidents, _ = told(path)

    assert ("checkpoint_cadence", 4100) in [(i["detector"], i["opened_step"]) for i in incidents]


def test_the_same_log_is_told_the_same_way_twice(log):
    series = rl_run(5, "kl_blowup", "severe").series
    rows = [
        dict(zip(("step", *series), row, strict=True))
        for row in zip(range(1, 10**6), *(s.tolist() for s in series.values()))  # noqa: B905
    ]
    path = log(rows)

    assert ask(path, "--json").stdout == ask(path, "--json").stdout
