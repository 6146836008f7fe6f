"""What the trajectories of alike healthy runs add to the detection of faults of the KL.

    python benchmarks/baseline_memory.py [--families 40] [--siblings 4] [--seed 9700000]

Each family has the settings of one project. Its first runs are healthy and stored; a healthy and
three faulty runs of each kind are then evaluated by the whole engine, without and with them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from detection_alike import make_alike_run
from detection_run import FullRun
from support.synthetic_runs import SEVERITIES

from sentinel.config.settings import Settings
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.model.record import Event
from sentinel.pipeline.pipeline import build
from sentinel.store.baselines import BaselineMemory, BaselineStore

FAULTS = ("kl_blowup", "policy_collapse")
WARNINGS = {"kl_blowup", "reward_collapse", "entropy_collapse", "length_explosion"}
REWARD_LAG = {"mild": 80, "moderate": 40, "severe": 12}
"""Points from the onset of a policy collapse to the fall of its reward."""


def evaluate(run: FullRun, name: str, directory: Path) -> list[Incident]:
    """The incidents at warning, with the memory in `directory`, which a healthy run joins."""
    pipeline = build(Settings())
    memory = BaselineMemory(name, pipeline.engine, BaselineStore(directory))
    records = list(run.records())
    start = replace(records[0], event=Event.START, values={}, attributes={"project": "family"})
    outcome = {"outcome": "finished"}
    stop = replace(records[-1], event=Event.STOP, values={}, attributes=outcome)
    opened = []
    for record in (start, *records, stop):
        result = pipeline.engine.process(replace(record, run=name))
        memory.update(result)
        opened += [n.incident for n in result.notifications]
    return [each for each in opened if each.severity is not Severity.INFO]


def main() -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=int, default=40)
    parser.add_argument("--siblings", type=int, default=4)
    parser.add_argument("--seed", type=int, default=9_700_000)
    arguments = parser.parse_args()
    delays: dict[tuple[str, str, bool], list[float | None]] = defaultdict(list)
    false = {True: 0, False: 0}
    points = 0
    for seed in range(arguments.seed, arguments.seed + arguments.families):
        with tempfile.TemporaryDirectory() as folder:
            known, empty = Path(folder, "known"), Path(folder, "empty")
            for index in range(arguments.siblings):
                evaluate(make_alike_run(seed, index), f"run{index}", known)
            healthy = make_alike_run(seed, 100)
            points += len(healthy)
            for with_memory, directory in ((False, empty), (True, known)):
                for fault in FAULTS:
                    for severity in SEVERITIES:
                        run = make_alike_run(seed, 101, fault, severity)
                        opened = evaluate(run, "faulty", directory)
                        delays[fault, severity, with_memory].append(_delay(run, opened))
            for with_memory, directory in ((False, empty), (True, known)):
                false[with_memory] += len(evaluate(healthy, "healthy", directory))
    print(f"{arguments.families} families, {points} healthy points")
    for with_memory in (False, True):
        print(f"memory {with_memory}: {false[with_memory]} false alarms")
    for (fault, severity, with_memory), values in sorted(delays.items()):
        found = [value for value in values if value is not None]
        lag = REWARD_LAG[severity]
        lead = f", lead {1 - median(found) / lag:+.0%}" if fault == "policy_collapse" else ""
        print(
            f"{fault} {severity}, memory {with_memory}: {len(found)} of {len(values)}, "
            f"median delay {median(found):g}{lead}"
        )


def _delay(run: FullRun, opened: list[Incident]) -> float | None:
    onset = run.onset or 0
    steps = [
        (incident.opened_step - run.every) / run.every - onset
        for incident in opened
        if incident.key.detector in WARNINGS
    ]
    return next((max(0.0, at) for at in sorted(steps) if -8 <= at <= 150), None)


if __name__ == "__main__":
    main()
