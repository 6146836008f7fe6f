"""Validates messages and node info of authenticated agents, which may still be wrong.

The decoder has checked types. Values are checked here before anything is stored: an error while a
stored message is processed would occur again after each restart of the head.
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
"""Limit of row numbers, above the largest of SQLite."""
MAX_RANKS_AND_ATTEMPTS = 1 << 31
"""Limit of ranks, and of attempts."""
MAX_TIME_SECONDS = 1e11
"""Limit of times, in seconds since the epoch: the year 5138."""
MAX_HEARTBEAT_VALUE = 1e300
"""Limit of values of a heartbeat, so that their sum over all nodes is finite."""
MAX_NODE_INFO_BYTES = 4096
"""Size limit of each text of the node info."""

_SIZE_VALUES = ("world_size", "local_world_size", "expected_ranks")

_RANK_PATTERN = "(0|[1-9][0-9]{0,9})"
_RANK_LIST_PATTERN = re.compile(f"({_RANK_PATTERN}(,{_RANK_PATTERN})*)?")
_PROGRESS_PATTERN = re.compile(r"-?[0-9]{1,19},-?[0-9]{1,19}")
_SECONDS_PATTERN = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_ATTRIBUTE_PATTERNS = {
    "died_ranks": _RANK_LIST_PATTERN,
    "failed_ranks": _RANK_LIST_PATTERN,
    "culprit_ranks": _RANK_LIST_PATTERN,
    "following_ranks": _RANK_LIST_PATTERN,
    "straggler_ranks": _RANK_LIST_PATTERN,
    "unread_ranks": _RANK_LIST_PATTERN,
    "straggler_progress": _PROGRESS_PATTERN,
    "failed_seconds_ago": _SECONDS_PATTERN,
}
"""Attributes of a heartbeat that hold numbers, and their format."""

_is_past_epoch = (0.0).__le__


def validate_message(message: BatchMessage) -> None:
    """Raises BatchMessageError with reason "damaged" if any part of the message is invalid."""
    is_header_valid = (
        message.first_row < MAX_ROW > message.last_row
        and 0.0 <= message.sender_time <= MAX_TIME_SECONDS
    )
    if not (is_header_valid and all(map(_is_valid_entry, message.entries))):
        raise BatchMessageError("damaged", "The message holds values that are out of range.")


def is_valid_node_info(node_info: Mapping[str, str]) -> bool:
    """Whether all texts can be stored: within the size limit, and without lone surrogates."""
    try:
        return all(len(text.encode()) <= MAX_NODE_INFO_BYTES for text in node_info.values())
    except UnicodeEncodeError:
        return False


def _is_valid_entry(entry: RecordOrBatch) -> bool:
    if isinstance(entry, RecordBatch):
        return (
            0 <= min(entry.ranks) <= max(entry.ranks) < MAX_RANKS_AND_ATTEMPTS
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
    # A node may send metadata and samples of the whole run; all other events of the run are made by
    # the head.
    return entry.rank != WHOLE_RUN or entry.event in (Event.SAMPLE, Event.METADATA)


def _is_valid_heartbeat(heartbeat: Record) -> bool:
    attributes = heartbeat.attributes
    if attributes.get("cause") == "died" and not attributes.get("died_ranks"):
        return False
    for name in _ATTRIBUTE_PATTERNS.keys() & attributes.keys():
        if not _ATTRIBUTE_PATTERNS[name].fullmatch(attributes[name]):
            return False
    # If their sum is small, so is each.
    return sum(map(abs, heartbeat.values.values())) <= MAX_HEARTBEAT_VALUE or all(
        _is_valid_value(*each) for each in heartbeat.values.items()
    )


def _is_valid_value(name: str, value: float) -> bool:
    # A measurement that failed is NaN.
    return abs(value) <= MAX_HEARTBEAT_VALUE or (
        isnan(value) and node_combine_rule(name) is not None
    )
