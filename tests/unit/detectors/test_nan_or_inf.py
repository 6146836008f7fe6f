"""Tests of the detector nan_or_inf."""

from dataclasses import replace
from math import inf, nan

import pytest

from sentinel.detectors.nan_or_inf import NanOrInf
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event, Spread
from sentinel.testing import event, first_finding, steps, update_detector

FINITE = [1.0] * 20


def severities(records):
    detector = NanOrInf()
    outputs = [update_detector(detector, record) for record in records]
    return [o.severity for o in outputs if isinstance(o, Finding)]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_one_non_finite_loss_is_a_warning_and_a_second_is_critical(bad):
    loss = [*FINITE, bad, bad, bad]

    assert severities(steps(loss=loss)) == [
        Severity.WARNING,
        Severity.CRITICAL,
        Severity.CRITICAL,
    ]


def test_a_loss_that_is_non_finite_since_the_first_step_is_found():
    assert severities(steps(loss=[nan, nan])) == [Severity.WARNING, Severity.CRITICAL]


def test_two_non_finite_losses_far_apart_stay_warnings():
    assert severities(steps(loss=[*FINITE, nan, *FINITE, nan, *FINITE])) == [Severity.WARNING] * 2


def test_one_non_finite_gradient_norm_is_info():
    norms = [*FINITE, nan, *FINITE]

    assert severities(steps(loss=[1.0] * 41, grad_norm=norms)) == [Severity.INFO]


def test_a_gradient_norm_logged_three_times_counts_once():
    """The patch, a rank and the framework log it; a scaler that skips two steps is healthy."""
    norms = [*FINITE, nan, *[1.0] * 5, nan, *FINITE]
    copies = {"grad_norm": norms, "grad_norm_local": norms, "logged_grad_norm": norms}

    assert severities(steps(loss=[1.0] * 47, **copies)) == [Severity.INFO] * 2


def test_two_non_finite_gradient_norms_in_a_row_are_a_warning():
    norms = [*FINITE, inf, inf]

    assert severities(steps(loss=[1.0] * 22, grad_norm=norms)) == [Severity.INFO, Severity.WARNING]


def test_three_within_sixteen_records_are_a_warning():
    norms = [*FINITE, nan, 1.0, 1.0, nan, 1.0, 1.0, nan]

    assert severities(steps(grad_norm=norms))[-1] is Severity.WARNING


def test_a_zero_loss_beside_a_non_finite_gradient_norm_counts_as_nan():
    """Trainers that filter NaN out of the logged loss show it as exactly zero."""
    _, finding = first_finding(NanOrInf(), steps(loss=[1.0, 0.0], grad_norm=[1.0, nan]))

    assert finding.severity is Severity.WARNING
    assert "loss" in finding.evidence


def test_evaluation_values_that_never_were_finite_are_ignored():
    """A reward function may not apply to held-out data; evaluations start late in a run."""
    one = event(Event.EVAL, 20, **{"eval_loss": 1.0, "eval_rewards/exact/mean": nan})

    assert severities([*steps(loss=FINITE), one, *steps(loss=FINITE), one, one]) == []


def test_a_non_finite_evaluation_is_a_warning_at_once():
    records = [*steps(loss=FINITE), event(Event.EVAL, 20, eval_loss=nan)]

    assert severities(records) == [Severity.WARNING]


def test_values_that_never_were_finite_are_ignored():
    silent = {"rewards/length/std": [nan] * 30, "attention_entropy": [nan] * 30}

    assert severities(steps(loss=[1.0] * 30, **silent)) == []


def test_values_that_were_finite_for_long_are_evaluated():
    _, finding = first_finding(
        NanOrInf(), steps(loss=[1.0] * 21, **{"logps/chosen": [*FINITE, nan]})
    )

    assert next(iter(finding.evidence)) == "logps/chosen"


