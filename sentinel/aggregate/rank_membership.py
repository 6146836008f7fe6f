"""Which ranks of the current attempt have started, stopped, are lost, or are still expected."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from sentinel.model.rank_end import RankEnd, first_failure
from sentinel.model.record import UNKNOWN_OUTCOME, WHOLE_RUN, Record, is_collective_handover

MAX_LOST_WAIT_SECONDS = 60.0
"""How long steps wait for the ranks of a lost node while the other ranks wait for it as well."""
RECONNECT_SECONDS = 10.0
"""How long steps still wait for lost ranks once the others no longer do: the link is back then, and
the agent of the node connects again with a delay that grows to 5 seconds."""
NODE_JOIN_SECONDS = 30.0
"""Wait for the ranks of other nodes at a start: their agents have to find this one."""


@dataclass
class RankMembership:
    """The ranks of one attempt. Times are in seconds.

    `start_timeout_seconds` is how long a rank may take to report after `started_at`.
    """

    start_timeout_seconds: float = 10.0
    started_at: float = 0.0
    expected_ranks: int = 0
    join_seconds: float = 0.0
    last_joined_at: float = 0.0
    """With ranks on other nodes: time to start, and when the last started or was unreachable."""
    world_size: int = 0
    """Ranks of the whole run, as the ranks report it."""
    started: set[int] = field(default_factory=set)
    directly_reported: set[int] = field(default_factory=set)
    """Started ranks that the agent of their own node reports."""
    lost: set[int] = field(default_factory=set)
    """Ranks of nodes that do not answer."""
    unread: set[int] = field(default_factory=set)
    """Ranks whose rings hold records that the agent has not read yet."""
    not_started: set[int] = field(default_factory=set)
    """Ranks that are lost or unread, and have not started."""
    is_run_waiting: bool = False
    """Whether all other ranks wait for the lost ones, so that no later step is held up, or just
    did."""
    waited_at: float = -inf
    """When they last waited."""
    step_index_by_rank: dict[int, int] = field(default_factory=dict)
    """Newest step index of each rank that has reported values."""
    stop_attributes_by_rank: dict[int, dict[str, str]] = field(default_factory=dict)
    """Attributes of each rank's STOP record, in the order the ranks stopped."""
    stop_times: dict[int, float] = field(default_factory=dict)
    """When they stopped, in seconds since the epoch."""
    unreported_stop: Record | None = None
    """The newest STOP of a rank, until that of the run is reported."""

    def add_start(self, start: Record, now: float) -> bool:
        """Add a rank that starts; True if it was known only through the collective so far."""
        rank = start.rank
        self.mark_started([rank])
        was_gathered = False
        if "via_collective" not in start.attributes:
            self.directly_reported.add(rank)
            was_gathered = rank in self.step_index_by_rank
        # A command that failed before any rank started was reported under this rank.
        self.stop_attributes_by_rank.pop(rank, None)
        self.stop_times.pop(rank, None)
        local = int(start.values.get("local_world_size", 1))
        expected = int(start.values.get("expected_ranks", local))
        self.expected_ranks = max(self.expected_ranks, expected)
        if expected > local:
            self.join_seconds, self.last_joined_at = NODE_JOIN_SECONDS, now
        self.world_size = max(self.world_size, int(start.values.get("world_size", 1)))
        return was_gathered

    def mark_reachable(self, ranks: Iterable[int]) -> None:
        """Note that these ranks are not lost."""
        self.lost.difference_update(ranks)

    def mark_started(self, ranks: Iterable[int]) -> None:
        """Note that these ranks have started, and are not lost."""
        self.lost.difference_update(ranks)
        self.started.update(ranks)
        self.not_started.difference_update(ranks)

    def advance(self, ranks: Sequence[int], step_index: int) -> None:
        """Note that these ranks have started, and have reported values of that step."""
        self.mark_started(ranks)
        newest = self.step_index_by_rank
        behind = [rank for rank in ranks if newest.get(rank, -1) < step_index]
        newest.update(dict.fromkeys(behind, step_index))

    def add_stop(self, stop: Record) -> bool:
        """Add a rank that stops; False if it only leaves the collective."""
        if is_collective_handover(stop):
            # The agent of its own node may have reported it already.
            self.started -= {stop.rank} - self.directly_reported
            self._find_not_started()
            return False
        self.stop_attributes_by_rank.setdefault(stop.rank, dict(stop.attributes))
        self.stop_times.setdefault(stop.rank, stop.time)
        self.unreported_stop = stop
        return True

    def update_from_heartbeat(self, heartbeat: Record, attempt: int) -> None:
        """Note which ranks are lost, unreachable or not read to their end."""
        unread = heartbeat.attributes.get("unread_ranks")
        self.unread = {int(rank) for rank in unread.split(",")} if unread else set()
        if heartbeat.attributes.get("unreachable_ranks"):
            self.last_joined_at = heartbeat.time
        is_given_up = heartbeat.values.get("lost_seconds", 0.0) >= MAX_LOST_WAIT_SECONDS
        if heartbeat.attributes.get("blocked_by") == "node_lost" and not is_given_up:
            self.waited_at = self.last_joined_at = heartbeat.time
        since_waiting = heartbeat.time - self.waited_at
        self.is_run_waiting = since_waiting < RECONNECT_SECONDS and not is_given_up
        lost = heartbeat.attributes.get("lost_ranks") if heartbeat.attempt == attempt else None
        self.lost = {int(rank) for rank in lost.split(",")} if lost else set()
        self._find_not_started()

    def _find_not_started(self) -> None:
        self.not_started = (self.lost | self.unread) - self.started

    def take_run_stop(self, now: float, *, has_ended: bool) -> Record | None:
        """The STOP of the run, once, if all ranks that started have stopped or are lost.

        Unless the run `has_ended`, further ranks may have to start first.
        """
        last, stopped = self.unreported_stop, self.stop_attributes_by_rank
        # Ranks are only compared one by one once enough have stopped.
        if last is None or len(stopped) < len(self.started) - len(self.lost):
            return None
        if not stopped or not self.started - self.lost <= stopped.keys():
            return None
        # For other nodes, their heartbeat decides.
        is_final = self.has_all_ranks() if self.join_seconds else self.is_complete(now)
        if not has_ended and not is_final:
            return None
        self.unreported_stop = None
        # An unknown outcome is no evidence of how the run ended.
        known = [each for each in stopped.values() if each.get("outcome") != UNKNOWN_OUTCOME]
        newest = known[-1] if known and last.attributes not in known else last.attributes
        ends = [
            RankEnd((rank,), self.stop_times.get(rank, last.time), each)
            for rank, each in stopped.items()
        ]
        causes, _ = first_failure(ends)
        if causes:
            ranks = ",".join(str(rank) for each in causes for rank in sorted(each.ranks))
            return replace(
                last, rank=WHOLE_RUN, attributes={**causes[0].attributes, "ranks": ranks}
            )
        ranks = ",".join(str(rank) for rank, each in stopped.items() if each == newest)
        return replace(last, rank=WHOLE_RUN, attributes={**newest, "ranks": ranks})

    def update_awaited(
        self,
        awaited: list[int],
        step_index: int,
        now: float,
        reported: Collection[int],
        *,
        is_overdue: bool,
    ) -> bool:
        """Whether any rank may still report values of that step, or more than it has `reported`.

        Before all ranks have started, some may. All ranks are checked when those that were found to
        be `awaited` are no longer: of each rank and step once or twice, in whatever order and at
        whatever pace the ranks report. Of a step that is overdue, only what may be unread in a ring
        is awaited. A rank that has not reported any values for long leaves that to the others.
        """
        if not self.is_complete(now):
            return True
        newest, stopped = self.step_index_by_rank, self.stop_attributes_by_rank

        def is_awaited(rank: int) -> bool:
            if rank in stopped or newest.get(rank, step_index) > step_index:
                return False
            if rank in self.unread:
                return True
            is_given_up = rank in self.lost and not self.is_run_waiting
            if is_overdue or rank in reported or is_given_up or rank not in self.started:
                return False
            return rank in newest or not self.is_start_timed_out(now)

        while awaited and newest.get(awaited[-1], step_index) > step_index:
            awaited.pop()
        while awaited and not is_awaited(awaited[-1]):
            awaited.pop()
        if not awaited:
            known = self.unread if is_overdue else self.unread | self.started.difference(reported)
            behind = [rank for rank in known if newest.get(rank, step_index) <= step_index]
            awaited.extend(filter(is_awaited, behind))
        return bool(awaited)

    def silent_ranks(self) -> set[int]:
        """Ranks that should report values: those that have before, and lost ones."""
        return (self.step_index_by_rank.keys() | self.lost) - self.stop_attributes_by_rank.keys()

    def has_all_ranks(self) -> bool:
        """Whether all expected ranks have started or are lost."""
        return len(self.started) + len(self.lost & self.not_started) >= self.expected_ranks

    def is_start_timed_out(self, now: float) -> bool:
        """Whether a rank that has not reported by now runs without sentinel: it is not awaited."""
        if not self.unread.isdisjoint(self.not_started):
            return False
        return now - self.started_at >= max(self.start_timeout_seconds, self.join_seconds)

    def is_complete(self, now: float) -> bool:
        """Whether all expected ranks have started, or the time to start is over."""
        return self.has_all_ranks() or self.is_start_timed_out(now)
