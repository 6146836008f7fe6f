"""Verbs: what a training function may say by itself. Outside a run they do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sentinel.client.capture.text_sampling import DEFAULT_SAMPLES_PER_CALL, GeneratedBatch
from sentinel.client.control.command_executor import NO_ACTIONS
from sentinel.client.session import CurrentSession, current_session
from sentinel.model.record import Event

_MARK_EVENTS = {"save": Event.SAVE, "eval": Event.EVAL}


def log(values: Mapping[str, Any], step: int | None = None, weight: float | None = None) -> None:
    """Record numbers of one step: floats, ints, NumPy or PyTorch scalars, on any device.

    `step` is the trainer's own number; without it, the count of optimizer steps. `weight` is how
    many samples the values are means over, for ranks with uneven batches. What is not a number is
    counted and left out; nothing is ever raised.
    """
    recorder = CurrentSession.recorder
    if recorder is not None:
        recorder.log(values, step, weight)


def log_samples(
    prompts: Sequence[str],
    completions: Sequence[str],
    rewards: Any = None,
    step: int | None = None,
    finished: Sequence[bool] | None = None,
) -> None:
    """Show some of the texts the model made: at most `samples` a call, 8 if that is not set.

    `rewards` is one number for each completion, or a mapping of names to such. `finished` says of
    each completion whether the model ended it, rather than the limit. Long texts are cut. What is
    no text, or no number, is counted and left out; nothing is ever raised.
    """
    session = current_session()
    if session is not None:
        most = session.arguments.samples or DEFAULT_SAMPLES_PER_CALL
        session.recorder.record_samples(
            GeneratedBatch(prompts, completions, rewards, finished), step, most
        )


def mark(event: str, step: int | None = None, **facts: Any) -> None:
    """Say that a checkpoint was written (`"save"`) or an evaluation made (`"eval"`).

    Numbers among `facts` become values of the record, such as `mark("eval", loss=0.7)`.
    """
    session = current_session()
    if session is None:
        return
    known = _MARK_EVENTS.get(event) if type(event) is str else None
    if known is not None:
        session.recorder.record_event(known, step, facts)
    elif session.arguments.strict:
        raise ValueError(f"There is no mark {event!r}: use one of {sorted(_MARK_EVENTS)}.")
    else:
        session.ring.count_drop("event")


def requested() -> frozenset[str]:
    """What this rank is asked to do now: "checkpoint", "stop", both, or, nearly always, nothing.

    To be asked once a step, on every rank alike: each is told of a checkpoint at the same step, and
    at that one only; of a stop from then on. It costs less than a microsecond.
    """
    recorder = CurrentSession.recorder
    if recorder is None:
        return NO_ACTIONS
    return recorder.commands.requested(
        recorder.commands.optimizer_steps or recorder.clock.step_index
    )


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Declare that the trainer is doing something else for a while, such as an evaluation."""
    _record_edge(name, "begin")
    try:
        yield
    finally:
        _record_edge(name, "end")


def _record_edge(name: str, edge: str) -> None:
    session = current_session()
    if session is not None:
        session.recorder.record_event(Event.PHASE, None, {"name": name, "edge": edge})
