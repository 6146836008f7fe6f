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
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.cases import RUN_END_DETECTORS
from sentinel.pipeline.engine import Result
from sentinel.store.silences import Suppression
from sentinel.transport.command_page import ACTIONS, Command, CommandPage, command_page_path
from sentinel.transport.ring import RingReader
from sentinel.transport.ring_layout import RingHeader

log = logging.getLogger(__name__)

ON_CRITICAL_KEY = "monitor/on_critical"
"""The fact by which a run says what `sentinel.monitor` was given; it hides the setting."""
MAX_LEAD_STEPS, MIN_LEAD_STEPS = 10, 3
"""How far ahead a request is: ten steps, or as many as `UNHURRIED_SECONDS` are, but three."""
TARGET_LEAD_SECONDS = 20.0
MIN_LEAD_SECONDS = 2.0
"""And not less than so many seconds, however fast the steps are."""
_MAX_RATE_SAMPLES = 16
_ACTION_TEXTS = {"checkpoint": "a checkpoint", "stop": "a stop", "call": "a call of your function"}

ActionSet = frozenset[str]
_PlannedCommand = tuple[Command, int, int]
"""A request, the attempt it is made of, and the step that its beat is."""


class CommandImpossibleError(RuntimeError):
    """Why nothing can be asked of the run, as the end of a sentence."""


_TRIGGERING_REASONS = (NotificationReason.OPENED, NotificationReason.ESCALATED)
"""With which a case turns critical; of what else is told of it nobody need act."""


@dataclass
class StepRate:
    """How fast the run goes, by the beats seen at the last looks."""

    samples: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=_MAX_RATE_SAMPLES)
    )

    def update(self, header: RingHeader) -> None:
        """The fastest rank is there now."""
        if self.samples and header.last_step_index < self.samples[-1][1]:
            self.samples.clear()
        if not self.samples or header.last_step_index > self.samples[-1][1]:
            self.samples.append((header.last_time, header.last_step_index))

    def lead(self, header: RingHeader) -> int:
        """Beats from here to one that every rank hears of in time."""
        (began, first), (now, last) = self.samples[0], self.samples[-1]
        if len(self.samples) < 2:
            began, first, now, last = header.created_at, 0, header.last_time, header.last_step_index
        beats = [beat for _, beat in self.samples]
        stride = min((b - a for a, b in pairwise(beats)), default=1)
        if now <= began:
            # A clock was set back.
            return MAX_LEAD_STEPS * stride
        rate = (last - first) / (now - began)
        steps = min(MAX_LEAD_STEPS, max(MIN_LEAD_STEPS, int(TARGET_LEAD_SECONDS * rate / stride)))
        return max(steps * stride, ceil(MIN_LEAD_SECONDS * rate))


