"""What `sentinel backtest` recommends for families of runs, measured on the runs left out.

    python benchmarks/backtest.py [--families 10] [--healthy 54] [--seed 9900000] [--jobs 2]

Each family has the settings of one project: healthy runs, and six with a collapse of the entropy or
an explosion of the length, of each severity, with known onsets. The current settings are far too
sensitive. For each run the settings are those that are recommended from all other runs; a fault is
found if something is sent at its onset or later.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from detection_alike import make_alike_run
from detection_run import FullRun
from support.synthetic_runs import SEVERITIES

from sentinel.backtest.backtest import Backtest, run_backtest
from sentinel.backtest.recommendation import false_rate, recommend
from sentinel.backtest.run_sources import find_runs
from sentinel.backtest.variants import make_variants
from sentinel.pipeline.parallel import available_cores

BEGIN, SECONDS_PER_DAY = 1.76e9, 86_400.0
BUDGET = 0.1
SENSITIVE = {"SENTINEL_DETECTORS__ENTROPY_COLLAPSE__SHARE": "0.8"}
GRID = "detectors.entropy_collapse.share=0.4,0.2,0.15"
"""The last value is the default."""
FAULTS = ("entropy_collapse", "length_explosion")


class Family(NamedTuple):
    """What was measured of a family."""

    recommended: str
    false_now: float
    false: float
    found_now: int
    found: int
    faults: int


def write_log(path: Path, run: FullRun) -> None:
    """The steps of a run that lasts a day."""
    seconds = SECONDS_PER_DAY / len(run)
    names = [name for name in run.series if name not in {"sample_repetition", "eval_loss"}]
    with path.open("w") as file:
        for at in range(run.ends):
            row = {"step": (at + 1) * run.every, "time": BEGIN + seconds * at}
            row |= {name: float(run.series[name][at]) for name in names}
            file.write(json.dumps(row) + "\n")


def write_family(
    folder: Path, seed: int, healthy: int, severities: Sequence[str]
) -> dict[str, int]:
    """Write the logs of a family; returns the step of the onset of each fault by its run."""
    for index in range(healthy):
        write_log(folder / f"healthy-{index}.jsonl", make_alike_run(seed, index))
    onsets = {}
    for place, (fault, severity) in enumerate(product(FAULTS, severities)):
        run = make_alike_run(seed, 1000 + place, fault, severity)
        name = f"{fault}-{severity}"
        write_log(folder / f"{name}.jsonl", run)
        onsets[name] = ((run.onset or 0) + 1) * run.every
    return onsets


def is_found(backtest: Backtest, place: int, variant: int, onset: int) -> bool:
    """Whether a variant notifies of the fault of a run."""
    sent = backtest.runs[place].findings[variant].notifications
    return any(each.step >= onset for each in sent)


def measure(seed: int, arguments: argparse.Namespace) -> Family:
    """Write a family, choose settings without each run, and count on that."""
    with TemporaryDirectory() as scratch:
        onsets = write_family(Path(scratch), seed, arguments.healthy, arguments.severities)
        found = find_runs([scratch], now=0.0)
        names = {run.name for run in found.runs} - onsets.keys()
        variants = make_variants((), [GRID] * arguments.grid, SENSITIVE)
        backtest = run_backtest(found, variants, healthy=names, jobs=arguments.jobs)
    made = recommend(backtest, BUDGET)
    faults = [(place, run.name) for place, run in enumerate(backtest.runs) if run.name in onsets]
    choices = made.left_out.choices if made.left_out else (0,) * len(backtest.runs)
    now = false_rate(backtest.runs, 0).per_day
    return Family(
        "none" if made.variant is None else _values(variants[made.variant].assignments),
        now,
        made.left_out.false.per_day if made.left_out else now,
        sum(is_found(backtest, place, 0, onsets[name]) for place, name in faults),
        sum(is_found(backtest, place, choices[place], onsets[name]) for place, name in faults),
        len(faults),
    )


def _values(assignments: Sequence[str]) -> str:
    """The values of the settings; "current" without any."""
    return ", ".join(each.rpartition("=")[2] for each in assignments) or "current"


def main() -> None:
    """Measure each family and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=int, default=10)
    parser.add_argument("--healthy", type=int, default=54, help="healthy runs of a family")
    parser.add_argument("--severities", nargs="+", choices=SEVERITIES, default=SEVERITIES)
    parser.add_argument("--grid", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=9_900_000)
    parser.add_argument("--jobs", type=int, default=available_cores())
    arguments = parser.parse_args()
    print("| family | share | false per day, now | left out | found, now | left out |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    families = []
    for seed in range(arguments.seed, arguments.seed + arguments.families):
        family = measure(seed, arguments)
        families.append(family)
        print(
            f"| {seed} | {family.recommended} | {family.false_now:.2g} | {family.false:.2g} "
            f"| {family.found_now} of {family.faults} | {family.found} of {family.faults} |",
            flush=True,
        )
    within = sum(each.recommended != "none" and each.false <= BUDGET for each in families)
    lost = sum(each.faults - each.found for each in families)
    count = sum(each.faults for each in families)
    print(f"\nWithin the budget of {BUDGET:g} in {within} of {len(families)} families.")
    print(f"Faults not found in the runs left out: {lost} of {count}.")


if __name__ == "__main__":
    main()
