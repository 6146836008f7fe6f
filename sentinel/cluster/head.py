"""Head: the records of all nodes as those of one run, for the agent that judges it.

What arrives of the others is taken in the order of each rank; its attempts become the run's, its
times are by our clock. How far each was heard is stored in the transaction that judges what was
heard, and confirmed only after: so nothing is lost, and nothing is taken twice.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from sentinel.aggregate.aligner import OVER
from sentinel.cluster.attempt_map import Attempt, Generations
from sentinel.cluster.gathered_ranks import Gathered
from sentinel.cluster.heartbeats import Told, merged
from sentinel.cluster.member import Member, refused
from sentinel.cluster.membership import FOR_GOOD_SECONDS, OURS, Roster
from sentinel.cluster.node_hardware import Machines
from sentinel.cluster.server import Hello, Hub
from sentinel.cluster.validation import check, is_text
from sentinel.model.counters import Tally
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import Entry, gathered, records_of
from sentinel.transport.batch_codec import Parcel, ParcelError

YOUNG_SECONDS = 120.0
"""How long a head that just began would rather give way to one that has judged the run before."""


@dataclass
class Head:
    """Brings the nodes of `run` together; ours is `host`. `clock` gives seconds since the epoch."""

    run: str
    host: str
    connection: sqlite3.Connection
    hub: Hub
    tally: Tally
    clock: Callable[[], float] = time.time
    machines: Machines = field(default_factory=Machines)
    elder: str = ""
    """The address of another head of this run, that has judged it for longer."""
    final: bool = False
    """Whether this is our last turn: what is still open will not be decided by us."""
    _answers: dict[int, tuple[int, int]] = field(default_factory=dict)
    _deputy: int = 0

    def __post_init__(self) -> None:
        self.roster = Roster(self.host, self.connection, self.clock)
        self.gathered = Gathered(self.roster)
        query = "select value from cluster where key = 'generations'"
        row = self.connection.execute(query).fetchone()
        self._kept = row[0] if row else ""
        self.generations = Generations.restored(self._kept)
        # All that we judged so far, while another may have to judge it instead.
        self._past: list[Record] | None = None if self._kept else []

    def begin(self, attempt: int) -> None:
        """Our own node is in that attempt of its own, and those before it were the run's."""
        if not self._kept and attempt > 0:
            self.generations.attempts[attempt - 1] = Attempt()
            self.generations.nodes[OURS] = {attempt - 1: attempt - 1}
            self._past = None

    def turn(self, local: Iterable[Entry]) -> list[Entry]:
        """What our own node said and all that arrived, as the run's."""
        now = self.clock()
        self.roster.awake.look()
        for hello in self.hub.hellos():
            self._welcome(hello)
        local = [*local]
        self._grow_up(local)
        entries: list[Entry] = []
        ticked = False
        for entry in local:
            if isinstance(entry, Record) and entry.event is Event.TICK:
                ticked = True
            entries += self._placed(self.roster.own, entry)
        for slot, data in self.hub.arrived():
            entries += self._arrived(slot, data, now)
        if ticked:
            entries += self._roll(now)
        return gathered(entries)

    def keep(self) -> None:
        """Store how far each node was heard, within the caller's transaction."""
        self.roster.keep()
        kept = self.generations.kept()
        if kept != self._kept:
            self._kept = kept
            self.connection.execute(
                "insert or replace into cluster(key, value) values('generations', ?)", (kept,)
            )

    def kept(self) -> None:
        """All that was taken is safe: confirm it."""
        while self._answers:
            slot, (number, row) = self._answers.popitem()
            self.hub.answer(slot, number, row, deputy=slot == self._deputy)

    @property
    def due(self) -> bool:
        """Whether there is anything to store."""
        return self.roster.due

    @property
    def over(self) -> bool:
        """Whether no node has anything to say any more."""
        waits = any(self.roster.waited_for(self.generations.current)) or self._misses()
        return not waits and not self.gathered.may_come

    def state(self) -> list[dict[str, Any]]:
        """Each node in plain words; see `Roster.told`."""
        return self.roster.told(self.generations.current)

    def hears(self, rank: int) -> bool:
        """Whether that rank has spoken in the newest attempt."""
        attempt = self.generations.current
        present = self.roster.present(attempt)
        return any(rank in member.ranks.get(attempt, ()) for member in present)

    @property
    def young(self) -> list[Record] | None:
        """Our node's records so far, if we began just now and no other node has come to us yet."""
        return self._past

    def _grow_up(self, local: Iterable[Entry]) -> None:
        if self.roster.by_slot or self.roster.awake.seconds >= YOUNG_SECONDS:
            self._past = None
        if self._past is not None:
            said = records_of(local)
            self._past += (record for record in said if record.event is not Event.TICK)

    def _welcome(self, hello: Hello) -> None:
        if not is_text(hello.card):
            refused(self.tally, "damaged")
            self.hub.drop(hello.slot)
            return
        if "elder" in hello.card:
            self.elder = hello.card["elder"]
            self.hub.drop(hello.slot)
            return
        member, before = self.roster.enter(hello.slot, hello.card, self.run)
        if before:
            self.hub.drop(before)
            self._answers.pop(before, None)
        self.machines.nodes = max(self.machines.nodes, 1 + len(self.roster.by_slot))
        self._answers[hello.slot] = 0, member.row

    def _arrived(self, slot: int, data: bytes, now: float) -> Iterator[Entry]:
        member = self.roster.by_slot.get(slot)
        if member is None:
            return
        try:
            parcel = member.reader.parcel(data)
            check(parcel)
        except ParcelError as refusal:
            refused(self.tally, refusal.reason)
            # What explains the next one may have been in it: it has to begin anew.
            self.hub.drop(slot)
            return
        yield from self._opened(member, parcel, now)
        self._answers[slot] = parcel.number, member.row

    def _opened(self, member: Member, parcel: Parcel, now: float) -> Iterator[Entry]:
        member.heard_at = self.roster.awake.seconds
        for entry in member.take(parcel, now, self.tally):
            yield from self._placed(member, entry)

    def _placed(self, member: Member, entry: Entry) -> Iterator[Entry]:
        """What was said, in its attempt of the run; a TICK is kept for the roll."""
        if isinstance(entry, Record):
            yield from self._known(member, entry)
            return
        attempt = self.generations.of(member.key, entry.attempt)
        if attempt is None:
            for record in entry.records():
                yield from self._known(member, record)
            return
        member.meet(attempt, entry.ranks)
        self.roster.heard_at = self.roster.awake.seconds
        yield entry if attempt == entry.attempt else replace(entry, attempt=attempt)

    def _known(self, member: Member, record: Record) -> Iterator[Record]:
        attempt = self._attempt(member, record)
        if attempt != record.attempt:
            record = replace(record, attempt=attempt)
        if record.event is Event.TICK:
            if own := self.machines.hear(member.name, member.host, record.values):
                values = {name: told for name, told in record.values.items() if name not in own}
                record = replace(record, values=values)
            member.tick = record
            return
        if member is self.roster.own and not self.gathered.takes(attempt, record):
            return
        if record.event is Event.START:
            expected = {"expected_ranks": record.values.get("world_size", 1.0)}
            record = replace(record, values={**record.values, **expected})
        member.note(attempt, record.rank, ended=record.event is Event.STOP)
        self.roster.heard_at = self.roster.awake.seconds
        yield record

    def _attempt(self, member: Member, record: Record) -> int:
        """Its attempt of the run: a START says what is known of it, other words may go without."""
        known = self.generations.of(member.key, record.attempt)
        # What rank 0 gathered is claimed by nobody: the ranks' own nodes may tell of it yet.
        by_rank_0 = known is not None and "gathered" in record.facts
        if record.event is Event.START and not by_rank_0:
            told = record.values.get("world_size", 0.0)
            world = int(told) if isfinite(told) else 0
            port = record.facts.get("master_port", "")
            who = member.key, record.attempt, record.rank
            return self.generations.place(*who, world, port, time=record.time)
        if known is not None:
            return known
        if record.rank == WHOLE_RUN:
            return max(self.generations.current, 0)
        who = member.key, record.attempt, record.rank
        return self.generations.place(*who, 0, time=record.time)

    def _roll(self, now: float) -> Iterator[Record]:
        """The one TICK of the run; and the end of those that nobody waits for any more."""
        attempt = self.generations.current
        self._deputy = self._chosen(attempt)
        self.hub.over = self.over
        told = [self._told(member, attempt) for member in self.roster.present(attempt)]
        known = [each for each in told if each is not None]
        if not known:
            return
        waiting = [*self.roster.waited_for(attempt)]
        if all(self.roster.silent(member) >= FOR_GOOD_SECONDS for member in waiting):
            yield from self._given_up(waiting, now)
            waiting = []
        unheard = any(member.tick is None for member in waiting)
        tick = merged(self.run, known, now, unheard=unheard)
        values, facts = self.machines.news()
        facts["away"] = ",".join(map(str, self.roster.away(waiting, attempt)))
        if tick.facts["state"] in OVER and self._goes_on():
            # A node's TICK is newer than its records that are still under way.
            facts["state"] = "running"
        if self.final:
            facts["final"] = "yes"
            if tick.facts.get("fall") == "open":
                facts["fall"] = ""
        yield replace(tick, values={**tick.values, **values}, facts={**tick.facts, **facts})

    def _chosen(self, attempt: int) -> int:
        """The slot of the node that is to tell people if we fall silent; 0 for none."""
        fit = {
            min(member.ranks[attempt]): slot
            for slot, member in self.roster.by_slot.items()
            if attempt in member.ranks and not self.roster.lost(member, attempt)
        }
        return fit[min(fit)] if fit else 0

    def _misses(self) -> bool:
        attempt = self.generations.attempts.get(self.generations.current)
        world = 0 if attempt is None else attempt.world
        return self.roster.misses(self.generations.current, world)

    def _goes_on(self) -> bool:
        """Whether there is more to be heard of how the run goes, of others than lost nodes."""
        attempt = self.generations.current
        waiting = self.roster.waited_for(attempt)
        return not all(self.roster.lost(each, attempt) for each in waiting) or self._misses()

    def _told(self, member: Member, attempt: int) -> Told | None:
        lost = self.roster.lost(member, attempt)
        if lost:
            self.machines.forget(member.name)
            # One that did not come back to a head that was restarted: all we know is that it is.
            blank = Record(self.run, WHOLE_RUN, 0, 0.0, Event.TICK, attempt=attempt)
            member.tick = member.tick or replace(blank, facts={"state": "running"})
        return member.told(self.roster.silent(member), lost=lost)

    def _given_up(self, waiting: Iterable[Member], now: float) -> Iterator[Record]:
        """A STOP for each rank of these nodes, who are long lost while all others have ended."""
        attempt = self.generations.current
        for member in waiting:
            member.given_up = attempt
            for rank in member.unended(attempt):
                facts = {"outcome": "died", "lost": member.host}
                end = Record(self.run, rank, 0, now, Event.STOP, facts=facts, attempt=attempt)
                member.note(attempt, rank, ended=True)
                yield end
