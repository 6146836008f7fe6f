"""What became of runs: alarms matched with faults, and counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log
from statistics import median, quantiles

from detection_judges import Alarm, Judged
from detection_run import Whole

NONE = "\N{EN DASH}"
BEFORE = 8
"""Points before the onset from which on an alarm is an answer: noise knows no exact step."""

ANSWERS = {
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
"""Detectors that answer for a fault beside the one that is called like it."""

ROOTS = {"kl_blowup", "kl_drift", "reward_hacking"}
"""Detectors of the KL, with which a policy collapse begins here."""


@dataclass
class Calm:
    """What was said of healthy points: those of healthy runs, and those before a fault."""

    points: int = 0
    told: int = 0
    critical: int = 0
    runs: int = 0
    loud_runs: int = 0
    by_name: dict[str, int] = field(default_factory=dict)
    wrong_plateaus: int = 0

    @property
    def rate(self) -> float:
        """False alarms per 10,000 healthy points."""
        return 1e4 * self.told / max(1, self.points)

    def add(self, run: Whole, judged: Judged) -> None:
        """Count all that was told before anything was wrong."""
        end = len(run) if run.onset is None else max(0, run.onset - BEFORE)
        false = [a for a in judged.told if _point(run, a.told) < end and not stands(run, a)]
        self.points, self.runs = self.points + end, self.runs + 1
        self.told, self.loud_runs = self.told + len(false), self.loud_runs + bool(false)
        self.critical += sum(alarm.critical is not None for alarm in false)
        for alarm in false:
            self.by_name[alarm.name] = self.by_name.get(alarm.name, 0) + 1
            self.wrong_plateaus += alarm.name == "loss_plateau"


@dataclass
class Found:
    """How runs with one fault were answered; delays in logged points."""

    runs: int = 0
    told: list[int] = field(default_factory=list)
    noted: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    cases: list[int] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)
    leads: list[float] = field(default_factory=list)
    roots: list[bool] = field(default_factory=list)
    names: list[bool] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return len(self.told) / max(1, self.runs)

    def add(self, run: Whole, judged: Judged) -> None:
        onset = run.onset or 0
        right = ANSWERS.get(run.fault, set()) | {run.fault}
        fit = [alarm for alarm in judged.alarms if alarm.name in right]
        self.runs += 1
        told = _first(run, [a.told for a in fit], onset)
        noted = _first(run, [a.noted for a in fit] + [a.told for a in fit], onset)
        self.told += [max(0, told - onset)] if told is not None else []
        self.noted += [max(0, noted - onset)] if noted is not None else []
        self.missed += [run.seed] if told is None else []
        due = [a for a in judged.told if _point(run, a.told) >= onset - BEFORE]
        if told is None:
            return
        self.pages.append(len(due))
        cases = [case for case in judged.cases if _point(run, case.step) >= onset - BEFORE]
        self.cases.append(len(cases))
        cause = next((case.cause for case in cases if case.cause), "")
        self.causes[cause] = self.causes.get(cause, 0) + 1
        if run.cliff is not None:
            self.leads.append((run.cliff - told) / (run.cliff - onset))
            self.roots.append(any(case.root in ROOTS for case in cases))
            self.names.append(cause == run.fault)


def _point(run: Whole, step: int | None) -> int:
    return 0 if step is None else run.point(step)


def _first(run: Whole, steps: Iterable[int | None], onset: int) -> int | None:
    points = [_point(run, step) for step in steps if step is not None]
    return min((p for p in points if onset - BEFORE <= p < run.ends), default=None)


def stands(run: Whole, alarm: Alarm) -> bool:
    """Whether an alarm of a plateau is true: without its noise the loss fell under 2 % there."""
    if alarm.name != "loss_plateau" or not len(run.truth):
        return False
    now = min(_point(run, alarm.told), len(run.truth) - 1)
    return bool(log(run.truth[max(0, now - alarm.window)] / run.truth[now]) <= 0.02)


def late(delays: list[int]) -> str:
    """Median and 90th percentile."""
    if len(delays) < 2:
        return f"{delays[0]}" if delays else NONE
    return f"{median(delays):.0f} / {quantiles(delays, n=10, method='inclusive')[-1]:.0f}"
