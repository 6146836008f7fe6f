"""Tests of the detector repetition."""

from sentinel.detectors.repetition import Repetition
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector


def samples(shares):
    """One record with scored samples every ten steps, as from the agent."""
    return [
        event(Event.SAMPLE, 10 * at, sample_repetition=share, sample_longest_run=7.0)
        for at, share in enumerate(shares)
    ]


def test_repetition_of_half_of_the_phrases_is_a_warning():
    record, finding = first_finding(Repetition(), samples([0.1] * 10 + [0.5] * 6))

    assert record.step == 120
    assert finding.severity is Severity.WARNING
    assert finding.onset_step == 100
    assert finding.evidence["longest_run_of_one_word"] == 7.0


def test_loops_are_critical():
    outputs = [
        update_detector(d, r) for d in [Repetition()] for r in samples([0.1] * 10 + [0.95] * 6)
    ]

    assert outputs[-1].severity is Severity.CRITICAL


def test_repetition_since_the_start_is_info():
    _, finding = first_finding(Repetition(), samples([0.55] * 20))

    assert finding.severity is None
    assert Repetition.severity is Severity.INFO


def test_a_single_repetitive_sample_is_ignored():
    assert first_finding(Repetition(), samples([0.1, 0.1, 0.9, 0.1, 0.1, 0.1] * 5)) == (None, None)


def test_clears_and_ignores_invalid_values():
    detector = Repetition()
    outputs = [
        update_detector(detector, r) for r in samples([0.1] * 8 + [0.9] * 5 + [0.1] * 5 + [2.0])
    ]

    assert outputs[-3:] == [Clear(), Clear(), None]
