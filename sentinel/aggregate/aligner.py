"""Align: the ranks' records of one step brought together into one record for the run.

Ranks are aligned by attempt and beat, which only grow; the trainer's own step number travels along
and may misbehave. A step is closed when every rank expected has moved past it, when all have
spoken and `settle` seconds passed without a further word, or `deadline` seconds after the first
word, and then the missing ranks are named. Ranks of lost nodes are missing at once. Steps close in
order. Time is what TICK records say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sentinel.aggregate.pending_step import Moment, Past, Place, without
from sentinel.aggregate.rank_values import Said
from sentinel.aggregate.reduce import combine, placed
from sentinel.model.counters import Tally
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import Entry, Sheet
from sentinel.signals.run_metadata import About, gathers_no_more, is_told_elsewhere
from sentinel.transport.ring_layout import UNKNOWN

OPEN_STEPS = 4096
"""Steps held open at most; beyond it the oldest is closed as it stands."""

OVER = frozenset({"finished", "failed", "died"})
"""States of which a TICK tells once no rank is left."""

_TURN = {Event.STEP: 0, Event.EVAL: 1}
"""Events that ranks are waited for in, and which of one beat closes first."""

NODES_SECONDS = 30.0
"""How long the ranks of other nodes are waited for at a start: their agents must find ours."""


@dataclass
class Aligner:
    """Turns records of single ranks into the run's; `feed` yields whatever a record completes.

    Records of single ranks are passed on unchanged, ahead of what they complete; those of a sheet
    are not. `deadline` and `settle` are in seconds.
    """

    tally: Tally = field(default_factory=Tally)
    deadline: float = 10.0
    settle: float = 0.5

    attempt: int = -1
    now: float = 0.0
    started_at: float = 0.0
    declared: int = 0
    granted: float = 0.0
    joined_at: float = 0.0
    """Where ranks are on other nodes: seconds given to begin; when the last began, or was away."""
    world: int = 0
    """Ranks of the whole run, as they say themselves."""
    about: About = field(default_factory=About)
    started: set[int] = field(default_factory=set)
    own: set[int] = field(default_factory=set)
    """Those of them that their own node's agent told of."""
    ended: dict[int, dict[str, str]] = field(default_factory=dict)
    """What each rank that ended said of it, in the order they ended."""
    lost: set[int] = field(default_factory=set)
    """Ranks of nodes that are not heard."""
    laggard: int = WHOLE_RUN
    """A rank that was waited for, the last time that all were looked at."""
    beats: dict[int, int] = field(default_factory=dict)
    moments: dict[Place, Moment] = field(default_factory=dict)
    past: Past = field(default_factory=Past)
    closed_at: float = 0.0
    pace: float = 0.0
    """Seconds between the last two steps."""
    saved: int = -1
    last_word: Record | None = None
    """The newest end of a rank, while that of the run was not told."""

    def feed(self, entry: Entry) -> Iterator[Record]:
        """Take one entry in; yield it, then the combined records it completes, in order."""
        if isinstance(entry, Sheet):
            yield from self._read(entry)
        elif entry.event is Event.TICK:
            yield from self._tick(entry)
        else:
            yield from self._take(entry)

    def _take(self, record: Record) -> Iterator[Record]:
        if record.rank == WHOLE_RUN:
            # Of a log that is followed: it is the run's already.
            yield record
            return
        # Before the first tick a record's own clock is all there is.
        self.now = self.now or record.time
        if record.attempt < self.attempt:
            self.tally.add("sentinel_dropped_records_total", "old_attempt")
            return
        yield record
        self.lost.discard(record.rank)
        if record.event is Event.FACTS:
            self.about.learn(record.facts)
            self.started_at = self.now if gathers_no_more(record) else self.started_at
        if record.event is Event.START:
            yield from self._start(record)
        elif record.event is Event.STOP:
            yield from self._stop(record)
        elif record.event in _TURN:
            yield from self._hear(record)
        elif record.event is Event.SAVE:
            yield from self._save(record)
        elif record.event is not Event.SAMPLE:
            yield replace(record, rank=WHOLE_RUN)

    def _tick(self, record: Record) -> Iterator[Record]:
        self.now = record.time
        self.joined_at = self.now if record.facts.get("away") else self.joined_at
        self._lose(record)
        yield from self._close_ready()
        if record.facts.get("state") in OVER or self._sure():
            yield from self._conclude()
        yield record

    def _lose(self, tick: Record) -> None:
        """Wait no longer for the ranks that a TICK tells to be lost: all others may have ended."""
        told = tick.facts.get("lost") if tick.attempt == self.attempt else None
        self.lost = {int(rank) for rank in told.split(",")} if told else set()

    def _start(self, record: Record) -> Iterator[Record]:
        if record.attempt > self.attempt:
            yield from self._conclude()
            yield from self._close_all()
            self._forget(record.attempt)
            yield replace(record, rank=WHOLE_RUN)
        self.started.add(record.rank)
        if "gathered" not in record.facts:
            self.own.add(record.rank)
            if record.rank in self.beats:
                # What it said was gathered, and now its own node's agent tells all of it.
                self.moments = without(record.rank, self.moments)
        # A command that failed before any rank began was told of in this rank's name.
        self.ended.pop(record.rank, None)
        local = int(record.values.get("local_world_size", 1))
        expected = int(record.values.get("expected_ranks", local))
        self.declared = max(self.declared, expected)
        if expected > local:
            self.granted, self.joined_at = NODES_SECONDS, self.now
        self.world = max(self.world, int(record.values.get("world_size", 1)))
        # A rank that starts late knows less than what the others have found out by then.
        self.about.meet(record)

    def _forget(self, attempt: int) -> None:
        self.attempt, self.started_at, self.declared = attempt, self.now, 0
        self.granted, self.joined_at, self.world, self.about = 0.0, 0.0, 0, About()
        for book in (self.started, self.own, self.ended, self.lost, self.beats, self.moments):
            book.clear()
        self.past, self.closed_at, self.pace, self.saved = Past(), 0.0, 0.0, -1
        self.last_word = None

    def _save(self, record: Record) -> Iterator[Record]:
        """A checkpoint is told at once, and once, however many ranks wrote a part of it."""
        if record.beat > self.saved:
            self.saved = record.beat
            yield replace(record, rank=WHOLE_RUN)

    def _stop(self, record: Record) -> Iterator[Record]:
        if is_told_elsewhere(record):
            # By those who tell of it from now on, it may have been met already.
            self.started -= {record.rank} - self.own
            return
        self.ended.setdefault(record.rank, dict(record.facts))
        self.last_word = record
        yield from self._close_ready()
        # Of a short run one rank is read to its end before another is heard at all.
        yield from self._conclude() if self._sure() else ()

    def _conclude(self) -> Iterator[Record]:
        """Tell how the run ended, if all that began did and that was not told."""
        all_ended = self.ended and self.started - self.lost <= self.ended.keys()
        if self.last_word is not None and all_ended:
            last, self.last_word = self.last_word, None
            yield from self._close_all()
            yield self._ending(last)

    def _ending(self, last: Record) -> Record:
        # The first rank to fall is the cause; those after it were taken along.
        # One that is unknown says nothing of the run.
        known = [facts for facts in self.ended.values() if facts.get("outcome") != UNKNOWN]
        bad = (facts for facts in known if facts.get("outcome") != "finished")
        cause = next(bad, known[-1] if known and last.facts not in known else last.facts)
        alike = [rank for rank, facts in self.ended.items() if facts == cause]
        return replace(last, rank=WHOLE_RUN, facts={**cause, "ranks": ",".join(map(str, alike))})

    def _read(self, sheet: Sheet) -> Iterator[Record]:
        """What several ranks say of a step that is still open at one go, all else one by one."""
        self.now = self.now or sheet.times[0]
        if sheet.attempt < self.attempt:
            self.tally.add("sentinel_dropped_records_total", "old_attempt", len(sheet.ranks))
            return
        self.lost.difference_update(sheet.ranks)
        place = sheet.beat, _TURN[Event.STEP]
        if place <= self.past.upto and place not in self.moments:
            for record in sheet.records():
                yield from self._hear(record)
            return
        self.started.update(sheet.ranks)
        self.attempt = max(self.attempt, sheet.attempt)
        self.about.hear(sheet.names)
        behind = [rank for rank in sheet.ranks if self.beats.get(rank, -1) < sheet.beat]
        self.beats.update(dict.fromkeys(behind, sheet.beat))
        yield from self._note(place, sheet)

    def _note(self, place: Place, entry: Entry) -> Iterator[Record]:
        moment = self.moments.setdefault(place, Moment(self.now, self.now))
        moment.hear(entry, self.now, self.about.dialect)
        yield from self._close_ready()

    def _hear(self, record: Record) -> Iterator[Record]:
        self.started.add(record.rank)
        self.attempt = max(self.attempt, record.attempt)
        self.about.hear(record.values)
        place = record.beat, _TURN[record.event]
        if place <= self.past.upto and place not in self.moments:
            said = Said(record)
            said.add(record, self.about.dialect)
            if not self.past.reopens(place, record, said):
                yield from self._late(place, record, said)
                return
        self.beats[record.rank] = max(record.beat, self.beats.get(record.rank, -1))
        yield from self._note(place, record)

    def _late(self, place: Place, record: Record, said: Said) -> Iterator[Record]:
        """A word on a closed moment: judged where it is news, else only counted."""
        if not self.past.is_news(place, said):
            self.tally.add("sentinel_dropped_records_total", "late")
            return
        yield combine(record.event, {record.rank: said}, (), self.about.facts, self.world)

    def _close_ready(self) -> Iterator[Record]:
        if len(self.moments) <= OPEN_STEPS and not self._all_here():
            return
        for place in sorted(self.moments):
            if len(self.moments) <= OPEN_STEPS and not self._ready(place, self.moments[place]):
                return
            yield self._close(place)

    def _ready(self, place: Place, moment: Moment) -> bool:
        # A slow run's ranks speak as far apart as its steps are long.
        heard = max(moment.first_heard, self.joined_at)
        if self.now - heard >= max(self.deadline, 2 * self.pace):
            return True
        settled = self.now - moment.last_heard >= self.settle
        # With very many ranks all of them are looked at but seldom.
        enough = settled and self.laggard in moment.heard
        if self._waits_for(self.laggard, place[0]) and not enough:
            return False
        waiting = {rank for rank in self.started if self._waits_for(rank, place[0])}
        unheard = waiting - moment.heard
        self.laggard = next(iter(unheard or waiting), WHOLE_RUN)
        return not waiting or (settled and not unheard)

    def _waits_for(self, rank: int, beat: int) -> bool:
        """Whether that rank may yet speak of that beat: long silent, it leaves that to others."""
        if rank in self.ended or rank in self.lost or rank not in self.started:
            return False
        return self.beats[rank] <= beat if rank in self.beats else not self._begun()

    def _all_here(self) -> bool:
        return self._all_heard() or self._begun()

    def _all_heard(self) -> bool:
        return len(self.started) + len(self.lost - self.started) >= self.declared

    def _sure(self) -> bool:
        """Whether nobody is to be heard for the first time; of other nodes, their TICK will say."""
        return self._all_heard() if self.granted else self._all_here()

    def _begun(self) -> bool:
        """Whether a rank that has not spoken by now is one without sentinel: not waited for."""
        return self.now - self.started_at >= max(self.deadline, self.granted)

    def _close(self, place: Place) -> Record:
        moment = self.moments.pop(place)
        silent = (self.beats.keys() | self.lost) - self.ended.keys() - moment.heard
        # An evaluation is often one rank's alone.
        event, missing = Event.EVAL, []
        if place[1] == _TURN[Event.EVAL]:
            self.past.evaluators = moment.heard
        else:
            event, missing = Event.STEP, sorted(silent)
            self.pace = moment.first_heard - self.closed_at if self.closed_at else 0.0
            self.closed_at = moment.first_heard
        facts, world = self.about.facts, self.world
        combined = combine(event, moment.said, missing, facts, world, tables=moment.tables)
        self.past.close(place, combined.values)
        return placed(combined, self.about.hosts)

    def _close_all(self) -> Iterator[Record]:
        for place in sorted(self.moments):
            yield self._close(place)
