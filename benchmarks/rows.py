"""Rows behind a spike: how often a planted bad row is named, and what that costs a step.

    python benchmarks/rows.py [--trainings 40] [--jobs 2] [--cost] [--instructions]

Trains small models in processes of their own, with an agent, in which one row of the data set is
bad: its inputs are a thousand times as large, or NaN. The loops differ: with workers, accumulation,
evaluations between steps, the loader of Accelerate, and two ranks with a DistributedSampler. A row
is named if it is stored with an incident of its step; it is first if the message names it first.

`--cost` measures the processor time of the training thread in the code that notes rows, at a step
of about 10 ms, as medians over trainings. `--instructions` counts the user instructions of the same
training with and without it under valgrind, which do not depend on the load of the machine. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from instructions import count_between_markers, start_counting
from page_tables import rows as table
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

import sentinel
from sentinel.client.capture.drawn_rows import DrawnRows
from sentinel.store.database import connect_read_only
from sentinel.store.incident_rows import load_incident_rows
from sentinel.transport.paths import AGENT_LOCK, is_agent_running

KINDS = ("plain", "workers", "accumulation", "evaluation", "accelerate", "two ranks")
FAULTS = ("scaled", "nan")
EXAMPLES, FEATURES, BATCH = 1600, 16, 8
STEP_SECONDS = 0.01
MAX_AGENT_SECONDS = 120.0
WARMUP_STEPS = 20
NOTES = ("on_draw", "on_batch", "before_backward", "end_step")


class Examples(Dataset[tuple[torch.Tensor, int]]):
    """Examples of two classes, one of which is bad."""

    def __init__(self, bad: int, fault: str) -> None:
        self.bad, self.factor = bad, 1e3 if fault == "scaled" else float("nan")

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        inputs = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))
        label = int(inputs[0] > 0)
        if index == self.bad:
            return -inputs * self.factor, label
        return inputs, label


def train(kind: str, fault: str, seed: int) -> None:
    """Train over half of the steps' rows before the bad one is drawn; the order is known."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(seed)).tolist()
    data, accumulation = Examples(bad_row(seed), fault), 4 if kind == "accumulation" else 1
    model: nn.Module = nn.Linear(FEATURES, 2)
    sampler: Any = order
    if kind == "two ranks":
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(data, seed=seed)
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.05)
    workers = 2 if kind in {"workers", "two ranks"} else 0
    loader: Any = DataLoader(data, BATCH, sampler=sampler, num_workers=workers)
    if kind == "accelerate":
        from accelerate import Accelerator

        model, optimizer, loader = Accelerator(cpu=True).prepare(model, optimizer, loader)
    good = [index for index in range(4 * BATCH) if index != data.bad]
    held_out = DataLoader(Subset(data, good), BATCH)
    with sentinel.monitor(run=f"rows-{seed}"):
        for number, (inputs, labels) in enumerate(loader, 1):
            nn.functional.cross_entropy(model(inputs), labels).backward()
            if number % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(STEP_SECONDS)
            if kind == "evaluation" and number % 10 == 0:
                model.eval()
                for examples, _ in held_out:
                    with torch.no_grad():
                        model(examples)
                model.train()