def test_a_part_of_the_loss_is_found_from_the_first_record():
    """A NaN by design in a loss is none; the best loss so far begins at infinity."""
    parts = {"loss_control": [nan, nan, nan], "best_loss": [inf] * 3, "val/box_loss": [nan] * 3}

    found = severities(steps(loss=[0.0] * 3, **parts))
    assert found == [Severity.INFO, Severity.WARNING, Severity.WARNING]


@pytest.mark.parametrize("bad", [nan, inf])
def test_any_value_that_was_finite_is_info_a_few_times(bad):
    values = {"precision": [*FINITE, *[bad] * 10], "never": [nan] * 30}

    found = severities(steps(loss=[1.0] * 30, **{**values, "never": [1.0] * 8 + [nan] * 22}))
    assert set(found) == {Severity.INFO}
    assert 3 <= len(found) <= 6


def test_a_value_that_is_undefined_now_and_then_does_not_hide_a_lost_loss():
    loss = [1.0] * 40
    loss[30:] = [nan] * 10
    undefined = [nan if step % 3 == 0 else 1.0 for step in range(40)]
    outputs = [
        update for update in map(NanOrInf().update, steps(loss=loss, hit_rate=undefined))
        if isinstance(update, Finding)
    ]  # fmt: skip

    assert max((o.severity for o in outputs), key=lambda s: -s.order) is Severity.CRITICAL
    assert next(o for o in outputs if o.severity is Severity.WARNING).onset_step == 31


def test_the_rank_with_the_non_finite_value_is_named():
    record = event(Event.STEP, 5, loss=nan)
    spread = Spread(3, 1.0, 1.0, 1.0, 3.0, 0.0, 0, 0, bad_ranks=(2,))
    finding = NanOrInf().update(replace(record, spread={"loss": spread}))

    assert finding.rank == 2
    assert "on rank 2" in finding.summary


def test_the_rank_with_its_own_nan_is_named_not_those_it_was_reduced_onto():
    own, reduced = (Spread(3, 1.0, 1.0, 1.0, 3.0, 0.0, 0, 0, bad_ranks=r) for r in ((1,), (0, 1)))
    record = event(Event.STEP, 5, loss=nan, grad_norm=nan)
    finding = NanOrInf().update(replace(record, spread={"grad_norm": reduced, "loss": own}))

    assert finding.rank == 1


def lost_on(step, *ranks):
    """A step whose loss is NaN on these ranks of two."""
    spread = Spread(2 - len(ranks), 1.0, 1.0, 1.0, 1.0, 0.0, 0, 0, bad_ranks=ranks)
    return replace(next(steps(first=step, loss=[nan])), spread={"loss": spread})


def test_the_rank_on_which_it_began_is_named_after_all_ranks_have_it():
    detector = NanOrInf()
    findings = [detector.update(lost_on(150, 1))]
    findings += [detector.update(lost_on(step, 0, 1)) for step in range(151, 200)]

    assert findings[0].summary == "NaN or infinite on rank 1: loss."
    assert findings[1].severity is Severity.CRITICAL
    assert findings[1].summary == (
        "NaN or infinite on rank 1 from step 150 on, then on all ranks: loss."
    )
    assert {(each.rank, each.onset_step) for each in findings} == {(1, 150)}


def test_another_episode_has_its_own_rank():
    detector = NanOrInf()
    detector.update(lost_on(150, 1))
    for record in steps(first=151, loss=[1.0] * 16):
        detector.update(record)

    assert detector.update(lost_on(170, 0)).rank == 0


def test_no_rank_is_named_if_several_have_non_finite_values():
    record = event(Event.STEP, 5, loss=nan)
    spread = Spread(2, 1.0, 1.0, 1.0, 2.0, 0.0, 0, 0, bad_ranks=(1, 3))

    assert NanOrInf().update(replace(record, spread={"loss": spread})).rank is None


def test_a_finite_record_is_clear_and_an_empty_one_has_no_output():
    detector = NanOrInf()

    assert update_detector(detector, event(Event.STEP, 1, loss=1.0)) == Clear()
    assert update_detector(detector, event(Event.STEP, 2)) is None
    assert update_detector(detector, event(Event.HEARTBEAT, 2, idle_seconds=nan)) is None


