"""The cost of a record in Python calls, which, unlike seconds, do not depend on the machine."""

from __future__ import annotations

import sys
from itertools import islice
from random import Random

from sentinel.config.settings import Settings
from sentinel.model.record import WHOLE_RUN, Record, Spread
from sentinel.pipeline.pipeline import build
from sentinel.readers.rows import RowConverter

LEVELS = {
    "loss": 1.0, "reward": 0.5, "reward_std": 0.3, "frac_zero_std": 0.2, "kl_ref": 0.03,
    "entropy": 0.6, "clip_fraction": 0.02, "completion_length": 400.0, "truncated_fraction": 0.05,
    "explained_variance": 0.6, "value_loss": 0.2, "kl_mismatch": 0.003, "grad_norm": 1.0,
    "learning_rate": 1e-6, "step_time": 1.0, "data_wait": 0.02, "gpu_utilisation": 0.8,
    "signal_0": 1.0, "signal_1": 1.0,
}  # fmt: skip
EXACT = {"learning_rate"}
WARMUP, COUNTED = 600, 256


def rows(count):
    """A healthy policy at its final level: 20 signals with noise."""
    rng = Random(1)
    for step in range(1, count + 1):
        noisy = {n: x if n in EXACT else x * rng.uniform(0.9, 1.1) for n, x in LEVELS.items()}
        yield noisy | {"global_step": float(step)}


def record(step, row, ranks=1):
    spread = {}
    if ranks > 1:
        exact = {*EXACT, "global_step", "grad_norm"}
        spread = {
            name: Spread(ranks, x, x - far, x + far, ranks * x, far / 2, step % ranks, 0)
            for name, x in row.items()
            for far in (0.0 if name in exact else 0.03 * abs(x),)
        }
    return Record("run", WHOLE_RUN, step, float(step), values=row, spread=spread)


def count_calls(function, arguments):
    """Calls of functions written in Python, for each argument after the first `WARMUP`."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    arguments = iter(arguments)
    for argument in islice(arguments, WARMUP):
        function(argument)
    sys.setprofile(count)
    try:
        for argument in islice(arguments, COUNTED):
            function(argument)
    finally:
        sys.setprofile(None)
    return calls / COUNTED


def calls_per_record(ranks):
    pipeline = build(Settings())
    stream = [record(at, row, ranks) for at, row in enumerate(rows(WARMUP + COUNTED), start=1)]
    calls = count_calls(lambda each: [*pipeline.process(each)], stream)
    assert not pipeline.engine.error_counts
    return calls


def test_a_record_of_a_log_takes_at_most_285_calls():
    assert calls_per_record(ranks=1) <= 285


def test_a_record_of_eight_ranks_takes_at_most_352_calls():
    assert calls_per_record(ranks=8) <= 352


def test_a_row_of_known_keys_takes_at_most_14_calls_to_become_a_record():
    converter = RowConverter("run")

    assert count_calls(converter.to_record, [*rows(WARMUP + COUNTED)]) <= 14
