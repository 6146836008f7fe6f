"""Requesting: what is asked of the ranks of this node when a case turns critical, once a case.

What is asked is decided and stored in the transaction that stores its cause, and written where the
ranks look once that is done. An agent that takes over finds what was stored and never written, and
writes that very request, if there is still time; it never makes another of it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from pathlib import Path

from sentinel.model.finding import Severity
from sentinel.model.incident import Page, Reason
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.cases import ENDINGS
from sentinel.pipeline.engine import Verdict
from sentinel.store.silences import Quiet
from sentinel.transport.command_page import DEEDS, Request, Requests, page_beside
from sentinel.transport.ring import RingReader
from sentinel.transport.ring_layout import Header

log = logging.getLogger(__name__)

TOLD = "monitor/on_critical"
"""The fact by which a run says what `sentinel.monitor` was given; it hides the setting."""
MOST_STEPS, LEAST_STEPS = 10, 3
"""How far ahead a request is: ten steps, or as many as `UNHURRIED_SECONDS` are, but three."""
UNHURRIED_SECONDS = 20.0
LEAST_SECONDS = 2.0
"""And not less than so many seconds, however fast the steps are."""
_LOOKS = 16
_WORDS = {"checkpoint": "a checkpoint", "stop": "a stop", "call": "a call of your function"}

Deeds = frozenset[str]
_Newest = tuple[Request, int, int]
"""A request, the attempt it is made of, and the step that its beat is."""


class RefusedError(RuntimeError):
    """Why nothing can be asked of the run, as the end of a sentence."""


_TURNED = (Reason.OPENED, Reason.WORSENED)
"""With which a case turns critical; of what else is told of it nobody need act."""


@dataclass
class Pace:
    """How fast the run goes, by the beats seen at the last looks."""

    seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_LOOKS))

    def see(self, header: Header) -> None:
        """The fastest rank is there now."""
        if self.seen and header.last_beat < self.seen[-1][1]:
            self.seen.clear()
        if not self.seen or header.last_beat > self.seen[-1][1]:
            self.seen.append((header.last_time, header.last_beat))

    def margin(self, header: Header) -> int:
        """Beats from here to one that every rank hears of in time."""
        (began, first), (now, last) = self.seen[0], self.seen[-1]
        if len(self.seen) < 2:
            began, first, now, last = header.created, 0, header.last_time, header.last_beat
        beats = [beat for _, beat in self.seen]
        stride = min((b - a for a, b in pairwise(beats)), default=1)
        if now <= began:
            # A clock was set back.
            return MOST_STEPS * stride
        rate = (last - first) / (now - began)
        steps = min(MOST_STEPS, max(LEAST_STEPS, int(UNHURRIED_SECONDS * rate / stride)))
        return max(steps * stride, ceil(LEAST_SECONDS * rate))


class Requesting:
    """Outlet that asks for `deeds`, or for what the run itself says, of the ranks of `rings`.

    Nothing is asked of a case that is silenced, or that somebody has in hand, by `quiet`. `noted`
    wants the caller's transaction; `turn` wants none.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        deeds: Iterable[str],
        rings: Callable[[], Iterable[RingReader]],
        quiet: Callable[[], Quiet],
    ) -> None:
        self.connection = connection
        self.deeds: Deeds = frozenset(deeds)
        self._set, self._attempt = self.deeds, -1
        self._rings, self._quiet = rings, quiet
        self._pace = Pace()
        self._newest = _newest(connection)
        self._unsent = self._newest is not None

    def take(self, verdict: Verdict) -> None:
        """Heed what the run was begun with, if it was told what to do."""
        record = verdict.record
        if record.event is not Event.START or record.rank != WHOLE_RUN:
            return
        if TOLD in record.facts:
            self.deeds = frozenset(record.facts[TOLD].split()) & frozenset(DEEDS)
        elif record.attempt > self._attempt:
            # What an earlier attempt was begun with is not meant for this one.
            self.deeds = self._set
        self._attempt = record.attempt

    def turn(self) -> None:
        """Look how fast the run goes, and write what was stored and is not written yet."""
        if not (self.deeds or self._unsent):
            return
        readers = self._current()
        if not readers:
            return
        fastest = _fastest(readers)
        self._pace.see(fastest)
        if self._unsent and self._newest is not None:
            self._unsent = False
            self._send(*self._newest, readers)

    def noted(self, page: Page) -> Page:
        """Ask for what is to be asked because of this page, which then says so."""
        if not self._wanted(page):
            return page
        try:
            step, asked = self._ask(page)
        except RefusedError as refused:
            self._store(page, None)
            note = f"Nothing was asked of the run, for {refused}."
        else:
            self._store(page, asked)
            note = _told(self.deeds, step)
        return replace(page, notes=(*page.notes, note))

    def _wanted(self, page: Page) -> bool:
        if not self.deeds or page.incident.severity is not Severity.CRITICAL:
            return False
        every = page.incidents
        if page.reason not in _TURNED or not ENDINGS.isdisjoint(i.key.detector for i in every):
            return False
        quiet = self._quiet()
        silenced = all(quiet.silence_of(each.key.detector) is not None for each in every)
        if silenced or quiet.in_hand(every):
            return False
        known = "select 1 from request where incident = ?"
        return self.connection.execute(known, [page.incident.name]).fetchone() is None and bool(
            self._current()
        )

    def _ask(self, page: Page) -> tuple[int, _Newest]:
        """A request for this page, or the one under way, and its step. Raises RefusedError."""
        readers = self._current()
        fastest = _fastest(readers)
        self._pace.see(fastest)
        identity = fastest.identity
        if identity.world_size != identity.local_world_size:
            raise RefusedError("its ranks are on several nodes, whose agents do not act together")
        if len(readers) < identity.local_world_size:
            raise RefusedError("not every rank of it is watched")
        if fastest.last_beat < 1:
            raise RefusedError("it has taken no step")
        slowest = min(reader.header().last_beat for reader in readers)
        newest = self._newest
        if newest is not None and newest[1] == identity.attempt and newest[0].beat > slowest:
            return newest[2], newest
        with _page(readers) as known:
            number = max(known.number, 0 if newest is None else newest[0].number) + 1
        margin = self._pace.margin(fastest)
        cause = page.diagnosis.title if page.diagnosis is not None else ""
        request = Request(
            number,
            fastest.last_beat,
            fastest.last_beat + margin,
            self.deeds,
            page.incident.name,
            cause,
        )
        step = fastest.last_step + margin
        self._newest, self._unsent = (request, identity.attempt, step), True
        return step, self._newest

    def _store(self, page: Page, asked: _Newest | None) -> None:
        row: tuple[object, ...] = (None,) * 7
        if asked is not None:
            request, attempt, step = asked
            deeds = " ".join(sorted(request.deeds))
            terms = (request.number, attempt, request.since, request.beat, step)
            row = (*terms, deeds, request.cause)
        self.connection.execute(
            "insert into request(incident, number, attempt, since, beat, step, deeds, cause)"
            " values(?, ?, ?, ?, ?, ?, ?, ?)",
            (page.incident.name, *row),
        )

    def _send(self, request: Request, attempt: int, step: int, readers: list[RingReader]) -> None:
        fastest = _fastest(readers)
        if fastest.identity.attempt != attempt:
            return
        try:
            with _page(readers) as page:
                if page.number >= request.number:
                    return
                if fastest.last_beat >= request.beat:
                    log.warning("Step %d has passed: what was to be asked for it is not", step)
                    return
                page.write(request)
        except RefusedError as refused:
            log.warning("Nothing can be asked of the run, for %s", refused)

    def _current(self) -> list[RingReader]:
        """Those of the newest attempt's ranks that still train."""
        known = [(reader.header(), reader) for reader in self._rings()]
        newest = max((header.identity.attempt for header, _ in known), default=-1)
        return [
            reader
            for header, reader in known
            if header.identity.attempt == newest and header.outcome == "running"
        ]


