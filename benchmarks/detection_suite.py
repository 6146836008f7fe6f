"""The synthetic runs for all evaluators, and the outcome per evaluator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from detection_evaluators import Evaluation, Evaluator, evaluate_with_engine
from detection_exact import EXACT, make_exact_run
from detection_factories import make_run
from detection_families import (
    FAMILIES,
    FAULTY,
    HEALTHY_LOSSES,
    HEALTHY_POLICIES,
    MEANS,
    make_family_run,
    make_run_of_means,
)
from detection_run import EARLY, FAULTS, REINFORCED, FullRun
from detection_score import Detections, FalseAlarms
from peers import evaluators as peer_evaluators
from support.synthetic_runs import SEVERITIES

HEALTHY_EXACT = "counters"
ONE_GRADE = {"loss_plateau", "step_stride", "checkpoint_cadence"}
"""Faults without severities; they count as severe."""


FAULTS_OF_MEANS = (
    "reward_collapse", "entropy_collapse", "length_explosion", "reward_zero_variance",
    "policy_collapse", "loss_divergence", "overfitting",
)  # fmt: skip
"""Faults that are also tested in logs of 40 to 60 lines."""


class Spec(NamedTuple):
    """What a run is made from; the same on every machine."""

    kind: str
    seed: int
    fault: str = ""
    severity: str = ""
    early: bool = False

    @property
    def fault_name(self) -> str:
        return f"{self.fault}{MEANS}" if self.kind.endswith(MEANS) else self.fault

    def make_run(self) -> FullRun:
        if self.kind == HEALTHY_EXACT:
            return make_exact_run(self.seed, self.fault, self.severity)
        if self.kind in FAMILIES:
            return make_family_run(self.kind, self.seed)
        if self.kind.endswith(MEANS):
            return make_run_of_means(self.kind, self.seed, self.fault, self.severity)
        return make_run(self.kind, self.seed, self.fault, self.severity, early=self.early)


@dataclass
class Outcome:
    """Of one evaluator: by kind of healthy run; by fault and severity; of faults at point 30."""

    false_alarms: dict[str, FalseAlarms] = field(default_factory=dict)
    detections: dict[str, dict[str, Detections]] = field(default_factory=dict)
    early: dict[str, Detections] = field(default_factory=dict)

    def add(self, spec: Spec, run: FullRun, evaluation: Evaluation) -> None:
        if not spec.early:
            self.false_alarms.setdefault(spec.kind, FalseAlarms()).add(run, evaluation)
        if spec.early:
            self.early.setdefault(spec.fault, Detections()).add(run, evaluation)
        elif spec.fault:
            grades = self.detections.setdefault(spec.fault_name, {})
            grades.setdefault(spec.severity, Detections()).add(run, evaluation)


def suite(seed: int, healthy: int, faulty: int) -> Iterator[Spec]:
    """The runs, with consecutive seeds from `seed`: no two runs share one."""
    seeds = iter(range(seed, seed + 1_000_000))
    for kind in ("rl", "sft"):
        yield from (Spec(kind, next(seeds)) for _ in range(healthy))
    yield from (Spec(HEALTHY_EXACT, next(seeds)) for _ in range(faulty))
    for fault in (*FAULTS, *EXACT):
        kind = HEALTHY_EXACT if fault in EXACT else "rl" if fault in REINFORCED else "sft"
        for severity in ("severe",) if fault in ONE_GRADE else SEVERITIES:
            yield from (Spec(kind, next(seeds), fault, severity) for _ in range(faulty))
    for fault in EARLY:
        kind = "rl" if fault in REINFORCED else "sft"
        yield from (Spec(kind, next(seeds), fault, "severe", early=True) for _ in range(faulty))
    for name in (*HEALTHY_POLICIES, *HEALTHY_LOSSES, f"rl{MEANS}", f"sft{MEANS}"):
        yield from (Spec(name, next(seeds)) for _ in range(max(2, healthy // 4)))
    for name in FAULTY:
        yield from (Spec(name, next(seeds), name, "severe") for _ in range(faulty))
    for fault in FAULTS_OF_MEANS:
        kind = ("rl" if fault in REINFORCED else "sft") + MEANS
        for severity in ("moderate", "severe"):
            yield from (Spec(kind, next(seeds), fault, severity) for _ in range(faulty // 2))


def select_evaluators(only: Iterable[str] = ()) -> dict[str, Evaluator]:
    """Sentinel and the available peers, or the named ones among them."""
    known = {"ours": evaluate_with_engine, **peer_evaluators()}
    return {name: evaluator for name, evaluator in known.items() if not only or name in only}


def evaluate_runs(
    specs: list[Spec], only: tuple[str, ...] = (), jobs: int = 1
) -> dict[str, Outcome]:
    """Run every evaluator on every run; the result does not depend on `jobs`."""
    outcomes: dict[str, Outcome] = {}
    tasks = [(spec, only) for spec in specs]
    if jobs == 1:
        _add_outcomes(outcomes, specs, map(_evaluate_spec, tasks))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            _add_outcomes(outcomes, specs, pool.map(_evaluate_spec, tasks, chunksize=8))
    return outcomes


def _add_outcomes(
    outcomes: dict[str, Outcome], specs: list[Spec], evaluations: Iterable[dict[str, Evaluation]]
) -> None:
    for spec, results in zip(specs, evaluations, strict=True):
        run = spec.make_run()
        for name, evaluation in results.items():
            outcomes.setdefault(name, Outcome()).add(spec, run, evaluation)


def _evaluate_spec(task: tuple[Spec, tuple[str, ...]]) -> dict[str, Evaluation]:
    spec, only = task
    records = list(spec.make_run().records())
    return {name: evaluator(records) for name, evaluator in select_evaluators(only).items()}
