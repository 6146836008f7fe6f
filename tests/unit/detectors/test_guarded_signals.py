"""Tests of the detectors of guarded signals: tool_errors, rollout_staleness, expert_imbalance."""

from sentinel.detectors.expert_imbalance import ExpertImbalance
from sentinel.detectors.rollout_staleness import RolloutStaleness
from sentinel.detectors.tool_errors import ToolErrors
from sentinel.model.finding import Clear, Severity, receives
from sentinel.model.record import Event
from sentinel.testing import first_finding, steps, update_detector


def jump(before, after, count=60):
    return [before] * count + [after] * count


def test_the_finding_names_the_signal_its_level_and_the_level_before():
    detector = ToolErrors()
    for record in steps(tool_error_fraction=jump(0.01, 0.45)[:80]):
        finding = update_detector(detector, record)

    assert finding.signal == "tool_error_fraction"
    assert finding.summary == "Tool error fraction is 45% (median of the last 8); it was 1% before."
    assert finding.evidence == {
        "tool_error_fraction_median_of_8": 0.45, "tool_error_fraction_before": 0.01,
    }  # fmt: skip
    assert finding.onset_step == 61


def test_a_share_that_is_high_from_the_start_is_past_its_limit():
    _, finding = first_finding(ToolErrors(), steps(tool_timeout_fraction=[0.7] * 80))

    assert finding.summary.endswith("is 70% (median of the last 8); the limit is 50%.")


def test_a_share_that_falls_below_the_limit_is_learned():
    shares = [max(0.2, 0.6 - 0.3 * step / 60) for step in range(200)]

    assert first_finding(ToolErrors(), steps(tool_error_fraction=shares)) == (None, None)


def test_a_finding_ends_when_no_tool_is_called_any_more():
    calls, errors = [2.0] * 120 + [0.0] * 60, [0.01] * 60 + [0.8] * 120
    detector = ToolErrors()
    records = steps(tool_calls_per_episode=calls, tool_error_fraction=errors)
    outputs = [detector.update(each) for each in records]

    assert outputs[110].signal == "tool_error_fraction"
    assert all(getattr(each, "signal", "") != "tool_error_fraction" for each in outputs[120:])


def test_steps_without_a_tool_call_have_no_share_of_failed_calls():
    calls, errors = jump(2.0, 0.0), jump(0.01, 1.0)
    records = steps(tool_calls_per_episode=calls, tool_error_fraction=errors)
    _, finding = first_finding(ToolErrors(), records)

    assert finding.signal == "tool_calls_per_episode"
    assert finding.severity is Severity.INFO
    assert "avoids its tools" in finding.remedy


def test_a_record_without_the_signals_neither_opens_nor_ends_an_incident():
    detector = ToolErrors()
    for record in steps(tool_error_fraction=jump(0.01, 0.9)):
        last = update_detector(detector, record)
    (other,) = steps(loss=[1.0])

    assert last.signal == "tool_error_fraction"
    assert detector.update(other) is None


def test_a_constant_staleness_is_configured_and_clear():
    detector = RolloutStaleness()
    outputs = [update_detector(detector, r) for r in steps(rollout_staleness=[8.0] * 100)]

    assert outputs[:23] == [None] * 23
    assert set(outputs[23:]) == {Clear()}


def test_samples_that_become_older_are_a_warning():
    _, finding = first_finding(RolloutStaleness(), steps(rollout_staleness=jump(1.0, 6.0)))

    assert finding.severity is None
    assert RolloutStaleness.severity is Severity.WARNING


def test_the_load_of_the_worst_layer_counts():
    names = [f"expert_load_violation/layer_{n}" for n in range(3)]
    loads = dict.fromkeys(names[:2], [0.4] * 120) | {names[2]: jump(0.4, 3.0)}
    records = list(steps(**loads))
    _, finding = first_finding(ExpertImbalance(), records)

    assert finding.signal == "expert_load_violation"
    assert receives(ExpertImbalance, Event.STEP, records[0].values.keys())
    assert not receives(ExpertImbalance, Event.STEP, {"loss", "expert_load"})
