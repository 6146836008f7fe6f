"""Homes with finished runs of any size, written by the classes of the agent.

`write_run` sends the values of ranks through the pipeline, so incidents and cases are real.
`write_long_run` stores combined records only, for sizes at which evaluating them takes too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from math import exp, sin
from pathlib import Path
from random import Random
from typing import Any

from sentinel.agent.processor import RunProcessor
from sentinel.aggregate.combine import MAX_RANKS_WITH_VALUES, RANK_VALUE_SIGNALS, compute_spread
from sentinel.config.settings import load_settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import make_batch
from sentinel.notify import outbox
from sentinel.pipeline.engine import Result
from sentinel.pipeline.onset import estimate_onset
from sentinel.signals.hardware import NodeMeasurements
from sentinel.sinks.webhook import Webhook
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.transport.paths import DATABASE_NAME

BEGIN = 1_760_000_000.0
"""Time of step 0 in seconds since the epoch."""
STEP_SECONDS = 2.0
PROMPTS = ("Write a story about a fox.", "Add 17 and 25.", "Name a prime above 100.")
WORDS = ("the", "fox", "ran", "over", "a", "hill", "and", "saw", "an", "old", "quiet", "field")


@dataclass(frozen=True)
class StoredRun:
    """What is written of a run.

    From `fault_at` on its policy collapses: the KL runs away and the reward falls. `kind` names its
    values: "grpo" or "sft". Every `save_every` steps a checkpoint is written, every `sample_every`
    one text per rank, every `node_every` the measurements of a node; 0 is never. `outcome` is of
    its end; "" is a run that has not ended. `metadata` adds to that of its start, `extra_values`
    to those of each step; `texts` replace the completions.
    """

    run: str = "grpo-7b"
    steps: int = 240
    ranks: int = 4
    kind: str = "grpo"
    fault_at: int | None = None
    save_every: int = 50
    sample_every: int = 20
    node_every: int = 10
    begin: float = BEGIN
    outcome: str = "finished"
    seed: int = 1
    metadata: Mapping[str, str | float] = field(default_factory=dict)
    extra_values: Mapping[str, float] = field(default_factory=dict)
    texts: Iterable[str] = ()


def write_run(home: Path, plan: StoredRun | None = None, **changes: Any) -> Path:
    """Write a run into the home, as its agent would have; returns its database."""
    plan = plan or StoredRun(**changes)
    path = _new_database(home, plan.run)
    settings = load_settings({"hold_seconds": 0.0})
    now = plan.begin
    with closing(connect(path)) as connection:
        processor = RunProcessor(
            *(plan.run, path, connection, settings, Counters()),
            sinks={"webhook": Webhook(url="https://hooks.example.org/training")},
            read_node=NodeMeasurements,
            live_rings=list,
            clock=lambda: now,
        )
        # The agent would start a process.
        processor.pipeline.engine.estimate_onset = estimate_onset
        connection.execute("begin")
        for entry, time in _entries(plan):
            now = time
            if processor.process(entry):
                _deliver(connection, now)
        processor.snapshot()
        connection.execute("commit")
    return path


def _new_database(home: Path, run: str) -> Path:
    directory = home / "runs" / run
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory / DATABASE_NAME


def _entries(plan: StoredRun) -> Iterator[tuple[Any, float]]:
    """The records of the run and their times, in order."""
    random, ranks = Random(plan.seed), range(plan.ranks)
    metadata = {
        "framework": "trl",
        "algorithm": plan.kind,
        "model": "Qwen/Qwen3-8B",
        "host": "gpu-a",
        "world_size": float(plan.ranks),
        "local_world_size": float(plan.ranks),
        "save_steps": float(plan.save_every),
        "learning_rate": 1e-6,
        "max_steps": float(plan.steps),
    } | dict(plan.metadata)
    start = {
        "values": {name: each for name, each in metadata.items() if isinstance(each, float)},
        "attributes": {name: each for name, each in metadata.items() if isinstance(each, str)},
    }
    for rank in ranks:
        yield Record(plan.run, rank, 0, plan.begin, Event.START, **start), plan.begin
    for step in range(1, plan.steps + 1):
        time = plan.begin + step * STEP_SECONDS
        values = step_values(plan, step, random) | dict(plan.extra_values)
        records = [
            Record(
                *(plan.run, rank, step, time),
                values={
                    name: value * (1 + 0.02 * random.gauss(0, 1)) if name in _NOISY else value
                    for name, value in values.items()
                },
                step_index=step,
            )
            for rank in ranks
        ]
        if len(records) > 1:
            yield make_batch(records), time
        else:
            yield records[0], time
        if plan.sample_every and step % plan.sample_every == 0:
            for rank in ranks:
                yield _sample(plan, step, rank, random), time
        if plan.save_every and step % plan.save_every == 0:
            yield Record(plan.run, 0, step, time, Event.SAVE, step_index=step), time
        if plan.node_every and step % plan.node_every == 0:
            yield _heartbeat(plan, step, time, random), time
    if plan.outcome:
        for rank in ranks:
            stop = Record(
                *(plan.run, rank, plan.steps, time, Event.STOP),
                attributes={"outcome": plan.outcome},
                step_index=plan.steps,
            )
            yield stop, time


_NOISY = frozenset({"loss", "grad_norm", "step_time", "reward", "completion_length"})


def step_values(plan: StoredRun, step: int, random: Random) -> dict[str, float]:
    """The values of every rank at a step, before its noise."""
    progress = step / plan.steps
    since = max(0, step - plan.fault_at) if plan.fault_at is not None else 0
    values = {
        "loss": 0.4 + 1.6 * exp(-4 * progress) + 0.03 * random.gauss(0, 1),
        "grad_norm": 0.8 + 0.1 * random.gauss(0, 1) + 0.05 * min(since, 40),
        "learning_rate": 1e-6 * min(1.0, step / 20) * (1 - 0.9 * progress),
        "step_time": STEP_SECONDS + 0.05 * sin(step / 9) + 0.02 * random.random(),
    }
    if plan.kind == "grpo":
        collapse = min(1.0, since / 30)
        values |= {
            "reward": (0.2 + 0.5 * progress) * (1 - collapse) + 0.03 * random.gauss(0, 1),
            "reward_std": 0.2 * (1 - 0.9 * collapse) + 0.01 * random.random(),
            "kl_ref": (0.02 + 0.03 * progress)
            * exp(min(since / 6, 8))
            * (1 + 0.1 * random.random()),
            "entropy": 1.2 - 0.4 * progress - 0.6 * collapse + 0.02 * random.gauss(0, 1),
            "completion_length": 180 + 40 * progress + 8 * random.gauss(0, 1),
        }
    return values


def _sample(plan: StoredRun, step: int, rank: int, random: Random) -> Record:
    texts = [*plan.texts]
    is_broken = plan.fault_at is not None and step > plan.fault_at
    if texts:
        text = texts[(step + rank) % len(texts)]
    elif is_broken:
        text = "the fox " * 20
    else:
        text = " ".join(random.choices(WORDS, k=24)) + f" (step {step}, rank {rank})"
    return Record(
        *(plan.run, rank, step, plan.begin + step * STEP_SECONDS, Event.SAMPLE),
        values={"reward": random.random(), "length": float(len(text)), "finished": 1.0},
        attributes={"prompt": PROMPTS[rank % len(PROMPTS)], "completion": text},
        step_index=step,
    )


def _heartbeat(plan: StoredRun, step: int, time: float, random: Random) -> Record:
    values = {
        "host_cpu": 0.4 + 0.1 * random.random(),
        "host_memory_used": 200e9 + 1e9 * random.random(),
        "host_memory_total": 512e9,
        "gpu_utilisation": 0.93 + 0.05 * random.random(),
        "gpu_memory_used": 70e9,
        "gpu_memory_total": 80e9,
        "gpu_power": 640 + 30 * random.random(),
        "gpu_temperature": 61 + 4 * random.random(),
        "disk_free": 900e9 - step * 1e8,
        "ranks_running": float(plan.ranks),
        "ranks_gone": 0.0,
        "ranks_failed": 0.0,
        "idle_seconds": 0.0,
    }
    return Record(plan.run, WHOLE_RUN, step, time, Event.HEARTBEAT, values)


def _deliver(connection: Any, now: float) -> None:
    """Mark what is queued as delivered."""
    for (key,) in connection.execute("select key from outbox where state = 'queued'").fetchall():
        outbox.mark_delivered(connection, key, now)


def long_rows(steps: int, signals: int = 20) -> Iterator[dict[str, float]]:
    """The values of each step of a healthy run: the main signals first, then `my/metric-<n>`."""
    plan, random = StoredRun(steps=steps), Random(1)
    names = [*step_values(plan, 1, random)][:signals]
    names += [f"my/metric-{number}" for number in range(signals - len(names))]
    for step in range(1, steps + 1):
        known = step_values(plan, step, random)
        yield {name: known.get(name, step % 97 + random.random()) for name in names}


def write_long_run(
    home: Path,
    run: str,
    rows: Iterable[Mapping[str, float]],
    *,
    ranks: int = 1,
    begin: float = BEGIN,
) -> Path:
    """Write one combined record per row, such as those of `long_rows`; returns the database.

    Loss, gradient norm and step time have a value for each rank, if there are few enough ranks, and
    the other signals a minimum and maximum over them.
    """
    path, random = _new_database(home, run), Random(1)
    with closing(connect(path)) as connection:
        history = History(connection)
        connection.execute("begin")
        start = Record(run, WHOLE_RUN, 0, begin, Event.START, {"world_size": float(ranks)})
        history.update(Result(start))
        step = 0
        for step, row in enumerate(rows, 1):
            values, spread = dict(row), {}
            for name, value in row.items() if ranks > 1 else ():
                if name in RANK_VALUE_SIGNALS and ranks <= MAX_RANKS_WITH_VALUES:
                    column = [value * (1 + random.random() / 50) for _ in range(ranks)]
                    spread[name] = compute_spread(range(ranks), column, keep_values=True)
                    values[name] = spread[name].mean
                else:
                    spread[name] = compute_spread((0, ranks - 1), (value, value * 1.01))
            record = Record(run, WHOLE_RUN, step, begin + step, Event.STEP, values, spread=spread)
            history.update(Result(record))
        stop = Record(
            *(run, WHOLE_RUN, step, begin + step, Event.STOP), attributes={"outcome": "finished"}
        )
        history.update(Result(stop))
        connection.execute("commit")
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    return path
