"""The functions that a training function may call. Outside a run they do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sentinel.client.capture.text_sampling import DEFAULT_SAMPLES_PER_CALL, GeneratedBatch
from sentinel.client.control.command_executor import NO_ACTIONS
from sentinel.client.session import CurrentSession, Session
from sentinel.model.record import Event
from sentinel.transport.ring_layout import WORD_ERRORS

_EXHAUSTED = (RecursionError, MemoryError)
"""What a call may raise even where it handles errors, because it cannot call a function any more.
It is counted without a call."""
_MARK_EVENTS = {"save": Event.SAVE, "eval": Event.EVAL}
RESUME_MARK, STAGE_MARK = "resume", "stage"


def log(values: Mapping[str, Any], step: int | None = None, weight: float | None = None) -> None:
    """Record numbers of one step: floats, ints, NumPy or PyTorch scalars, on any device.

    `step` is the trainer's step number; the default is the count of optimizer steps. `weight` is
    the number of samples that the values are means over, for ranks with uneven batches. Values that
    are not numbers are dropped and counted. Never raises.
    """
    recorder = CurrentSession.recorder
    if recorder is not None:
        try:
            recorder.log(values, step, weight)
        except _EXHAUSTED:
            recorder.ring.words[WORD_ERRORS] += 1


def log_samples(
    prompts: Sequence[str],
    completions: Sequence[str],
    rewards: Any = None,
    step: int | None = None,
    finished: Sequence[bool] | None = None,
) -> None:
    """Record some of the texts that the model generated: at most `samples` per call, 8 by default.

    `rewards` holds one number per completion, or maps names to such sequences. `finished` holds one
    flag per completion: whether the model ended it, not the length limit. Long texts are cut.
    Anything that is not a text or a number is dropped and counted. Never raises.
    """
    session = CurrentSession.session
    if session is not None:
        max_samples = session.arguments.samples or DEFAULT_SAMPLES_PER_CALL
        try:
            session.recorder.record_samples(
                GeneratedBatch(prompts, completions, rewards, finished), step, max_samples
            )
        except _EXHAUSTED:
            session.ring.words[WORD_ERRORS] += 1


def mark(event: str, step: int | None = None, **attributes: Any) -> None:
    """Record that a checkpoint was saved (`"save"`) or an evaluation finished (`"eval"`).

    `"resume"` declares, before the first step after it, that the training goes back to an earlier
    step. It is recognised by itself where `load_state_dict` of the model or the optimizer is used.
    `"stage"` declares, before the first step of it, that the training changes on purpose, for
    example to a harder task or other data: loss, reward, gradient norm, entropy, length and
    throughput are compared with values of this stage only. One rank is enough.

    Numbers among `attributes` become values of the record, as in `mark("eval", loss=0.7)`.
    """
    session = CurrentSession.session
    if session is None:
        return
    try:
        _mark(session, event, step, attributes)
    except _EXHAUSTED:
        session.ring.words[WORD_ERRORS] += 1


def _mark(session: Session, event: str, step: int | None, attributes: dict[str, Any]) -> None:
    marked = _MARK_EVENTS.get(event) if type(event) is str else None
    if type(event) is str and event == RESUME_MARK:
        session.recorder.record_resume(is_declared=True)
    elif type(event) is str and event == STAGE_MARK:
        session.recorder.record_stage(attributes)
    elif marked is not None:
        session.recorder.record_event(marked, step, attributes)
    elif session.arguments.strict:
        raise ValueError(
            f"unknown event {event!r}: use one of "
            f"{sorted([*_MARK_EVENTS, RESUME_MARK, STAGE_MARK])}"
        )
    else:
        session.ring.count_drop("event")


def requested() -> frozenset[str]:
    """The actions that this rank should take now: "checkpoint", "stop", both, or usually none.

    Call it once per step on every rank. "checkpoint" is returned on all ranks at the same step and
    at that step only; "stop" from then on. A call takes less than a microsecond.
    """
    recorder = CurrentSession.recorder
    if recorder is None:
        return NO_ACTIONS
    try:
        return recorder.commands.requested(
            recorder.commands.optimizer_steps or recorder.clock.step_index
        )
    except _EXHAUSTED:
        recorder.ring.words[WORD_ERRORS] += 1
        return NO_ACTIONS


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Declare a phase outside training steps, such as an evaluation, for the `with` block."""
    _record_phase(name, "begin")
    try:
        yield
    finally:
        _record_phase(name, "end")


def _record_phase(name: str, edge: str) -> None:
    recorder = CurrentSession.recorder
    if recorder is not None:
        try:
            recorder.record_phase(name, edge)
        except _EXHAUSTED:
            recorder.ring.words[WORD_ERRORS] += 1
