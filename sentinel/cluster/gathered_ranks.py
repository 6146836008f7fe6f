"""Gathered: what our own node tells of ranks of others, since rank 0 gathers what they say.

Once that is over, each is told of by its own node: some from the beginning, some only as they end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from sentinel.cluster.membership import ABANDON_AFTER_SECONDS, Membership
from sentinel.model.record import Event, Record
from sentinel.signals.run_metadata import is_provisional_stop


@dataclass
class GatheredRanks:
    """The ranks of other nodes, by the `roster`, that our own told of."""

    membership: Membership
    ranks: set[int] = field(default_factory=set)
    _provisional_stop_at: float = -inf
    """When one of them last ended of which its own node may yet tell more."""

    def accepts(self, attempt: int, record: Record) -> bool:
        """Whether that word of our node counts; not where the rank's own node tells it by now.

        An end is told all the same: nobody waits here for any more of that rank.
        """
        if "via_collective" in record.attributes:
            self.ranks.add(record.rank)
        if record.event is Event.STOP:
            if is_provisional_stop(record):
                self._provisional_stop_at = self.membership.listening_clock.seconds
            return True
        if record.rank not in self.ranks:
            return True
        others = self.membership.by_slot.values()
        return not any(record.rank in each.ranks_by_attempt.get(attempt, ()) for each in others)

    @property
    def is_awaiting_ranks(self) -> bool:
        """Whether the nodes of ranks that were let go of may yet find us."""
        return (
            self.membership.listening_clock.seconds - self._provisional_stop_at
            < ABANDON_AFTER_SECONDS
        )