class ActionPlanner:
    """Outlet that asks for `deeds`, or for what the run itself says, of the ranks of `rings`.

    Nothing is asked of a case that is silenced, or that somebody has in hand, by `quiet`. `noted`
    wants the caller's transaction; `turn` wants none.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        actions: Iterable[str],
        rings: Callable[[], Iterable[RingReader]],
        suppression: Callable[[], Suppression],
    ) -> None:
        self.connection = connection
        self.actions: ActionSet = frozenset(actions)
        self._configured_actions, self._attempt = self.actions, -1
        self._rings, self._suppression = rings, suppression
        self._step_rate = StepRate()
        self._latest_command = _load_latest_command(connection)
        self._is_unsent = self._latest_command is not None

    def update(self, result: Result) -> None:
        """Heed what the run was begun with, if it was told what to do."""
        record = result.record
        if record.event is not Event.START or record.rank != WHOLE_RUN:
            return
        if ON_CRITICAL_KEY in record.attributes:
            self.actions = frozenset(record.attributes[ON_CRITICAL_KEY].split()) & frozenset(
                ACTIONS
            )
        elif record.attempt > self._attempt:
            # What an earlier attempt was begun with is not meant for this one.
            self.actions = self._configured_actions
        self._attempt = record.attempt

    def poll(self) -> None:
        """Look how fast the run goes, and write what was stored and is not written yet."""
        if not (self.actions or self._is_unsent):
            return
        readers = self._active_readers()
        if not readers:
            return
        fastest = _fastest_header(readers)
        self._step_rate.update(fastest)
        if self._is_unsent and self._latest_command is not None:
            self._is_unsent = False
            self._write_command(*self._latest_command, readers)

    def plan(self, notification: Notification) -> Notification:
        """Ask for what is to be asked because of this page, which then says so."""
        if not self._is_command_wanted(notification):
            return notification
        try:
            step, asked = self._plan_command(notification)
        except CommandImpossibleError as refused:
            self._store_command(notification, None)
            note = f"Nothing was asked of the run, for {refused}."
        else:
            self._store_command(notification, asked)
            note = _format_note(self.actions, step)
        return replace(notification, notes=(*notification.notes, note))

    def _is_command_wanted(self, notification: Notification) -> bool:
        if not self.actions or notification.incident.severity is not Severity.CRITICAL:
            return False
        every = notification.incidents
        if notification.reason not in _TRIGGERING_REASONS or not RUN_END_DETECTORS.isdisjoint(
            i.key.detector for i in every
        ):
            return False
        quiet = self._suppression()
        silenced = all(quiet.longest_silence(each.key.detector) is not None for each in every)
        if silenced or quiet.is_acknowledged(every):
            return False
        known = "select 1 from request where incident = ?"
        return self.connection.execute(
            known, [notification.incident.name]
        ).fetchone() is None and bool(self._active_readers())

    def _plan_command(self, notification: Notification) -> tuple[int, _PlannedCommand]:
        """A request for this page, or the one under way, and its step. Raises RefusedError."""
        readers = self._active_readers()
        fastest = _fastest_header(readers)
        self._step_rate.update(fastest)
        identity = fastest.identity
        if identity.world_size != identity.local_world_size:
            raise CommandImpossibleError(
                "its ranks are on several nodes, whose agents do not act together"
            )
        if len(readers) < identity.local_world_size:
            raise CommandImpossibleError("not every rank of it is watched")
        if fastest.last_step_index < 1:
            raise CommandImpossibleError("it has taken no step")
        slowest = min(reader.read_header().last_step_index for reader in readers)
        newest = self._latest_command
        if (
            newest is not None
            and newest[1] == identity.attempt
            and newest[0].due_step_index > slowest
        ):
            return newest[2], newest
        with _open_shared_page(readers) as known:
            number = max(known.latest_number, 0 if newest is None else newest[0].number) + 1
        margin = self._step_rate.lead(fastest)
        cause = notification.diagnosis.title if notification.diagnosis is not None else ""
        request = Command(
            number,
            fastest.last_step_index,
            fastest.last_step_index + margin,
            self.actions,
            notification.incident.name,
            cause,
        )
        step = fastest.last_step + margin
        self._latest_command, self._is_unsent = (request, identity.attempt, step), True
        return step, self._latest_command

    def _store_command(self, notification: Notification, planned: _PlannedCommand | None) -> None:
        row: tuple[object, ...] = (None,) * 7
        if planned is not None:
            request, attempt, step = planned
            deeds = " ".join(sorted(request.actions))
            terms = (
                request.number,
                attempt,
                request.ready_from_index,
                request.due_step_index,
                step,
            )
            row = (*terms, deeds, request.cause)
        self.connection.execute(
            "insert into request(incident, number, attempt, since, beat, step, deeds, cause)"
            " values(?, ?, ?, ?, ?, ?, ?, ?)",
            (notification.incident.name, *row),
        )

    def _write_command(
        self, command: Command, attempt: int, step: int, readers: list[RingReader]
    ) -> None:
        fastest = _fastest_header(readers)
        if fastest.identity.attempt != attempt:
            return
        try:
            with _open_shared_page(readers) as page:
                if page.latest_number >= command.number:
                    return
                if fastest.last_step_index >= command.due_step_index:
                    log.warning("Step %d has passed: what was to be asked for it is not", step)
                    return
                page.write(command)
        except CommandImpossibleError as refused:
            log.warning("Nothing can be asked of the run, for %s", refused)

    def _active_readers(self) -> list[RingReader]:
        """Those of the newest attempt's ranks that still train."""
        known = [(reader.read_header(), reader) for reader in self._rings()]
        newest = max((header.identity.attempt for header, _ in known), default=-1)
        return [
            reader
            for header, reader in known
            if header.identity.attempt == newest and header.outcome == "running"
        ]


def _fastest_header(readers: Iterable[RingReader]) -> RingHeader:
    return max(
        (reader.read_header() for reader in readers), key=lambda header: header.last_step_index
    )


def _open_shared_page(readers: Iterable[RingReader]) -> closing[CommandPage]:
    """The page that all of them look at. Raises RefusedError."""
    places = {command_page_path(each.path, each.read_header().identity.attempt) for each in readers}
    if len(places) > 1:
        raise CommandImpossibleError("its ranks share no place where it could be asked")
    (place,) = places
    return closing(_open_page(place))


def _open_page(path: Path) -> CommandPage:
    try:
        return CommandPage(path)
    except (OSError, ValueError):
        raise CommandImpossibleError("its ranks made no place where it could be asked") from None


def _format_note(actions: ActionSet, step: int) -> str:
    words = [_ACTION_TEXTS[deed] for deed in ACTIONS if deed in actions]
    *first, last = words
    joined = f"{', '.join(first)} and {last}" if first else last
    verb = "were" if first else "was"
    return f"{joined[0].upper()}{joined[1:]} {verb} requested for step {step}."


def _load_latest_command(connection: sqlite3.Connection) -> _PlannedCommand | None:
    row = connection.execute(
        "select number, since, beat, deeds, incident, cause, attempt, step from request"
        " where number is not null order by number desc, rowid limit 1"
    ).fetchone()
    if row is None:
        return None
    number, since, beat, deeds, incident, cause, attempt, step = row
    request = Command(number, since, beat, frozenset(deeds.split()), incident, cause)
    return request, attempt, step
