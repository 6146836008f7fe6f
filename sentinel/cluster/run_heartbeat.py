"""The heartbeat of the run, made by its head from what the nodes reported last."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from sentinel.aggregate.aligner import ENDED_STATES
from sentinel.cluster.attempt_map import AttemptMap
from sentinel.cluster.heartbeats import NodeHeartbeat, merge_heartbeats
from sentinel.cluster.member import Member
from sentinel.cluster.membership import ABANDON_AFTER_SECONDS, Membership
from sentinel.cluster.node_hardware import NodeHardware
from sentinel.model.number_ranges import format_ranges
from sentinel.model.record import WHOLE_RUN, Event, Record


@dataclass
class RunHeartbeat:
    """Makes the heartbeat of `run`, and ends the ranks of nodes that are lost for good."""

    run: str
    membership: Membership
    node_hardware: NodeHardware
    attempt_map: AttemptMap

    def records(
        self,
        now: float,
        waiting_slots: Collection[int] = (),
        *,
        flood: str = "",
        is_last: bool = False,
    ) -> Iterator[Record]:
        """The heartbeat at `now`, in seconds since the epoch; before it, synthesized STOPs.

        Its attribute `unreported_ranks` holds the ranges of ranks that have sent nothing yet,
        `unread_ranks` ranks with records that have not arrived; `waiting_slots` are the slots with
        messages that are not processed. `flood` describes a flood of the message store, which
        makes the value `store_flooded` 1 instead of 0, and the attribute `store_flood`.

        Nothing before the first heartbeat of a node. `is_last` is whether the head shuts down
        after this one, so that what is undecided stays so.
        """
        attempt = self.attempt_map.current
        node_heartbeats = [
            each
            for member in self.membership.present_members(attempt)
            if (each := self._node_heartbeat(member, attempt)) is not None
        ]
        if not node_heartbeats:
            return
        unended = [*self.membership.unended_members(attempt)]
        if all(
            self.membership.silent_seconds(member) >= ABANDON_AFTER_SECONDS for member in unended
        ):
            yield from self._synthesize_stops(unended, now)
            unended = []
        heartbeat = merge_heartbeats(
            self.run,
            node_heartbeats,
            now,
            has_unheard_nodes=any(member.heartbeat is None for member in unended),
        )
        values, attributes = self.node_hardware.pop_combined()
        unreachable = self.membership.unreachable_ranks(unended, attempt)
        if unread := self.membership.unread_ranks(attempt, waiting_slots):
            attributes["unread_ranks"] = ",".join(map(str, unread))
        attributes["unreachable_ranks"] = ",".join(map(str, unreachable))
        if unreported := self.membership.unreported_ranks(attempt, self._world_size):
            attributes["unreported_ranks"] = ",".join(format_ranges(unreported))
        if heartbeat.attributes["state"] in ENDED_STATES and self._is_run_active():
            # The heartbeat of a node overtakes its last records.
            attributes["state"] = "running"
        values["store_flooded"] = float(bool(flood))
        if flood:
            attributes["store_flood"] = flood
        if is_last:
            attributes["final"] = "yes"
            if heartbeat.attributes.get("failure_origin") == "undecided":
                attributes["failure_origin"] = ""
        yield replace(
            heartbeat,
            values={**heartbeat.values, **values},
            attributes={**heartbeat.attributes, **attributes},
        )

    def deputy_slot(self) -> int:
        """The slot of the node that reports a loss of the head; 0 for none."""
        attempt = self.attempt_map.current
        candidates = {
            min(member.ranks_by_attempt[attempt]): slot
            for slot, member in self.membership.by_slot.items()
            if attempt in member.ranks_by_attempt and not self.membership.is_lost(member, attempt)
        }
        return candidates[min(candidates)] if candidates else 0

    @property
    def is_run_finished(self) -> bool:
        """Whether all ranks have ended and no node is expected to send more."""
        return not (
            any(self.membership.unended_members(self.attempt_map.current))
            or self._has_missing_ranks()
            or self.membership.is_awaiting_collective_ranks
        )

    @property
    def _world_size(self) -> int:
        """Ranks of the current attempt; 0 if that is unknown."""
        attempt = self.attempt_map.attempts.get(self.attempt_map.current)
        return 0 if attempt is None else attempt.world_size

    def _has_missing_ranks(self) -> bool:
        return self.membership.has_missing_ranks(self.attempt_map.current, self._world_size)

    def _is_run_active(self) -> bool:
        """Whether ranks of nodes that are not lost have not ended, or have not started."""
        attempt = self.attempt_map.current
        unended = self.membership.unended_members(attempt)
        return (
            not all(self.membership.is_lost(member, attempt) for member in unended)
            or self._has_missing_ranks()
        )

    def _node_heartbeat(self, member: Member, attempt: int) -> NodeHeartbeat | None:
        is_lost = self.membership.is_lost(member, attempt)
        if is_lost:
            self.node_hardware.forget(member.name)
            # A node that did not return after a restart of the head has no heartbeat.
            blank = Record(self.run, WHOLE_RUN, 0, 0.0, Event.HEARTBEAT, attempt=attempt)
            member.heartbeat = member.heartbeat or replace(blank, attributes={"state": "running"})
        return member.node_heartbeat(self.membership.silent_seconds(member), is_lost=is_lost)

    def _synthesize_stops(self, members: Iterable[Member], now: float) -> Iterator[Record]:
        """A STOP for each rank of these lost nodes, once all other ranks have ended."""
        attempt = self.attempt_map.current
        for member in members:
            member.abandoned_attempt = attempt
            for rank in member.unended_ranks(attempt):
                attributes = {"outcome": "died", "lost_node": member.host}
                member.add_rank(attempt, rank, has_ended=True)
                yield Record(
                    self.run, rank, 0, now, Event.STOP, attributes=attributes, attempt=attempt
                )
