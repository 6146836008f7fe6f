"""The synthetic runs that everybody is shown, and what became of them by judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from detection_exact import EXACT, counted
from detection_judges import Judge, Judged, ours
from detection_made import made
from detection_run import EARLY, FAULTS, REINFORCED, Whole
from detection_score import Calm, Found
from peers import judges as of_peers
from support.synthetic_runs import SEVERITIES

HEALTHY_EXACT = "counters"
ONE_GRADE = {"loss_plateau", "step_stride", "checkpoint_cadence"}
"""Faults that are there or not; they count as severe."""


class Spec(NamedTuple):
    """What a run is made from: the same everywhere."""

    kind: str
    seed: int
    fault: str = ""
    severity: str = ""
    early: bool = False

    def made(self) -> Whole:
        if self.kind == HEALTHY_EXACT:
            return counted(self.seed, self.fault, self.severity)
        return made(self.kind, self.seed, self.fault, self.severity, early=self.early)


@dataclass
class Outcome:
    """Of one judge: by kind of healthy run; by fault and severity; of faults at point 30."""

    calm: dict[str, Calm] = field(default_factory=dict)
    found: dict[str, dict[str, Found]] = field(default_factory=dict)
    early: dict[str, Found] = field(default_factory=dict)

    def add(self, spec: Spec, run: Whole, judged: Judged) -> None:
        if not spec.early:
            self.calm.setdefault(spec.kind, Calm()).add(run, judged)
        if spec.early:
            self.early.setdefault(spec.fault, Found()).add(run, judged)
        elif spec.fault:
            grades = self.found.setdefault(spec.fault, {})
            grades.setdefault(spec.severity, Found()).add(run, judged)


def suite(seed: int, healthy: int, faulty: int) -> Iterator[Spec]:
    """Seeds run on from `seed`: no two runs have the same."""
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


def everybody(only: Iterable[str] = ()) -> dict[str, Judge]:
    """Ours and the peers that are here, or those of them that are named."""
    known = {"ours": ours, **of_peers()}
    return {name: judge for name, judge in known.items() if not only or name in only}


def judged(specs: list[Spec], only: tuple[str, ...] = (), jobs: int = 1) -> dict[str, Outcome]:
    """Show every run to every judge; the same whatever the number of `jobs`."""
    outcomes: dict[str, Outcome] = {}
    work = [(spec, only) for spec in specs]
    if jobs == 1:
        _count(outcomes, specs, map(_verdicts, work))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            _count(outcomes, specs, pool.map(_verdicts, work, chunksize=8))
    return outcomes


def _count(
    outcomes: dict[str, Outcome], specs: list[Spec], verdicts: Iterable[dict[str, Judged]]
) -> None:
    for spec, said in zip(specs, verdicts, strict=True):
        run = spec.made()
        for name, judgement in said.items():
            outcomes.setdefault(name, Outcome()).add(spec, run, judgement)


def _verdicts(work: tuple[Spec, tuple[str, ...]]) -> dict[str, Judged]:
    spec, only = work
    records = list(spec.made().records())
    return {name: judge(records) for name, judge in everybody(only).items()}
