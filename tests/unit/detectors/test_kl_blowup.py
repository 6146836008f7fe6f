"""Tests of the detector kl_blowup."""

from dataclasses import replace
from math import exp, log, nan
from random import Random

import pytest
from support.seeds import SEEDS
from support.synthetic_runs import rl_run

from sentinel.detectors.kl_blowup import KlBlowup
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.readers.rows import RowConverter
from sentinel.signals.kl import KlKind
from sentinel.testing import first_finding, steps, update_detector

STEADY = [0.09, 0.1, 0.11, 0.1] * 40
"""KL at a learning rate that has decayed to zero: constant."""

DECAYED = [1.0, *[0.0] * 999]


def with_decayed_learning_rate(kl):
    return steps(kl_ref=kl, learning_rate=DECAYED[: len(kl)])


def test_a_fivefold_rise_is_found_within_eight_points_with_its_onset():
    record, finding = first_finding(KlBlowup(), with_decayed_learning_rate(STEADY + [0.5] * 20))

    assert 164 <= record.step <= 168
    assert finding.onset_step == 161
    assert finding.evidence["kl_nats_expected"] == pytest.approx(0.1)
    assert finding.evidence["median_kl_nats"] > 0.3


def test_it_is_critical_while_it_is_ten_times_its_trend():
    detector = KlBlowup()
    outputs = [
        update_detector(detector, record)
        for record in with_decayed_learning_rate(STEADY + [0.95] * 10 + [1.5] * 200)
    ]

    assert outputs[169].severity is None
    assert all(output.severity is Severity.CRITICAL for output in outputs[180:])
    assert "its trend predicts" in outputs[-1].summary


def test_steady_drift_is_no_blowup_at_any_value():
    """KL that grows with the square of the steps follows its trend."""
    kl = [0.8 * (t / 1000) ** 2 for t in range(1, 1001)]

    assert first_finding(KlBlowup(), steps(kl_ref=kl)) == (None, None)


def test_single_spikes_never_alert():
    """Two of every seven points are a thousand times too high."""
    assert first_finding(
        KlBlowup(), with_decayed_learning_rate((STEADY[:5] + [100.0] * 2) * 40)
    ) == (None, None)


def test_limits_apply_from_the_first_points_on():
    record, finding = first_finding(KlBlowup(), steps(kl_ref=[0.0] * 3 + [3.0] * 10))

    assert record.step == 6
    assert finding.onset_step == 4
    assert finding.severity is None
    assert finding.evidence["kl_nats_limit"] == 1.0


def test_far_over_the_limit_is_critical_at_once():
    _, finding = first_finding(KlBlowup(), steps(kl_ref=[0.0] * 3 + [30.0] * 10))

    assert finding.severity is Severity.CRITICAL


def test_a_run_that_begins_far_from_its_teacher_is_not_over_the_limit():
    assert first_finding(KlBlowup(), steps(kl_ref=[1.5] * 100)) == (None, None)


def test_a_run_that_begins_beyond_any_teacher_is_a_warning_and_critical_if_it_doubles():
    record, finding = first_finding(KlBlowup(), steps(kl_ref=[12.0] * 20))
    assert record.step == 5
    assert finding.severity is None

    detector = KlBlowup()
    last = [update_detector(detector, r) for r in steps(kl_ref=[12.0] * 5 + [25.0] * 5)]
    assert last[-1].severity is Severity.CRITICAL


def test_the_limit_of_a_sum_over_a_sequence_is_fifty_times_as_high():
    kl = [30.0 * (1 + t) / 400 for t in range(400)]
    summed = [replace(record, attributes={"kl_ref": "objective/kl"}) for record in steps(kl_ref=kl)]

    assert first_finding(KlBlowup(), summed) == (None, None)
    assert first_finding(KlBlowup(), steps(kl_ref=kl))[1] is not None


