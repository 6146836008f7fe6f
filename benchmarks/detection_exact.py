"""Synthetic runs with exact faults: a counter, saves, one slow rank of eight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from detection_run import FullRun

from sentinel.model.record import WHOLE_RUN, Event, Record, Spread
from sentinel.testing import event

EXACT = ("step_stride", "checkpoint_cadence", "straggler")
RANKS = 8
SAVE_INTERVAL = 500
FAULTY_SAVE_INTERVAL = 2


@dataclass
class ExactRun(FullRun):
    """A run in which loss and time are noise, with one fault.

    step_stride: from the onset on the counter moves by 2 at each optimizer step.
    checkpoint_cadence: saves every 500 steps, then every 2 (both are huggingface/trl#2124).
    straggler: rank 3 generates longer.
    """

    def __len__(self) -> int:
        return 3000 if self.fault == "checkpoint_cadence" else 600

    def point(self, step: int) -> int:
        """Index of the logged point of a step, by the true count."""
        at, onset = step - 1, self.onset
        doubled = self.fault == "step_stride" and onset is not None and at > onset
        return onset + (at - onset) // 2 if doubled and onset is not None else at

    def records(self) -> Iterator[Record]:
        rng = np.random.default_rng([self.seed, 15])
        counter, now = 0, 0.0
        for at in range(self.ends):
            is_faulty = self.onset is not None and at >= self.onset
            counter += 2 if is_faulty and self.fault == "step_stride" else 1
            now += 1.0
            loss = 2.0 * 0.999**at * np.exp(0.05 * rng.standard_normal())
            values = {
                "loss": float(loss),
                "global_step": float(counter),
                "optimizer_steps": at + 1.0,
            }
            ranks, spread = self._ranks(rng, is_faulty), {}
            if self.fault in ("", "straggler"):
                spread = {"generation_time": _spread(ranks)}
                values |= {"generation_time": max(ranks), "step_time": max(ranks) + 0.5}
            yield Record("run", WHOLE_RUN, counter, now, Event.STEP, values, spread=spread)
            is_frequent = is_faulty and self.fault == "checkpoint_cadence"
            if counter % (FAULTY_SAVE_INTERVAL if is_frequent else SAVE_INTERVAL) == 0:
                yield event(Event.SAVE, counter, time=now)

    def _ranks(self, rng: np.random.Generator, is_faulty: bool) -> list[float]:
        times = np.exp(0.05 * rng.standard_normal(RANKS))
        if is_faulty and self.fault == "straggler":
            times[3] *= {"mild": 1.15, "moderate": 1.4, "severe": 2.5}[self.severity]
        return [float(time) for time in times]


def make_exact_run(seed: int, fault: str = "", severity: str = "") -> ExactRun:
    """A run with a fault of counters, saves or ranks from some point on."""
    rng = np.random.default_rng([seed, 16])
    run = ExactRun(seed, fault, severity)
    run.onset = int(len(run) * rng.uniform(0.55, 0.8)) if fault else None
    return run


def _spread(row: list[float]) -> Spread:
    mean, low, high = sum(row) / len(row), min(row), max(row)
    std = float(np.std(row))
    return Spread(len(row), mean, low, high, sum(row), std, row.index(low), row.index(high))
