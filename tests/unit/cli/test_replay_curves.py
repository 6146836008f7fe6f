"""`sentinel replay` for people: curves beside incidents."""

from __future__ import annotations

import pytest
from support.replays import collapse_rows, healthy_rows, log, run_replay
from typer.testing import CliRunner

from sentinel.cli.main import app

__all__ = ["log"]


@pytest.mark.parametrize("width", ["60", "80", "140"])
def test_an_incident_has_the_curve_of_its_signal_with_its_onset(log, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    shown = run_replay(log(collapse_rows())).stdout
    (curve, *_) = [line for line in shown.splitlines() if "▁" in line]
    before, onset, after = curve.partition("|")

    assert onset
    assert len(curve) <= int(width)
    assert "█" in after
    assert "█" not in before


def test_a_terminal_without_unicode_has_curves_too(log):
    runner = CliRunner(charset="ascii")
    result = runner.invoke(app, ["replay", str(log(collapse_rows()))])

    assert result.exit_code == 0
    assert "kl_blowup" in result.stdout
    assert "_" * 8 in result.stdout


def test_json_has_no_curves(log):
    assert "▁" not in run_replay(log(collapse_rows()), "--json").stdout


def test_a_healthy_log_has_none(log):
    assert "▁" not in run_replay(log(healthy_rows())).stdout