def test_the_kl_of_a_preference_run_is_a_sum_over_a_sequence():
    """KTO logs it under the key that other trainers use for a mean over tokens."""
    rows = RowConverter("run")
    logged = [{"step": t, "kl": 30.0 * (1 + t) / 400, "rewards/chosen": 1.0} for t in range(400)]

    assert first_finding(KlBlowup(), [rows.to_record(row) for row in logged]) == (None, None)


def test_a_finding_names_the_kl_estimator():
    kind = KlKind("ref", "k1", "sequence_sum")
    spoiled = steps(kl_ref=[1.0] * 3 + [300.0] * 10)
    labelled = [replace(record, attributes={"kl_ref.kind": kind.serialize()}) for record in spoiled]
    _, finding = first_finding(KlBlowup(), labelled)

    assert "300 nats per sequence" in finding.summary
    assert finding.evidence["kl_kind"] == "k1, sum over a sequence"
    assert finding.evidence["kl_nats_limit"] == 50.0


def test_a_kl_at_its_trainers_clamp_is_critical():
    """A value at the clamp can not exceed a limit above it."""
    clamped = list(steps(kl_ref=[0.0] * 3 + [9.9, 9.8, 10.0] * 4))
    labelled = [replace(record, attributes={"kl_ref": "actor/kl_loss"}) for record in clamped]

    assert first_finding(KlBlowup(), labelled)[1].severity is Severity.CRITICAL
    assert first_finding(KlBlowup(), clamped)[1].severity is None


def test_below_the_floor_ratios_are_ignored():
    kl = [1e-5] * 100 + [9e-3] * 100

    assert first_finding(KlBlowup(), with_decayed_learning_rate(kl)) == (None, None)


def test_a_level_reached_before_is_no_blowup():
    """A KL that returns to a previous level is no new extreme."""
    assert first_finding(
        KlBlowup(), with_decayed_learning_rate([0.5] * 40 + [0.1] * 200 + [0.45] * 30)
    ) == (None, None)


def test_it_clears_when_the_kl_is_back():
    detector = KlBlowup()
    outputs = [
        update_detector(detector, record)
        for record in with_decayed_learning_rate(STEADY + [0.8] * 20 + [0.1] * 40)
    ]

    assert isinstance(outputs[178], Finding)
    assert outputs[-16:] == [Clear()] * 16


def test_ignores_non_finite_values():
    spoiled = [x for kl in STEADY + [0.5] * 20 for x in (nan, kl)]
    record, _ = first_finding(KlBlowup(), steps(kl_ref=spoiled, learning_rate=[1.0] + [0.0] * 359))

    assert 328 <= record.step <= 336


def test_there_is_no_output_before_a_trend_is_known():
    detector = KlBlowup()
    outputs = [update_detector(detector, record) for record in steps(kl_ref=[0.1] * 31)]

    assert outputs == [None] * 12 + [Clear()] * 19
    assert 0.1 < outputs[-1].threshold <= 1.0


@pytest.mark.seeded
def test_a_severe_fault_at_point_thirty_is_found():
    """The trend is not fully known yet. Nine of ten runs are found within 130 points."""
    found = []
    # A rate of nine in ten needs more than eight runs.
    for seed in range(max(30, len(SEEDS))):
        run = rl_run(seed, "kl_blowup", "severe", onset=30)
        record, _ = first_finding(KlBlowup(), run.records())
        found.append(record is not None and 30 <= record.step <= 160)

    assert sum(found) >= 0.9 * len(found)


@pytest.mark.seeded
@pytest.mark.parametrize(("severity", "share"), [("moderate", 0.95), ("severe", 0.95)])
def test_detection_rates_match_the_docstring(severity, share):
    runs = [rl_run(seed, "kl_blowup", severity) for seed in SEEDS]
    found = [first_finding(KlBlowup(), run.records())[0] for run in runs]

    late = [r is not None and r.step >= run.onset for r, run in zip(found, runs, strict=True)]
    assert sum(late) >= share * len(runs)