@pytest.mark.parametrize(
    "later",
    [
        event(Event.EVAL, 24, eval_accuracy=0.1),
        event(Event.EVAL, 24, eval_loss=1.0),
        event(Event.STEP, 24, step_time=0.1),
        event(Event.STEP, 24, grad_norm=1.0),
    ],
)
def test_a_record_without_the_lost_loss_is_no_evidence_of_recovery(later):
    detector = NanOrInf()
    for record in steps(loss=[*FINITE, nan, nan], grad_norm=[*FINITE, nan, nan]):
        detector.update(record)

    assert detector.update(later) is None


def test_a_finite_loss_is_clear_whatever_else_was_lost():
    detector = NanOrInf()
    for record in steps(loss=[*FINITE, nan, nan], grad_norm=[*FINITE, nan, nan]):
        detector.update(record)

    assert detector.update(event(Event.STEP, 23, loss=1.0)) == Clear()
    assert detector.update(event(Event.EVAL, 23, eval_accuracy=0.1)) == Clear()


def test_a_lost_evaluation_is_clear_once_an_evaluation_is_finite():
    detector = NanOrInf()
    records = [
        *steps(loss=FINITE),
        event(Event.EVAL, 20, eval_loss=nan),
        event(Event.STEP, 21, loss=1.0),
        event(Event.EVAL, 40, eval_loss=1.0),
    ]

    assert [detector.update(record) for record in records][-2:] == [None, Clear()]


def test_values_too_large_to_be_summed_are_finite():
    assert severities(steps(loss=[1e308] * 3, other=[1e308] * 3)) == []


def test_the_onset_is_the_first_of_a_cluster():
    detector = NanOrInf()
    outputs = [update_detector(detector, r) for r in steps(grad_norm=[*FINITE, nan, 1.0, nan, nan])]

    assert {o.onset_step for o in outputs if isinstance(o, Finding)} == {21}


def test_gradients_that_overflow_while_the_scaler_finds_its_scale_are_info():
    scales = [65536.0, 32768.0, 16384.0, 8192.0, 8192.0]
    norms, losses = [inf, inf, inf, inf, 1.0], [2.0] * 5

    found = severities(steps(loss=losses, grad_norm=norms, loss_scale=scales))
    kept = severities(steps(loss=losses, grad_norm=norms, loss_scale=[65536.0] * 5))
    lost = severities(steps(loss=[nan] * 5, grad_norm=norms, loss_scale=scales))

    assert found == [Severity.INFO] * 4
    assert Severity.WARNING in kept
    assert Severity.CRITICAL in lost


@pytest.mark.parametrize(
    ("lost", "signal"),
    [({"reward"}, "reward"), ({"loss"}, ""), ({"grad_norm", "loss"}, "")],
)
def test_the_finding_names_the_signal_that_is_lost(lost, signal):
    """Of the loss it is the detector's own, whose onset is estimated."""
    values = {
        name: [*FINITE, nan if name in lost else 1.0] for name in ("loss", "reward", "grad_norm")
    }

    _, finding = first_finding(NanOrInf(), steps(**values))

    assert finding.signal == signal


def test_a_single_lost_norm_at_a_loss_that_has_exploded_is_a_warning():
    def severity(loss):
        records = steps(loss=[9.5, 9.0, loss, loss], grad_norm=[1.0, 2.0, inf, 1.0])
        return first_finding(NanOrInf(), records)[1].severity

    assert severity(9e4) is Severity.WARNING
    assert severity(90.0) is Severity.INFO


def test_a_reward_before_the_first_episode_ends_is_not_lost():
    """For some records only; a reward that was known before is lost at once."""
    assert severities(steps(reward=[nan] * 4 + FINITE)) == []
    assert severities(steps(reward=[nan] * 12))[-1] is Severity.WARNING
    assert severities(steps(reward=[1.0, nan, nan])) == [Severity.INFO, Severity.WARNING]
