"""Tests of the detector throughput_drop."""

from random import Random

import pytest

from sentinel.detectors.throughput_drop import ThroughputDrop
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def times(count, onset, factor, noise=0.03, seed=0):
    rng = Random(seed)
    return [rng.lognormvariate(0, noise) * (factor if n >= onset else 1) for n in range(count)]


def test_a_token_that_costs_twice_as_much_is_a_warning():
    records = steps(step_time=times(400, 200, 2.0), tokens=[8192.0] * 400)
    record, finding = first_finding(ThroughputDrop(), records)

    assert record.step <= 200 + 10
    assert 195 <= finding.onset_step <= 205
    assert "usual_time_seconds_per_token" in finding.evidence


def severities(step_times, **values):
    detector = ThroughputDrop()
    records = steps(step_time=step_times, tokens=[8192.0] * len(step_times), **values)
    outputs = [update_detector(detector, record) for record in records]
    return {output.severity for output in outputs if isinstance(output, Finding)}


def test_a_costly_slowdown_is_a_warning_at_once():
    assert Severity.WARNING in severities(times(212, 200, 2.0))


@pytest.mark.parametrize("factor", [1.15, 1.3])
def test_a_small_slowdown_is_a_warning_once_it_lasts(factor):
    assert severities(times(225, 200, factor)) == {None}
    assert Severity.WARNING in severities(times(300, 200, factor))


def test_a_passing_slowdown_is_info():
    contention = [
        time * (1.3 if 200 <= n < 225 else 1.0) for n, time in enumerate(times(400, 0, 1))
    ]

    assert severities(contention) == {None}


def test_a_small_slowdown_with_completions_is_info():
    """Their length changes the cost of a token."""
    assert severities(times(400, 200, 1.3), completion_length=[200.0] * 400) == {None}


def test_longer_batches_are_not_slower():
    """Twice the tokens in twice the time."""
    more = [8192.0 * (2 if n >= 200 else 1) for n in range(400)]
    records = steps(step_time=times(400, 200, 2.0), tokens=more)

    assert first_finding(ThroughputDrop(), records) == (None, None)


def step_time_findings(factor, count=300, usual=0.25, **values):
    detector = ThroughputDrop()
    records = steps(step_time=[usual * each for each in times(count, 200, factor)], **values)
    outputs = [update_detector(detector, record) for record in records]
    return [output for output in outputs if isinstance(output, Finding)]


def test_a_step_time_that_stays_doubled_is_a_warning_with_the_present_figure():
    findings = step_time_findings(4.0)
    first = next(n for n, each in enumerate(findings) if each.severity is Severity.WARNING)

    # It has lasted for a minute, the first 5 seconds without a finding; these steps take a second.
    assert 50 <= first <= 60
    assert findings[first].evidence["ratio_to_usual"] == pytest.approx(4.0, rel=0.1)
    assert findings[-1].evidence["ratio_to_usual"] == pytest.approx(4.0, rel=0.1)


def test_a_shorter_slowdown_of_steps_is_info():
    assert {each.severity for each in step_time_findings(4.0, 250)} == {None}
    completions = {"completion_length": [200.0] * 300}
    assert {each.severity for each in step_time_findings(4.0, **completions)} == {None}


def test_a_few_slow_steps_of_milliseconds_are_no_finding():
    assert step_time_findings(1.5, 260, usual=0.02) == []
    assert step_time_findings(1.5, 600, usual=0.02) != []


def test_a_falling_throughput_is_found():
    speeds = [1e4 / t for t in times(400, 200, 2.0)]
    record, _ = first_finding(ThroughputDrop(), steps(tokens_per_second=speeds))

    assert 200 < record.step <= 210


@pytest.mark.parametrize("kind", [Event.SAVE, Event.EVAL, Event.PHASE])
def test_steps_that_save_or_evaluate_are_ignored(kind):
    detector, found = ThroughputDrop(), []
    for record in steps(step_time=times(600, 999, 1.0)):
        if record.step >= 200:
            update_detector(detector, event(kind, record.step))
            record.values["step_time"] = 60.0
        found.append(update_detector(detector, record))

    assert not any(isinstance(output, Finding) for output in found)


def test_a_healthy_run_is_clear_after_the_baseline():
    detector = ThroughputDrop()
    outputs = [update_detector(detector, r) for r in steps(step_time=times(1000, 9999, 1.0, 0.2))]

    assert outputs[20] is None
    assert set(outputs[60:]) == {Clear()}


def test_a_restart_on_other_hardware_is_another_run():
    detector = ThroughputDrop()
    before = steps(step_time=times(200, 999, 1.0), tokens=[1e4] * 200)
    after = steps(step_time=times(200, 0, 3.0), tokens=[1e4] * 200)
    records = [*before, event(Event.START, 200), *after]

    assert first_finding(detector, records) == (None, None)
