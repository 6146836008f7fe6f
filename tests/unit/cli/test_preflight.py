"""Exit status and output of `sentinel preflight`, for each way in which a command ends."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sentinel.agent.preflight import Preflight, PreflightResult
from sentinel.cli.main import app

FOUND = {
    "check": "mode",
    "detector": "evaluation_mode",
    "result": "found",
    "severity": "warning",
    "step": 5,
    "evidence": "It is [wrong].",
    "remedy": "Call \x1b[31m `train()`.",
}
PASSED = {**FOUND, "result": "passed", "severity": "", "remedy": ""}
FACTS = [{"name": "Ranks", "value": "2"}, {"name": "Precision", "value": "bf16"}]


def invoke(monkeypatch, result, *options, command=("true",)):
    monkeypatch.setattr(Preflight, "measure", lambda _: result)
    return CliRunner().invoke(app, ["preflight", *options, "--", *command])


@pytest.mark.parametrize(
    ("result", "status", "text"),
    [
        (
            PreflightResult(20, 21, ranks=2, seconds=41.2, checks=[PASSED], facts=FACTS),
            0,
            "Precision bf16.\nFiles that the command wrote: none.\n21 updates on each of 2 ranks",
        ),
        (PreflightResult(20, 20, checks=[FOUND], was_killed=True), 3, "so SIGKILL followed.\n"),
        (
            PreflightResult(20, 7, checks=[FOUND], exit_status=1),
            3,
            "status 1 after 7 of 20 updates.\n",
        ),
        (PreflightResult(20, 7, seconds=120.0), 4, "\n7 of 20 updates were measured in 120 s.\n"),
        (PreflightResult(20, 7, was_interrupted=True), 4, "in 0 s, until the interrupt.\n"),
        (PreflightResult(20, 7, exit_status=0), 4, "ended with status 0 after 7 of 20 updates.\n"),
        (
            PreflightResult(20, exit_status=139),
            4,
            "failed with SIGSEGV after 0 of 20 updates. No training was found in it.\n",
        ),
    ],
)
def test_the_exit_status_and_how_far_the_command_came(monkeypatch, result, status, text):
    done = invoke(monkeypatch, result)

    assert (done.exit_code, text in done.output) == (status, True), done.output


def test_the_table_has_evidence_and_remedy_as_they_are(monkeypatch):
    output = invoke(monkeypatch, PreflightResult(20, 20, checks=[FOUND])).output

    assert "It is [wrong]." in output
    assert r"Call \x1b[31m `train()`." in output


def test_written_files_are_listed_up_to_a_number_and_all_in_json(monkeypatch):
    written = {f"{number}.pt": 2048 for number in range(25)}
    result = PreflightResult(20, 20, written=written, all_compared=False)

    output = invoke(monkeypatch, result).output
    assert "0.pt (2 KiB), 1.pt" in output
    assert "19.pt (2 KiB) and 5 more. Only the first files" in output
    found = json.loads(invoke(monkeypatch, result, "--json").output)
    assert (found["written"], found["outcome"][:10]) == (written, "20 updates")


def test_what_cannot_be_run_is_a_usage_error(monkeypatch):
    missing = invoke(monkeypatch, None, command=["no-such-program"])
    monkeypatch.setenv("SENTINEL_OFF", "1")
    off = invoke(monkeypatch, None)

    assert (missing.exit_code, off.exit_code) == (2, 2)
    assert "command not found" in missing.output
    assert "SENTINEL_OFF" in off.output
