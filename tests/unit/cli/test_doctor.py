"""`sentinel doctor` and what `sentinel status` tells of taps: words, JSON and exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sentinel.agent.discovery import DiscoveredRun
from sentinel.cli import doctor as doctor_file
from sentinel.cli.main import app
from sentinel.cli.status import _format_run, _to_dict, failed_patches, format_run_metadata
from sentinel.doctor.check_result import fail, ok, warn


@pytest.fixture
def asked(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def ask(remarks, *words):
        if remarks is not None:
            monkeypatch.setattr(doctor_file, "_run_checks", lambda **_: iter(remarks))
        return CliRunner().invoke(app, ["doctor", *words])

    return ask


def test_a_run_without_a_step_says_so():
    before = STATE | {"step": None}

    first, *_ = _format_run(_to_dict(DiscoveredRun("live", "http://127.0.0.1:1", before)))

    assert "before its first step" in first


def test_all_well_or_worth_a_note_is_exit_status_0(asked):
    done = asked([ok("disk", "fine"), warn("port", "taken", "nothing")])

    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "ok    disk: fine",
        "warn  port: taken",
        "      nothing",
    ]


def test_something_to_mend_is_exit_status_1_and_its_remedy_is_told(asked):
    done = asked([fail("disk", "full", "make room"), ok("port", "free")])

    assert done.exit_code == 1
    assert "make room" in done.stdout


def test_json_is_one_object_a_line(asked):
    done = asked([fail("disk", "full", "make room")], "--json")

    assert json.loads(done.stdout) == {
        "grade": "fail",
        "subject": "disk",
        "message": "full",
        "remedy": "make room",
    }


def test_a_name_from_training_code_commands_no_terminal(asked):
    done = asked([ok("run \x1b[2J", "on\nfire")])

    assert done.stdout == "ok    run [2J: on fire\n"


def test_a_kind_of_checkup_that_fails_leaves_the_others_to_be_told():
    def places():
        yield ok("disk", "fine")
        raise KeyError("odd")

    first, second = doctor_file._run_check(places)
    assert (first.subject, second.subject) == ("disk", "places")
    assert "report this bug" in second.remedy


def test_it_works_on_this_machine_as_it_is(asked, monkeypatch):
    monkeypatch.setenv("SENTINEL_PORT", "0")
    done = asked(None, "--quick", "--json")
    subjects = {json.loads(line)["subject"] for line in done.stdout.splitlines()}

    assert {"python", "settings", "state directory", "shared memory", "runs", "gpus"} <= subjects


STATE = {
    "state": "running",
    "step": 7,
    "incidents": [],
    "metadata": {
        "framework": "trl",
        "framework_version": "1.16.0",
        "algorithm": "grpo",
        "model": "Qwen\x1b[2J",
        "world_size": 8.0,
    },
    "patches": {"trl": {"on": [0]}, "deepspeed": {"off: TypeError in before_step": [1, 2]}},
}


def test_status_tells_what_a_run_is_and_which_taps_are_not_whole():
    lines = list(_format_run(_to_dict(DiscoveredRun("live", "http://127.0.0.1:1", STATE))))

    assert lines == [
        "live: running at step 7 (http://127.0.0.1:1)",
        "  trl 1.16.0, grpo, Qwen[2J, 8 ranks",
        "  tap deepspeed is off: TypeError in before_step (rank 1, 2)",
    ]


def test_status_as_json_has_facts_and_taps():
    told = _to_dict(DiscoveredRun("live", "http://127.0.0.1:1", STATE))

    assert json.loads(json.dumps(told)) == told
    assert (told["metadata"], told["patches"]) == (STATE["metadata"], STATE["patches"])


def test_an_agent_that_says_nothing_is_told_with_the_remedy():
    silent = DiscoveredRun("live", "", {}, "its agent asks for a token", "set SENTINEL_TOKEN")

    assert list(_format_run(_to_dict(silent))) == [
        "live: its agent asks for a token; set SENTINEL_TOKEN"
    ]


def test_nothing_known_is_nothing_said():
    assert format_run_metadata({}) == ""
    assert list(failed_patches({})) == []
