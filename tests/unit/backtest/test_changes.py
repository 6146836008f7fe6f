"""Which incidents appear, go or change with other settings."""

from __future__ import annotations

from dataclasses import replace

from sentinel.backtest.run_replay import FoundIncident
from sentinel.backtest.summary import compare_incidents

EARLY = FoundIncident("kl_blowup", None, "warning", 100, 110, 150)
LATE = replace(EARLY, onset_step=300, opened_step=310, resolved_step=None)


def test_equal_incidents_are_no_change():
    changes = compare_incidents([EARLY, LATE], [EARLY, LATE])

    assert (changes.appeared, changes.gone, changes.changed) == ([], [], [])


def test_an_incident_of_the_same_steps_is_the_same_one():
    later = replace(EARLY, opened_step=140, severity="critical")
    changes = compare_incidents([EARLY, LATE], [later, LATE])

    assert changes.changed == [(EARLY, later)]
    assert not changes.appeared + changes.gone


def test_an_incident_elsewhere_or_of_another_rank_or_detector_is_another_one():
    elsewhere = replace(EARLY, onset_step=200, opened_step=210, resolved_step=220)
    others = [elsewhere, replace(EARLY, rank=3), replace(EARLY, detector="loss_spike")]
    changes = compare_incidents([EARLY], others)

    assert changes.gone == [EARLY]
    assert changes.changed == []
    assert sorted(map(repr, changes.appeared)) == sorted(map(repr, others))


def test_an_incident_that_became_two_is_paired_once():
    whole = replace(EARLY, resolved_step=400)
    changes = compare_incidents([whole], [EARLY, LATE])

    assert changes.changed == [(whole, EARLY)]
    assert changes.appeared == [LATE]
