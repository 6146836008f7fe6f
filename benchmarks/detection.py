"""How often the detectors are wrong on synthetic runs, and how soon they are right.

    python benchmarks/detection.py [--runs 100] [--seed 20000]

Healthy runs give false alarms per 10,000 points, at warning or worse. Faulty ones give, for each
severity, the share found, then the median and 90th percentile of points from onset to page. Healthy
runs may stand still too: there a plateau is false where the loss without its noise fell over 2 %
in the window spoken of. The seeds are not those the defaults were chosen on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from policy_runs import policy_run
from runs import SEVERITIES, Run, rl_run, sft_run

from sentinel.detectors.entropy_collapse import EntropyCollapse
from sentinel.detectors.kl_blowup import KlBlowup
from sentinel.detectors.length_collapse import LengthCollapse
from sentinel.detectors.length_explosion import LengthExplosion
from sentinel.detectors.loss_plateau import LossPlateau
from sentinel.detectors.reward_collapse import RewardCollapse
from sentinel.engine import Engine
from sentinel.finding import Detector, Severity
from sentinel.incident import Page, Reason

POLICY = {
    "entropy_collapse": EntropyCollapse,
    "length_explosion": LengthExplosion,
    "length_collapse": LengthCollapse,
}
"""Detectors that are shown runs with entropy and length."""

FAULTY = 50_000
"""Seeds of faulty runs begin this far above those of healthy ones."""


@dataclass
class Tally:
    """What became of a set of runs."""

    points: int = 0
    alarms: int = 0
    critical: int = 0
    delays: list[int] = field(default_factory=list)
    runs: int = 0
    early: int = 0


def pages(name: str, make: Callable[[], Detector], run: Run) -> list[Page]:
    """Pages at warning or worse, through the engine itself."""
    engine = Engine({name: make})
    due = [page for record in run.records() for page in engine.feed(record).pages]
    loud = [p for p in due if p.incident.severity is not Severity.INFO]
    return [page for page in loud if page.reason is not Reason.RESOLVED]


def is_true(page: Page, run: Run) -> bool:
    """Whether a plateau in a healthy run is one."""
    points = page.incident.finding.evidence.get("points")
    if not isinstance(points, float) or not len(run.truth):
        return False
    now = page.step // run.every - 1
    return bool(log(run.truth[max(0, now - int(points))] / run.truth[now]) <= 0.02)


def healthy(name: str, make: Callable[[], Detector], runs: list[Run]) -> Tally:
    """Count pages, each of which is a false one unless the run stood still."""
    tally = Tally()
    for run in runs:
        due = [page for page in pages(name, make, run) if not is_true(page, run)]
        tally.points += len(run)
        tally.alarms += len({page.incident.name for page in due})
        tally.critical += sum(page.incident.severity is Severity.CRITICAL for page in due)
    return tally


def faulty(name: str, make: Callable[[], Detector], runs: list[Run]) -> Tally:
    """Take the first page at or after the onset for the detection."""
    tally = Tally(runs=len(runs))
    for run in runs:
        onset = run.onset or 0
        due = [page.step for page in pages(name, make, run)]
        tally.early += any(step < onset for step in due)
        found = [step for step in due if step >= onset]
        if found:
            tally.delays.append((found[0] - onset) // run.every)
    return tally


def cell(tally: Tally) -> str:
    """Share found, then median and 90th percentile of the delay."""
    share = f"{100 * len(tally.delays) / tally.runs:.0f} %"
    if len(tally.delays) < 2:
        return share
    late = quantiles(tally.delays, n=10)[-1]
    return f"{share}  {median(tally.delays):.0f} / {late:.0f}"


def made(name: str, seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """A run of the kind that this detector judges."""
    if name == "loss_plateau":
        return sft_run(seed, fault)
    return (policy_run if name in POLICY else rl_run)(seed, fault, severity)


def row(table: Table, name: str, make: Callable[[], Detector], count: int, seed: int) -> None:
    """Measure one detector into one row."""
    rl = name != "loss_plateau"
    sound = [made(name, seed + i) for i in range(count)]
    began = time.process_time()
    calm = healthy(name, make, sound)
    spent = time.process_time() - began
    cells = []
    for severity in SEVERITIES:
        seeds = range(seed + FAULTY, seed + FAULTY + count)
        bad = [made(name, s, name, severity) for s in seeds]
        cells.append(cell(faulty(name, make, bad)) if rl or severity == "severe" else "")
    rate = f"{1e4 * calm.alarms / calm.points:.2f} ({calm.alarms}, {calm.critical} critical)"
    table.add_row(name, f"{calm.points:,}", rate, *cells, f"{1e6 * spent / calm.points:.0f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20_000)
    args = parser.parse_args()
    table = Table("", "healthy points", "false per 10k", *SEVERITIES, "us per record")
    for name, make in (
        ("kl_blowup", KlBlowup),
        ("reward_collapse", RewardCollapse),
        ("loss_plateau", LossPlateau),
        *POLICY.items(),
    ):
        row(table, name, make, args.runs, args.seed)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
