"""Gathered: what our own node tells of ranks of others, since rank 0 gathers what they say.

Once that is over, each is told of by its own node: some from the beginning, some only as they end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from sentinel.cluster.membership import FOR_GOOD_SECONDS, Roster
from sentinel.model.record import Event, Record
from sentinel.signals.run_metadata import is_provisional


@dataclass
class Gathered:
    """The ranks of other nodes, by the `roster`, that our own told of."""

    roster: Roster
    ranks: set[int] = field(default_factory=set)
    _let_go_at: float = -inf
    """When one of them last ended of which its own node may yet tell more."""

    def takes(self, attempt: int, record: Record) -> bool:
        """Whether that word of our node counts; not where the rank's own node tells it by now.

        An end is told all the same: nobody waits here for any more of that rank.
        """
        if "gathered" in record.facts:
            self.ranks.add(record.rank)
        if record.event is Event.STOP:
            if is_provisional(record):
                self._let_go_at = self.roster.awake.seconds
            return True
        if record.rank not in self.ranks:
            return True
        others = self.roster.by_slot.values()
        return not any(record.rank in each.ranks.get(attempt, ()) for each in others)

    @property
    def may_come(self) -> bool:
        """Whether the nodes of ranks that were let go of may yet find us."""
        return self.roster.awake.seconds - self._let_go_at < FOR_GOOD_SECONDS
