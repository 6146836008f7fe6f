"""Matches alarms with faults and counts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log
from statistics import median, quantiles

from detection_causes import Diagnoses, right_causes
from detection_evaluators import Alarm, Evaluation
from detection_families import FAULTY
from detection_run import FullRun

NONE = "\N{EN DASH}"
EARLY_POINTS = 8
"""Points before the onset at which an alarm already counts: noise blurs the exact step."""

EQUIVALENT_DETECTORS = {
    "loss_spike": {"loss_divergence"},
    "loss_divergence": {"loss_spike"},
    "loss_plateau": {"loss_never_moved"},
    "grad_vanishing": {"loss_zero", "nan_or_inf"},
    "nan_or_inf": {"loss_zero"},
    "kl_blowup": {"kl_drift"},
    "entropy_collapse": {"reward_zero_variance"},
    "reward_zero_variance": {"entropy_collapse"},
    "length_explosion": {"truncation"},
    "step_stride": {"step_regression", "checkpoint_cadence"},
    "checkpoint_cadence": {"step_stride"},
    "policy_collapse": {
        "kl_blowup", "kl_drift", "reward_collapse", "entropy_collapse", "length_explosion",
        "truncation", "repetition", "reward_hacking",
    },
}  # fmt: skip
"""Detectors that count for a fault beside the one of the same name."""

ROOTS = {"kl_blowup", "kl_drift", "reward_hacking"}
"""Detectors of the KL, where a policy collapse begins in these runs."""


@dataclass
class FalseAlarms:
    """Alarms at healthy points: in healthy runs, and before a fault."""

    points: int = 0
    warned: int = 0
    critical: int = 0
    runs: int = 0
    runs_with_alarms: int = 0
    by_name: dict[str, int] = field(default_factory=dict)
    plateaus: int = 0
    wrong_plateaus: int = 0
    where: list[str] = field(default_factory=list)
    diagnoses: Diagnoses = field(default_factory=Diagnoses)

    @property
    def rate(self) -> float:
        """False alarms per 10,000 healthy points."""
        return 1e4 * self.warned / max(1, self.points)

    def add(self, run: FullRun, evaluation: Evaluation) -> None:
        """Count all alarms before the onset."""
        end = len(run) if run.onset is None else max(0, run.onset - EARLY_POINTS)
        false = [
            a
            for a in evaluation.warned
            if _point(run, a.warned) < end
            and a.name not in run.true_statements
            and not (a.name == "loss_plateau" and is_true_plateau(run, a))
        ]
        self.points, self.runs = self.points + end, self.runs + 1
        self.warned, self.runs_with_alarms = (
            self.warned + len(false),
            self.runs_with_alarms + bool(false),
        )
        self.critical += sum(alarm.critical is not None for alarm in false)
        if run.onset is None:
            self.diagnoses.add(evaluation.cases, set())
        for alarm in evaluation.alarms if len(run.truth) else ():
            if alarm.name == "loss_plateau" and _point(run, alarm.opened) < end:
                self.plateaus += 1
                self.wrong_plateaus += not is_true_plateau(run, alarm)
        for alarm in false:
            self.by_name[alarm.name] = self.by_name.get(alarm.name, 0) + 1
            severity = "warning" if alarm.critical is None else "critical"
            at = f"at point {_point(run, alarm.warned)} of {len(run)}"
            fault = f", before {run.fault}" if run.fault else ""
            self.where.append(f"seed {run.seed}{fault}: {alarm.name}, {severity}, {at}")


@dataclass
class Detections:
    """Detections over runs with one fault; delays in logged points."""

    runs: int = 0
    warned: list[int] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    notifications: list[int] = field(default_factory=list)
    cases: list[int] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)
    diagnoses: Diagnoses = field(default_factory=Diagnoses)
    leads: list[float] = field(default_factory=list)
    roots: list[bool] = field(default_factory=list)
    names: list[bool] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return len(self.warned) / max(1, self.runs)

    def add(self, run: FullRun, evaluation: Evaluation) -> None:
        onset = run.onset or 0
        expected = responsible_detectors(run.fault)
        matching = [alarm for alarm in evaluation.alarms if alarm.name in expected]
        self.runs += 1
        warned = _first_point(run, [a.warned for a in matching], onset)
        opened = _first_point(
            run, [a.opened for a in matching] + [a.warned for a in matching], onset
        )
        self.warned += [max(0, warned - onset)] if warned is not None else []
        self.opened += [max(0, opened - onset)] if opened is not None else []
        self.missed += [run.seed] if warned is None else []
        warnings = [a for a in evaluation.warned if _point(run, a.warned) >= onset - EARLY_POINTS]
        cases = [
            case for case in evaluation.cases if _point(run, case.step) >= onset - EARLY_POINTS
        ]
        self.diagnoses.add(cases, right_causes(run.fault))
        if warned is None:
            return
        self.notifications.append(len(warnings))
        self.cases.append(len(cases))
        cause = next((case.cause for case in cases if case.cause), "")
        self.causes[cause] = self.causes.get(cause, 0) + 1
        # In a log of means both can be in one line.
        if run.cliff is not None and run.cliff > onset:
            self.leads.append((run.cliff - warned) / (run.cliff - onset))
            self.roots.append(any(case.root in ROOTS for case in cases))
            self.names.append(cause == run.fault)


def responsible_detectors(fault: str) -> set[str]:
    """The detectors whose alarms find a fault."""
    if fault in FAULTY:
        return set(FAULTY[fault].detectors)
    return EQUIVALENT_DETECTORS.get(fault, set()) | {fault}


def _point(run: FullRun, step: int | None) -> int:
    return 0 if step is None else run.point(step)


def _first_point(run: FullRun, steps: Iterable[int | None], onset: int) -> int | None:
    points = [_point(run, step) for step in steps if step is not None]
    return min((p for p in points if onset - EARLY_POINTS <= p < run.ends), default=None)


def is_true_plateau(run: FullRun, alarm: Alarm) -> bool:
    """Whether a plateau alarm is true: without noise the loss fell by less than 2 % there."""
    if not len(run.truth):
        return False
    point = min(_point(run, alarm.warned or alarm.opened), len(run.truth) - 1)
    return bool(log(run.truth[max(0, point - alarm.window)] / run.truth[point]) <= 0.02)


def format_delays(delays: list[int]) -> str:
    """Median and 90th percentile."""
    if len(delays) < 2:
        return f"{delays[0]}" if delays else NONE
    return f"{median(delays):.0f} / {quantiles(delays, n=10, method='inclusive')[-1]:.0f}"
