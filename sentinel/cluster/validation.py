"""Sound: whether what another agent says can be counted with. Who has the secret may say anything.

What is read of a parcel is of the right types; here it is looked at before any of it is stored, or
taken apart later: a head that fell over it would fall over it again each time that it is begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isnan

from sentinel.cluster.node_hardware import node_combine_rule
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch
from sentinel.transport.batch_codec import BatchMessage, BatchMessageError

MAX_ROW = 1 << 63
"""A spool has fewer: no database counts so far."""
MAX_RANKS_AND_ATTEMPTS = 1 << 31
"""There are fewer ranks, and fewer attempts."""
MAX_TIME_SECONDS = 1e11
"""No clock is later, in seconds since the epoch: in the year 5138."""
MAX_HEARTBEAT_VALUE = 1e300
"""Nothing that a TICK tells is more, or its sum over all nodes would be no number."""
MAX_NODE_INFO_BYTES = 4096
"""Bytes of each thing that a node says of itself."""

_SIZE_VALUES = ("world_size", "local_world_size", "expected_ranks")

_RANK_PATTERN = "(0|[1-9][0-9]{0,9})"
_RANK_LIST_PATTERN = re.compile(f"({_RANK_PATTERN}(,{_RANK_PATTERN})*)?")
_PROGRESS_PATTERN = re.compile(r"-?[0-9]{1,19},-?[0-9]{1,19}")
_SECONDS_PATTERN = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_FACT_PATTERNS = {
    "died_ranks": _RANK_LIST_PATTERN,
    "failed_ranks": _RANK_LIST_PATTERN,
    "straggler_ranks": _RANK_LIST_PATTERN,
    "straggler_progress": _PROGRESS_PATTERN,
    "failed_seconds_ago": _SECONDS_PATTERN,
}
"""Facts of a TICK that are numbers, as they are spelled."""

_is_past_epoch = (0.0).__le__


def validate_message(message: BatchMessage) -> None:
    """Raises ParcelError, for damage, where anything in it cannot be counted with."""
    fits = (
        message.first_row < MAX_ROW > message.last_row
        and 0.0 <= message.sender_time <= MAX_TIME_SECONDS
    )
    if not (fits and all(map(_is_valid_entry, message.entries))):
        raise BatchMessageError("damaged", "A parcel tells of what cannot be.")


def is_valid_node_info(node_info: Mapping[str, str]) -> bool:
    """Whether all that a node says of itself can be stored, without half characters."""
    try:
        return all(len(text.encode()) <= MAX_NODE_INFO_BYTES for text in node_info.values())
    except UnicodeEncodeError:
        return False


def _is_valid_entry(entry: RecordOrBatch) -> bool:
    if isinstance(entry, RecordBatch):
        ranks = 0 <= min(entry.ranks) <= max(entry.ranks) < MAX_RANKS_AND_ATTEMPTS
        return (
            ranks
            and 0 <= entry.attempt < MAX_RANKS_AND_ATTEMPTS
            and all(map(_is_past_epoch, entry.times))
        )
    if not (
        0 <= entry.attempt < MAX_RANKS_AND_ATTEMPTS
        and WHOLE_RUN <= entry.rank < MAX_RANKS_AND_ATTEMPTS
        and entry.time >= 0.0
    ):
        return False
    if entry.event is Event.HEARTBEAT:
        return _is_valid_heartbeat(entry)
    if entry.event is Event.START and not all(
        0.0 <= entry.values.get(name, 0.0) < MAX_RANKS_AND_ATTEMPTS for name in _SIZE_VALUES
    ):
        return False
    # Facts and texts change no step; all else that is of the run, its judge says.
    return entry.rank != WHOLE_RUN or entry.event in (Event.SAMPLE, Event.METADATA)


def _is_valid_heartbeat(heartbeat: Record) -> bool:
    facts = heartbeat.attributes
    if facts.get("cause") == "died" and not facts.get("died_ranks"):
        return False
    spelled = (
        form.fullmatch(facts[name]) for name, form in _FACT_PATTERNS.items() if name in facts
    )
    return all(spelled) and all(_is_valid_value(*each) for each in heartbeat.values.items())


def _is_valid_value(name: str, value: float) -> bool:
    # What cannot be measured of a machine may well be no number.
    return abs(value) <= MAX_HEARTBEAT_VALUE or (
        isnan(value) and node_combine_rule(name) is not None
    )
