"""The engine updates each baseline once per record and hands it to the detectors that take it."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Record
from sentinel.pipeline.engine import Engine
from sentinel.pipeline.run_baselines import RunBaselines
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.stats.baseline import TrajectoryPrior
from sentinel.testing import steps


@dataclass
class Follower:
    """Takes the baseline of the KL."""

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    baselines: ClassVar[frozenset[str]] = frozenset({"kl_ref"})
    signal: ClassVar[str] = "kl_ref"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = "None."

    def update(self, record, baselines):
        assert record.values["loss"] == 1.0
        self.count = baselines.by_signal["kl_ref"].count
        return Clear(threshold=2.5)


def test_two_detectors_share_one_baseline():
    engine = Engine({"one": Follower, "two": Follower})
    results = [engine.process(record) for record in steps(kl_ref=[0.1] * 20, loss=[1.0] * 20)]

    assert engine.baselines["run"].by_signal["kl_ref"].count == 20
    assert [detector.count for detector in engine.detectors.values()] == [20, 20]
    assert results[-1].thresholds == {"one": ("kl_ref", 2.5), "two": ("kl_ref", 2.5)}


def test_a_record_without_the_signal_leaves_its_baseline():
    engine = Engine({"one": Follower})
    for record in steps(kl_ref=[0.1, None, 0.2, None], loss=[1.0] * 4):
        engine.process(record)

    assert engine.detector("run", "one").count == 2


def test_a_signal_that_no_baseline_exists_for_is_none():
    class Other(Follower):
        baselines: ClassVar[frozenset[str]] = frozenset({"loss", "epoch"})

        def update(self, record, baselines):
            self.epoch = baselines.get("epoch")
            return Clear()

    engine = Engine({"other": Other})
    for record in steps(loss=[1.0] * 3, epoch=[0.1, 0.2, 0.3]):
        engine.process(record)

    assert engine.detector("run", "other").epoch is None
    assert not engine.error_counts


def test_non_finite_values_and_steps_that_do_not_learn_are_left_out():
    baselines = RunBaselines()
    for record in steps(kl_ref=[0.1, float("nan"), 0.2], learning_rate=[0.0, 1e-6, 1e-6]):
        by_signal = baselines.update(record, {"kl_ref"}).by_signal

    assert by_signal["kl_ref"].count == 1


def test_a_kl_summed_over_a_sequence_has_its_own_unit():
    baselines = RunBaselines()
    for record in steps(kl_ref=[5.0] * 200):
        summed = replace(record, attributes={"kl_ref": "objective/kl"})
        baseline = baselines.update(summed, {"kl_ref"}).by_signal["kl_ref"]

    assert baseline.expected(baseline.rise) == pytest.approx(5.0, rel=0.1)
    assert baseline.threshold(baseline.rise, 9.0) > 5.0


def test_they_continue_from_a_snapshot():
    original, restored = RunBaselines(), RunBaselines()
    for at, record in enumerate(steps(kl_ref=[0.1 + 0.01 * (t % 7) for t in range(200)])):
        original.update(record, {"kl_ref"})
        restored.update(record, {"kl_ref"})
        if at % 9 == 0:
            restored = deserialize(serialize(restored))

    assert restored == original


def test_the_trajectory_of_alike_runs_replaces_the_general_prior():
    prior = TrajectoryPrior(sigma=0.2, weight=64, course=((0.0, -5.0), (5.0, -3.0)))
    baselines = RunBaselines(priors={"kl_ref": prior})
    for record in steps(kl_ref=[0.01]):
        baselines.update(record, {"kl_ref"})

    assert baselines.by_signal["kl_ref"].prior is prior
    assert prior.course_at(2.5) == pytest.approx(-4.0)
    assert prior.course_at(10.0) == pytest.approx(-1.0)


def test_a_detector_without_baselines_gets_the_record_only():
    @dataclass
    class Plain:
        needs: ClassVar[frozenset[str]] = frozenset({"loss"})
        signal: ClassVar[str] = "loss"
        severity: ClassVar[Severity] = Severity.INFO
        remedy: ClassVar[str] = "None."

        def update(self, record: Record):
            return Clear()

    engine = Engine({"plain": Plain})
    for record in steps(loss=[1.0] * 3):
        engine.process(record)

    assert engine.error_counts == {}
    assert engine.baselines == {}