def _fastest(readers: Iterable[RingReader]) -> Header:
    return max((reader.header() for reader in readers), key=lambda header: header.last_beat)


def _page(readers: Iterable[RingReader]) -> closing[Requests]:
    """The page that all of them look at. Raises RefusedError."""
    places = {page_beside(each.path, each.header().identity.attempt) for each in readers}
    if len(places) > 1:
        raise RefusedError("its ranks share no place where it could be asked")
    (place,) = places
    return closing(_opened(place))


def _opened(place: Path) -> Requests:
    try:
        return Requests(place)
    except (OSError, ValueError):
        raise RefusedError("its ranks made no place where it could be asked") from None


def _told(deeds: Deeds, step: int) -> str:
    words = [_WORDS[deed] for deed in DEEDS if deed in deeds]
    *first, last = words
    joined = f"{', '.join(first)} and {last}" if first else last
    verb = "were" if first else "was"
    return f"{joined[0].upper()}{joined[1:]} {verb} requested for step {step}."


def _newest(connection: sqlite3.Connection) -> _Newest | None:
    row = connection.execute(
        "select number, since, beat, deeds, incident, cause, attempt, step from request"
        " where number is not null order by number desc, rowid limit 1"
    ).fetchone()
    if row is None:
        return None
    number, since, beat, deeds, incident, cause, attempt, step = row
    request = Request(number, since, beat, frozenset(deeds.split()), incident, cause)
    return request, attempt, step
