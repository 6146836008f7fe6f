"""Records: the values or the event of one rank, or of the whole run, at one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

WHOLE_RUN = -1
"""Rank of a record of the whole run: combined over its ranks, or read from a log."""

YEAR_2001 = 1e9
"""Seconds since the epoch; a smaller time of a record is the number of a row without a time."""


class Event(Enum):
    """The kind of a record."""

    # That of Enum is a function in Python, and a record is looked up by its event many times.
    __hash__ = object.__hash__

    START = "start"
    """A rank, or the run, started or resumed; values and attributes hold its configuration."""
    STEP = "step"
    """Values of one training step."""
    SAVE = "save"
    """A checkpoint was written at this step."""
    EVAL = "eval"
    """Values measured on held-out data."""
    PHASE = "phase"
    """The trainer entered or left a declared phase such as an evaluation."""
    METADATA = "metadata"
    """New metadata of the run: its settings, or a patch that failed."""
    SAMPLE = "sample"
    """One generated text: attributes hold prompt and completion, values its rewards.

    For the whole run: statistics of the texts of one step, without the texts.
    """
    LAYERS = "layers"
    """Statistics of the gradient of each layer at a step, named `<statistic>/<layer>`.

    Of a rank: sums that are combined over the ranks; see `sentinel.signals.layer_statistics`.
    """
    CHECK = "check"
    """What a check of the training found, or its evidence of one rank; see `CHECK_KEY`."""
    HEARTBEAT = "heartbeat"
    """The time and the liveness of the ranks, from the source of the records."""
    ONSET = "onset"
    """The estimated onset of an incident, from the agent.

    Values hold its steps by the fields of `sentinel.model.incident.Onset`, or none if there is no
    estimate; the attribute `incident` is the name of the incident.
    """
    STOP = "stop"
    """A rank, or the run, ended; attributes hold its outcome."""
    TRAINING = "new_training"
    """The steps after it are of another training in the same run; see `TRAINING_KEY`."""
    STAGE = "stage"
    """The steps after it are of another stage of the training, such as a harder task."""


(
    START, STEP, SAVE, EVAL, PHASE, METADATA, SAMPLE, LAYERS,
    CHECK, HEARTBEAT, ONSET, STOP, TRAINING, STAGE,
) = Event  # fmt: skip
"""The events as global names: up to Python 3.11, `Event.STEP` takes fifty times the time."""


@dataclass(frozen=True, slots=True)
class RankMismatch:
    """Ranks whose value of a signal differs although it must be equal on every rank.

    `count` ranks do not have `majority_value`; the first of them and their values are in
    `differing_ranks`. `has_majority` is False if half of the ranks have that value, so that either
    half may be wrong; then it is that of the lowest rank.
    """

    majority_value: float
    count: int
    differing_ranks: tuple[tuple[int, float], ...]
    has_majority: bool = True


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics over the ranks of one signal at one step.

    `count` ranks have a finite value; `mean`, `min`, `max`, `sum` and `std` (population) are over
    these. `bad_ranks` have NaN or infinity. `mismatch` is None if all values are equal, if they
    need not be, or if no value is shared by half of the ranks. `rank_values` are the values of
    `ranks`, for the few signals of which those are stored.
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
    ranks: tuple[int, ...] = field(default=(), compare=False)
    rank_values: tuple[float, ...] = field(default=(), compare=False)


# Not frozen, but never changed: there is one per step, and a frozen one takes three times as long.
@dataclass(slots=True, unsafe_hash=True)
class Record:
    """One record of one rank, or of the whole run.

    `attempt` counts the restarts of the run. `step` is the trainer's own step number as reported;
    it may repeat or decrease. `step_index` counts the steps of the rank in this attempt; it only
    grows, and ranks are aligned by it. `time` is in seconds since the epoch. `attributes` hold
    text. `spread` is set on combined records only. `sequence` numbers the records of a rank, to
    recognize repeated ones; 0 is unnumbered.
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
    """Attribute of a combined record that holds the host name of the rank."""
    return f"host/{rank}"


UNKNOWN_OUTCOME = "unknown"
"""Outcome of a rank that disappeared for an unknown reason; ignored for the run's outcome."""


STATE_LOADED_KEY = "state_loaded_at_step"
"""Value of METADATA: the step at which a training under way loaded its state, or declared it.

If the step number goes back then, the training was resumed.
"""


SEVERAL_WRITERS_KEY = "several_writers"
"""Attribute of the records of a log from which rows of other writers were left out."""


TRAINING_KEY = "training_number"
"""Value of TRAINING: the number of the training that begins.

Of a rank it counts the trainings of the attempt, of the whole run those of the run, both from 1.
"""


STEPS_STARTED_OVER_KEY = "steps_started_over"
"""Value of TRAINING: 1 if the training was recognised in a log by its steps, which started over."""


LOSSES_KEY = "losses"
"""Attribute of CHECK: the last losses of the rank, exactly. Ranks with the same have one batch."""

CHECK_KEY, PROBLEM_KEY = "check", "problem"
"""Attributes of CHECK: the name of the check, and what it found, empty if the check passed.

Without the second the record is evidence of one rank, which its detector compares with others.
"""


STAGE_KEY = "stage_number"
"""Value of STAGE: how many stages were declared in the attempt."""


COLLECTIVE_KEY = "collective"
"""Attribute of METADATA, and of a STOP sent by rank 0: "on: …" or "off: …", with the reason."""


def is_collective_turned_off(record: Record) -> bool:
    """Whether rank 0 stops gathering: from now on each node's own agent reports its ranks.

    The aligner waits for them as at a start.
    """
    return record.rank == 0 and record.attributes.get(COLLECTIVE_KEY, "").startswith("off")


def is_collective_handover(stop: Record) -> bool:
    """Whether a rank stopped only for the collective, as far as is known."""
    return COLLECTIVE_KEY in stop.attributes and stop.attributes.get("outcome") in (
        "finished",
        UNKNOWN_OUTCOME,
    )


def is_provisional_stop(stop: Record) -> bool:
    """Whether the rank's own node may still report more of that stop, or that there was none."""
    return stop.attributes.get("outcome") == UNKNOWN_OUTCOME or is_collective_handover(stop)