def bad_row(seed: int) -> int:
    """A row that is drawn late in the order of that seed, also by a DistributedSampler."""
    order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(seed)).tolist()
    return int(order[EXAMPLES * 3 // 4 + seed % BATCH])


def outcome(kind: str, fault: str, seed: int) -> dict[str, bool]:
    """Whether an incident opened, has the bad row, and names it, as the first one."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "SENTINEL_HOME": f"{folder}/home",
            "SENTINEL_RUNTIME_DIR": f"{folder}/shared",
            "SENTINEL_LINGER_SECONDS": "0",
            "SENTINEL_BASELINES": "false",
            "OMP_NUM_THREADS": "1",
        }
        launch = [sys.executable]
        if kind == "two ranks":
            launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run(
            [*launch, __file__, "--child", kind, fault, str(seed)],
            env=environ,
            check=True,
            capture_output=True,
        )
        (database,) = await_end(Path(folder))
        with closing(connect_read_only(database)) as connection:
            names = [name for (name,) in connection.execute("select name from incident")]
            found = load_incident_rows(connection, names)
    row = bad_row(seed)
    of_step = [each for incident in found.values() for each in incident.of_step]
    holding = [each for each in of_step if row in each.rows]
    firsts = [each.of_step[0] for each in found.values() if each.ranks]
    result = {
        "an incident": bool(found),
        "row stored": bool(holding),
        "in the message": any(f" {row}" in each.text for each in found.values()),
        "first in the message": any(each.top and each.top[0][0] == row for each in firsts),
    }
    print(json.dumps({"kind": kind, "fault": fault, "seed": seed, **result}), file=sys.stderr)
    return result


def await_end(home: Path) -> list[Path]:
    """The database of the only run, once its agent has ended."""
    deadline = time.monotonic() + MAX_AGENT_SECONDS
    while time.monotonic() < deadline:
        found = [*home.glob("home/runs/*/*.db")]
        if found and not any(
            is_agent_running(each.parent) for each in home.glob(f"**/{AGENT_LOCK}")
        ):
            return found
        time.sleep(0.2)
    raise TimeoutError("the agent does not end")


def named_shares(trainings: int, jobs: int) -> list[list[str]]:
    """Of each kind, in how many trainings the bad row is named."""
    plan = [
        (KINDS[number % len(KINDS)], FAULTS[number // len(KINDS) % len(FAULTS)], number)
        for number in range(trainings)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = [*pool.map(lambda each: outcome(*each), plan)]
    found: dict[str, list[dict[str, bool]]] = {}
    for (kind, *_), result in zip(plan, outcomes, strict=True):
        found.setdefault(kind, []).append(result)
        found.setdefault("all", []).append(result)
    order = [kind for kind in (*KINDS, "all") if kind in found]
    return [
        [kind, str(len(found[kind])), *(str(sum(column)) for column in columns(found[kind]))]
        for kind in order
    ]


def columns(results: list[dict[str, bool]]) -> list[list[bool]]:
    """The results of each column of the table."""
    return [[each[name] for each in results] for name in results[0]]


def train_for_cost(steps: int, *, noted: bool, is_counted: bool) -> None:
    """Train a model of about 10 ms a step; prints milliseconds of a step, and of the notes."""
    seconds = [0.0]

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                seconds[0] += thread_time() - began

        return call

    if not noted:
        import_module("sentinel.client.session").DrawnRows = lambda *_: None
    elif not is_counted:
        for name in NOTES:
            setattr(DrawnRows, name, timed(getattr(DrawnRows, name)))
    folder = tempfile.mkdtemp()
    os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, batch = 192, 64
    blocks = [each for _ in range(4) for each in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*blocks, nn.Linear(width, 10))
    optimizer, marks = torch.optim.AdamW(model.parameters()), []
    data = torch.utils.data.TensorDataset(torch.randn(batch * (WARMUP_STEPS + steps), width))
    with sentinel.monitor(agent=False, checks=False):
        for step, (inputs,) in enumerate(DataLoader(data, batch, shuffle=True)):
            if is_counted and step == WARMUP_STEPS:
                start_counting()
            if step == WARMUP_STEPS:
                marks.append((thread_time(), seconds[0]))
                os.getppid()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
            optimizer.step()
        os.getppid()
        marks.append((thread_time(), seconds[0]))
    (began, notes_began), (ended, notes_ended) = marks
    print(json.dumps([1e3 * (ended - began) / steps, 1e3 * (notes_ended - notes_began) / steps]))
    sys.stdout.flush()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def measured_cost(steps: int, trainings: int) -> list[list[str]]:
    """Milliseconds of a step, those of the notes, and their share."""
    found = []
    for _ in range(trainings):
        command = [sys.executable, __file__, "--cost-child", "--steps", str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    whole, notes = (statistics.median(each) for each in zip(*found, strict=True))
    share = statistics.median(notes / whole for whole, notes in found)
    return [["processor time", f"{whole:.1f} ms", f"{1e3 * notes:.1f} µs", f"{share:.2%}"]]


def counted_instructions(steps: int) -> list[list[str]]:
    """Instructions of a step, and those that the notes add."""

    def count(*options: str) -> int:
        arguments = ["--cost-child", "--counted", "--steps", str(steps), *options]
        return count_between_markers(__file__, *arguments, is_late=True)[0]

    with ThreadPoolExecutor() as pool:
        both = pool.submit(count), pool.submit(count, "--without")
        noted, alone = (each.result() for each in both)
    added = (noted - alone) / steps
    return [["instructions", f"{noted / steps:,.0f}", f"{added:,.0f}", f"{noted / alone - 1:.2%}"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--steps", type=int, default=200, help="of a training for the cost")
    parser.add_argument("--child", nargs=3, metavar=("KIND", "FAULT", "SEED"))
    parser.add_argument("--cost-child", action="store_true")
    parser.add_argument("--counted", action="store_true", help="with --cost-child, under valgrind")
    parser.add_argument("--without", action="store_true", help="with --cost-child, note no rows")
    args = parser.parse_args()
    if args.child:
        train(args.child[0], args.child[1], int(args.child[2]))
    elif args.cost_child:
        train_for_cost(args.steps, noted=not args.without, is_counted=args.counted)
    elif args.cost or args.instructions:
        body = measured_cost(args.steps, args.trainings) if args.cost else []
        body += counted_instructions(args.steps) if args.instructions else []
        print(table(["measure", "a step", "of it the rows", "share"], body))
    else:
        body = named_shares(args.trainings, args.jobs)
        head = ["an incident", "row stored", "in the message", "first in the message"]
        print(table(["loop", "trainings", *head], body))


if __name__ == "__main__":
    main()
