"""Record: what one rank, or the whole run, says about one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

WHOLE_RUN = -1
"""Rank of a record that speaks for the run: combined over its ranks, or read from a log."""


class Event(Enum):
    """What happened at the moment a record tells of."""

    START = "start"
    """A rank, or the run, began or was resumed; values and facts hold its configuration."""
    STEP = "step"
    """Values of one training step."""
    SAVE = "save"
    """A checkpoint was written at this step."""
    EVAL = "eval"
    """Values measured on held-out data."""
    PHASE = "phase"
    """The trainer entered, or left, a declared phase such as an evaluation."""
    METADATA = "metadata"
    """Something about the run became known: its settings, or a tap that went wrong."""
    SAMPLE = "sample"
    """One text that the model made: facts hold prompt and completion, values its rewards.

    Of the whole run: statistics of the texts of one step, and no text.
    """
    HEARTBEAT = "heartbeat"
    """Nobody spoke: the source tells the time, and who is still alive."""
    STOP = "stop"
    """A rank, or the run, ended; facts say how."""


@dataclass(frozen=True, slots=True)
class RankMismatch:
    """Of a signal that is to be the same on every rank: what most have, and who has another.

    `count` ranks do not have the `usual` value. The first of them are in `ranks`, with their own.
    """

    majority_value: float
    count: int
    differing_ranks: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """How the ranks differ in one signal at one step.

    `count` ranks gave a finite value; `mean`, `min`, `max`, `sum` and `std` (population) are over
    those. `bad_ranks` gave NaN or infinity. `odd` is None where all are the same, where they need
    not be, and where no value is that of more than half of the ranks.
    """

    count: int
    mean: float
    min: float
    max: float
    sum: float
    std: float
    min_rank: int
    max_rank: int
    bad_ranks: tuple[int, ...] = ()
    mismatch: RankMismatch | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One moment of one rank, or of the whole run.

    `attempt` counts the restarts of the run. `step` is the trainer's own number, never recounted,
    and may stand still or go back when the trainer is wrong. `beat` is the rank's own count of
    steps in this attempt: it only grows, and is what ranks are aligned by. `time` is in seconds
    since the epoch. `facts` hold what numbers cannot say. `spread` is filled on combined records.
    `sequence` numbers what one rank says, 0 where nobody does: it tells a word from its repetition.
    """

    run: str
    rank: int
    step: int
    time: float
    event: Event = Event.STEP
    values: Mapping[str, float] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    spread: Mapping[str, Spread] = field(default_factory=dict)
    attempt: int = 0
    step_index: int = 0
    sequence: int = field(default=0, compare=False)


def host_key(rank: int) -> str:
    """Name of the fact of a combined record that tells on which host that rank is."""
    return f"host/{rank}"


UNKNOWN_OUTCOME = "unknown"
"""Outcome of a rank that is heard no more, and nobody knows why: it says nothing of the run's."""


COLLECTIVE_KEY = "collective"
"""Fact of a run, and of a rank's end as rank 0 tells it: "on: …" or "off: …", with the reason."""
