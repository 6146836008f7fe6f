"""Training logs whose loss rises, by the reason: the rate, the data, or neither that a log shows.

A log is a list of rows, as those of `signal_faults`; a size of 0 is the healthy twin.
"""

from __future__ import annotations

from math import exp

from support.signal_faults import ONSET, Log, Row

FINE_TUNING = {"framework": "trl", "algorithm": "sft", "learning_rate": 2e-5, "max_grad_norm": 1.0}


def learning(log: Log) -> Row:
    """A healthy row of a supervised training."""
    return {
        "loss": (1.0 + 2.0 * exp(-6 * log.learned)) * exp(log.noise(0.03)),
        "grad_norm": 0.8 * exp(log.noise(0.15)),
        "learning_rate": 2e-5,
    }


def risen(log: Log, *, keeps_learning: float = 0.0) -> float:
    """Factor of a loss that has risen, less what is learned since, as a rate for each row."""
    return log.level(1.0, (1.5, 2.0, 3.0)) ** exp(-keeps_learning * max(0, log.step - ONSET))


def harder_data(log: Log) -> Row:
    """The examples become harder: the gradient stays as it was, and the new ones are learned."""
    row = learning(log)
    return {**row, "loss": row["loss"] * risen(log, keeps_learning=0.004)}


def other_task(log: Log) -> Row:
    """The training data change while the held-out data, of the first task, do not; no norm."""
    row = harder_data(log)
    del row["grad_norm"]
    if log.step % 10 == 0:
        row["eval_loss"] = (1.1 + 2.0 * exp(-6 * log.learned)) * exp(log.noise(0.01))
    return row


def clipped(log: Log) -> Row:
    """The loss and the norm jump and stay up, at a usual rate and with clipped gradients."""
    row = learning(log)
    return {
        **row,
        "loss": row["loss"] * risen(log),
        "grad_norm": row["grad_norm"] * log.level(1.0, (8.0, 20.0, 60.0)),
    }


def unstable(log: Log) -> Row:
    """A rate that is too high: loss and norm grow together."""
    return {**clipped(log), "learning_rate": 3e-3}
