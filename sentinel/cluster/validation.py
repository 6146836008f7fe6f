"""Sound: whether what another agent says can be counted with. Who has the secret may say anything.

What is read of a parcel is of the right types; here it is looked at before any of it is stored, or
taken apart later: a head that fell over it would fall over it again each time that it is begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isnan

from sentinel.cluster.node_hardware import rule_of
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import Entry, Sheet
from sentinel.transport.batch_codec import Parcel, ParcelError

ROWS = 1 << 63
"""A spool has fewer: no database counts so far."""
MOST = 1 << 31
"""There are fewer ranks, and fewer attempts."""
LATEST = 1e11
"""No clock is later, in seconds since the epoch: in the year 5138."""
LARGEST = 1e300
"""Nothing that a TICK tells is more, or its sum over all nodes would be no number."""
LONGEST = 4096
"""Bytes of each thing that a node says of itself."""

_SIZES = ("world_size", "local_world_size", "expected_ranks")

_RANK = "(0|[1-9][0-9]{0,9})"
_RANKS = re.compile(f"({_RANK}(,{_RANK})*)?")
_REACHED = re.compile(r"-?[0-9]{1,19},-?[0-9]{1,19}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_TAKEN_APART = {
    "gone": _RANKS,
    "failed": _RANKS,
    "behind": _RANKS,
    "behind_at": _REACHED,
    "fell_ago": _SECONDS,
}
"""Facts of a TICK that are numbers, as they are spelled."""

_is_past_epoch = (0.0).__le__


def check(parcel: Parcel) -> None:
    """Raises ParcelError, for damage, where anything in it cannot be counted with."""
    fits = parcel.first < ROWS > parcel.last and 0.0 <= parcel.clock <= LATEST
    if not (fits and all(map(_is_sound, parcel.entries))):
        raise ParcelError("damaged", "A parcel tells of what cannot be.")


def is_text(card: Mapping[str, str]) -> bool:
    """Whether all that a node says of itself can be stored, without half characters."""
    try:
        return all(len(text.encode()) <= LONGEST for text in card.values())
    except UnicodeEncodeError:
        return False


def _is_sound(entry: Entry) -> bool:
    if isinstance(entry, Sheet):
        ranks = 0 <= min(entry.ranks) <= max(entry.ranks) < MOST
        return ranks and 0 <= entry.attempt < MOST and all(map(_is_past_epoch, entry.times))
    if not (0 <= entry.attempt < MOST and WHOLE_RUN <= entry.rank < MOST and entry.time >= 0.0):
        return False
    if entry.event is Event.TICK:
        return _is_sound_tick(entry)
    if entry.event is Event.START and not all(
        0.0 <= entry.values.get(name, 0.0) < MOST for name in _SIZES
    ):
        return False
    # Facts and texts change no step; all else that is of the run, its judge says.
    return entry.rank != WHOLE_RUN or entry.event in (Event.SAMPLE, Event.FACTS)


def _is_sound_tick(tick: Record) -> bool:
    facts = tick.facts
    if facts.get("cause") == "died" and not facts.get("gone"):
        return False
    spelled = (form.fullmatch(facts[name]) for name, form in _TAKEN_APART.items() if name in facts)
    return all(spelled) and all(_is_sound_value(*each) for each in tick.values.items())


def _is_sound_value(name: str, value: float) -> bool:
    # What cannot be measured of a machine may well be no number.
    return abs(value) <= LARGEST or (isnan(value) and rule_of(name) is not None)
