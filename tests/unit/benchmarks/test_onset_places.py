"""An incident and its case have one date in every place; the benchmark of onsets runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import onsets
from onset_places import FAULTS, Compared, DelayedWorker, compare_places, made_runs

from sentinel.model.incident import Onset

RUNS = made_runs(30)


@pytest.mark.parametrize("fault", FAULTS)
def test_all_places_show_the_same_dates(tmp_path, fault):
    """Thirty runs with over fifty incidents together; half of them save checkpoints."""
    runs = [records for n, records in enumerate(RUNS.values()) if FAULTS[n % len(FAULTS)] == fault]
    compared = [compare_places(tmp_path / f"{n}.db", records) for n, records in enumerate(runs)]

    assert [text for each in compared for text in each.differing] == []
    assert sum(each.incidents for each in compared) >= 6
    assert all(each.cases for each in compared)


def test_a_place_that_differs_is_found(tmp_path, monkeypatch):
    """A live estimate that is not that of the replay."""
    poll = DelayedWorker.poll

    def poll_other(worker):
        for request, _ in poll(worker):
            yield request, Onset(100, 99, 101)

    monkeypatch.setattr(DelayedWorker, "poll", poll_other)
    compared = compare_places(tmp_path / "run.db", next(iter(RUNS.values())))

    assert any("'replay'" in text and "(100, " in text for text in compared.differing)


def test_an_onset_that_never_arrives_leaves_the_date_of_the_detector_everywhere(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(DelayedWorker, "poll", lambda _: iter(()))
    compared = compare_places(tmp_path / "run.db", next(iter(RUNS.values())))

    assert all("'replay'" in text for text in compared.differing)


def test_the_benchmark_prints_its_tables(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["onsets.py", "--smoke"])
    onsets.main()
    printed = capsys.readouterr().out

    assert "| all |" in printed
    assert "3 differ" not in printed
    assert "0 differ" in printed


def test_dates_that_differ_are_stated():
    compared = Compared()
    compared.compare("case", {"page": (1, None), "status": (1, None)})
    compared.compare("case", {"page": (1, None), "status": (2, None)})

    assert replace(compared).differing == ["case: {'page': (1, None), 'status': (2, None)}"]
