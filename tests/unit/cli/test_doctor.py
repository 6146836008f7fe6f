"""`sentinel doctor`, and patches in `sentinel status`: text, JSON and exit statuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sentinel.agent.discovery import DiscoveredRun
from sentinel.cli import doctor as doctor_file
from sentinel.cli.main import app
from sentinel.cli.status import _format_run, _to_dict, format_run_metadata
from sentinel.doctor.check_result import fail, ok, warn
from sentinel.store.unmonitored import failed_patches


@pytest.fixture
def run_doctor(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(results, *arguments):
        if results is not None:
            monkeypatch.setattr(doctor_file, "_run_checks", lambda **_: iter(results))
        return CliRunner().invoke(app, ["doctor", *arguments])

    return run


def test_a_run_is_shown_as_before_its_first_step():
    state = STATE | {"step": None}

    first, *_ = _format_run(_to_dict(DiscoveredRun("live", "http://127.0.0.1:1", state)))

    assert "before its first step" in first


def test_the_exit_status_is_0_with_warnings(run_doctor):
    done = run_doctor([ok("disk", "fine"), warn("port", "taken", "nothing")])

    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "ok    disk: fine",
        "warn  port: taken",
        "      nothing",
    ]


def test_a_failed_check_has_exit_status_1_and_prints_the_remedy(run_doctor):
    done = run_doctor([fail("disk", "full", "make room"), ok("port", "free")])

    assert done.exit_code == 1
    assert "make room" in done.stdout


def test_json_is_one_object_per_check(run_doctor):
    done = run_doctor([fail("disk", "full", "make room")], "--json")

    assert json.loads(done.stdout) == {
        "grade": "fail",
        "subject": "disk",
        "message": "full",
        "remedy": "make room",
    }


def test_unprintable_characters_are_escaped(run_doctor):
    done = run_doctor([ok("run \x1b[2J", "on\nfire")])

    assert done.stdout == "ok    run \\x1b[2J: on fire\n"


def test_an_error_in_a_check_is_a_failed_result():
    def check_places():
        yield ok("disk", "fine")
        raise KeyError("odd")

    first, second = doctor_file._run_check(check_places)
    assert (first.subject, second.subject) == ("disk", "places")
    assert "report this bug" in second.remedy


def test_doctor_runs_all_checks_on_this_machine(run_doctor, monkeypatch):
    monkeypatch.setenv("SENTINEL_PORT", "0")
    done = run_doctor(None, "--quick", "--json")
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


def test_status_shows_metadata_and_failed_patches():
    lines = list(_format_run(_to_dict(DiscoveredRun("live", "http://127.0.0.1:1", STATE))))

    assert lines == [
        "live: running at step 7 (http://127.0.0.1:1)",
        "  trl 1.16.0, grpo, Qwen\\x1b[2J, 8 ranks",
        "  patch of deepspeed is off: TypeError in before_step (ranks 1-2)",
    ]


def test_status_as_json_has_metadata_and_patches():
    run = _to_dict(DiscoveredRun("live", "http://127.0.0.1:1", STATE))

    assert json.loads(json.dumps(run)) == run
    assert (run["metadata"], run["patches"]) == (STATE["metadata"], STATE["patches"])


def test_an_unreachable_agent_is_shown_with_the_remedy():
    found = DiscoveredRun("live", "", {}, "the agent requires a token", "set SENTINEL_TOKEN")

    assert list(_format_run(_to_dict(found))) == [
        "live: the agent requires a token; set SENTINEL_TOKEN"
    ]


def test_without_metadata_and_patches_there_is_no_text():
    assert format_run_metadata({}) == ""
    assert list(failed_patches({})) == []