@pytest.mark.seeded
def test_healthy_runs_have_no_warning():
    """Single values up to 60 times too high are info at most."""
    with_warning = [seed for seed in SEEDS if severities(rl_run(seed).records()) - {Severity.INFO}]

    assert with_warning == []


def severities(records):
    detector = KlBlowup()
    outputs = [update_detector(detector, record) for record in records]
    return {x.severity or KlBlowup.severity for x in outputs if isinstance(x, Finding)}


def test_over_the_limit_with_a_rising_reward_is_info():
    kl = [0.02 * t for t in range(1, 101)]
    reward = [min(1.0, t / 90) for t in range(100)]

    assert severities(steps(kl_ref=kl, reward=reward)) == {Severity.INFO}


def test_over_the_limit_without_a_gain_of_reward_is_a_warning():
    """KL is spent for reward: info while the reward has gained and kept its gain."""
    kl = [0.02 * t for t in range(1, 101)]
    rng = Random(1)
    flat = [0.5 + rng.gauss(0, 0.03) for _ in kl]
    fallen = [x if t < 60 else x - 0.4 for t, x in enumerate(flat)]
    rising = [x + 0.5 * min(1.0, t / 40) for t, x in enumerate(fallen)]

    assert severities(steps(kl_ref=kl, reward=flat)) == {Severity.WARNING}
    assert severities(steps(kl_ref=kl, reward=rising)) == {Severity.INFO, Severity.WARNING}
    assert severities(steps(kl_ref=kl)) == {Severity.WARNING}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.09, set()), (0.4, set()), (2.0, {Severity.INFO}), (50.0, {Severity.INFO})],
)
def test_a_single_value_far_out_is_info(value, expected):
    kl = [*STEADY[:80], value, *STEADY[:40]]

    assert severities(with_decayed_learning_rate(kl)) == expected


def test_the_settings_silence_every_path():
    detector = KlBlowup(ratio=1e9, limit=1e9, severe=1e9)
    records = with_decayed_learning_rate(STEADY + [50.0] * 40)

    assert first_finding(detector, records) == (None, None)


def test_little_evidence_is_noted_and_much_is_a_warning():
    rng = Random(2)
    kl = [0.1 * exp(rng.gauss(0, 0.3) + max(0, t - 200) * log(2) / 20) for t in range(290)]

    def findings(**settings):
        detector = KlBlowup(**settings)
        outputs = [update_detector(detector, r) for r in with_decayed_learning_rate(kl)]
        return {t: x for t, x in enumerate(outputs) if isinstance(x, Finding)}

    def begins(found):
        return min(found), min(t for t, x in found.items() if x.severity is None)

    found = findings()
    noted, sure = begins(found)
    assert noted < sure
    assert found[noted].severity is Severity.INFO
    # Each setting moves its own step.
    assert begins(findings(noted=7.0))[0] > noted
    assert begins(findings(noted=7.0))[1] == sure
    assert begins(findings(sure=14.0))[0] == noted
    assert begins(findings(sure=14.0))[1] > sure
    last = [*found.values()][-1]
    assert last.onset_range[0] <= last.onset_step <= last.onset_range[1]


def test_updates_that_leave_the_trust_region_are_found_without_a_reference():
    record, finding = first_finding(KlBlowup(), steps(kl_old=[0.02] * 40 + [0.8] * 10))

    assert (record.step, finding.onset_step) == (43, 41)
    assert finding.signal == "kl_old"
    assert finding.severity is None


def test_two_large_updates_or_the_kl_to_a_reference_are_no_lost_trust_region():
    assert first_finding(KlBlowup(), steps(kl_old=[0.02, 0.02, 0.02, 5.0, 5.0] * 20)) == (
        None,
        None,
    )
    kl_old = {"kl_old": [0.8] * 40}
    assert first_finding(KlBlowup(), steps(kl_ref=STEADY[:40], **kl_old)) == (None, None)
