"""Plans the commands of critical cases and of requests, once for each.

It also publishes on the command page of its ranks how many incidents are firing.

A command is stored in the transaction that stores its cause, and written to the command page after
the commit. After a restart the agent writes a stored command that it had not written, if the step
is still ahead; it never plans a second command for a case. A request of before its start is too
old. A command that is under way is never replaced, because some ranks may have read it: what it
does not include waits until it is over.

The agent that evaluates a run on several nodes announces the command to the agents of the others,
which write it to the pages of their ranks. It is due later, since that takes seconds.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from pathlib import Path

from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import RUN_END_DETECTORS
from sentinel.pipeline.engine import Result
from sentinel.store import commands
from sentinel.store.commands import ActionRequest, PlannedCommand
from sentinel.store.database import transaction
from sentinel.store.silences import Suppression
from sentinel.transport.command_page import ACTIONS, Command, CommandPage, command_page_path
from sentinel.transport.ring import RingReader
from sentinel.transport.ring_layout import RingHeader

log = logging.getLogger(__name__)

ON_CRITICAL_KEY = "monitor/on_critical"
"""Attribute of a START record: the argument `on_critical` of `sentinel.monitor`.

It overrides the setting.
"""

TARGET_LEAD_SECONDS = 20.0
"""A command is due this far ahead, within the following bounds."""
MIN_LEAD_STEPS, MAX_LEAD_STEPS = 3, 10
MIN_LEAD_SECONDS, MIN_LEAD_SECONDS_OF_NODES = 2.0, 8.0
"""Lower bounds for fast steps, on one node and on several; they take precedence over
`MAX_LEAD_STEPS`. A node receives a command with the answer to a message, one each second."""

MEASURING_SECONDS = 1.0
"""How long the speed of the run is measured for a request, where it is not measured always."""

_MAX_RATE_SAMPLES = 16
_TRIGGERING_REASONS = (NotificationReason.OPENED, NotificationReason.ESCALATED)
"""Reasons with which a case becomes critical."""


class CommandImpossibleError(RuntimeError):
    """No command can reach the run; the message is a clause that follows "because"."""


@dataclass
class StepRate:
    """Speed of the fastest rank, from its step indices at the last polls."""

    samples: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=_MAX_RATE_SAMPLES)
    )
    """Pairs of time in epoch seconds and step index."""

    def update(self, header: RingHeader) -> None:
        """Add the position of the fastest rank."""
        if self.samples and header.last_step_index < self.samples[-1][1]:
            self.samples.clear()
        if not self.samples or header.last_step_index > self.samples[-1][1]:
            self.samples.append((header.last_time, header.last_step_index))

    def lead_steps(self, header: RingHeader) -> int:
        """Steps from the current one to one that every rank can still prepare for."""
        is_one_node = header.identity.local_world_size == header.identity.world_size
        min_seconds = MIN_LEAD_SECONDS if is_one_node else MIN_LEAD_SECONDS_OF_NODES
        (start_time, start_index), (time, index) = self.samples[0], self.samples[-1]
        if len(self.samples) < 2:
            start_time, start_index = header.created_at, 0
            time, index = header.last_time, header.last_step_index
        indices = [sample_index for _, sample_index in self.samples]
        stride = min((later - earlier for earlier, later in pairwise(indices)), default=1)
        if time <= start_time:
            # The clock was set back.
            return MAX_LEAD_STEPS * stride
        rate = (index - start_index) / (time - start_time)
        steps = min(MAX_LEAD_STEPS, max(MIN_LEAD_STEPS, int(TARGET_LEAD_SECONDS * rate / stride)))
        return max(steps * stride, ceil(min_seconds * rate))


class ActionPlanner:
    """Result consumer that commands the ranks of `rings` to perform `actions`.

    The actions that the run was started with replace `actions`. A silenced or acknowledged case
    triggers nothing, and neither does one from before `not_before` (epoch seconds): it did already.
    `command_problem` returns why a command does not reach all ranks of a run on several nodes, as a
    clause that follows "because"; empty if it does. With `is_shadow` the command of a case is
    stored, and not sent. `update` runs in the caller's transaction, `poll` outside of one.
    """

    def __init__(  # noqa: PLR0913 - a part of the processor
        self,
        connection: sqlite3.Connection,
        actions: Iterable[str],
        rings: Callable[[], Iterable[RingReader]],
        suppression: Callable[[], Suppression],
        *,
        firing_incidents: Callable[[], int] = int,
        command_problem: Callable[[], str] = str,
        not_before: float = 0.0,
        is_shadow: bool = False,
    ) -> None:
        self.connection = connection
        self.actions = frozenset(actions)
        self._configured_actions, self._attempt = self.actions, -1
        self._rings, self._suppression = rings, suppression
        self._firing_incidents, self._command_problem = firing_incidents, command_problem
        self._not_before = not_before
        self._is_shadow = is_shadow
        self._published: tuple[int, frozenset[Path]] = (0, frozenset())
        self._step_rate = StepRate()
        self._latest_command = commands.latest_command(connection)
        self._is_unsent = self._latest_command is not None
        self._known_row, self._data_version = commands.newest_row(connection), -1
        self._is_request_waiting = False
        self._measuring_since: float | None = None
        self._received_number = 0

    def update(self, result: Result) -> None:
        """Store a command for each case that became critical, and read the run's own actions."""
        record = result.record
        if record.event is Event.START and record.rank == WHOLE_RUN:
            self._update_actions(record)
        for notification in result.case_notifications:
            if self._is_command_wanted(notification):
                self._plan(notification)

    def poll(self) -> None:
        """Plan what is requested, measure the speed of the run, and write what is not written."""
        self._plan_requests()
        firing = self._firing_incidents()
        if not (self.actions or self._is_unsent or firing or self._published[0]):
            return
        readers = self._active_readers()
        if not readers:
            return
        self._publish_incidents(firing, readers)
        self._step_rate.update(_fastest_header(readers))
        if self._is_unsent and self._latest_command is not None:
            self._is_unsent = False
            try:
                self._write_command(self._latest_command, readers)
            except CommandImpossibleError as error:
                log.warning("No command can be sent to the run, because %s", error)

    def announced_command(self) -> Command | None:
        """The command for the agents of other nodes, until it is over."""
        latest, readers = self._latest_command, self._active_readers()
        if latest is None or not readers:
            return None
        fastest = _fastest_header(readers)
        is_under_way = fastest.last_step_index < latest.command.due_step_index
        is_current = fastest.identity.attempt == latest.attempt
        return latest.command if is_current and is_under_way else None

    def receive(self, command: Command) -> None:
        """Write a command that the agent of another node has announced, once."""
        if command.number == self._received_number:
            return
        readers = self._active_readers()
        if readers:
            attempt = _fastest_header(readers).identity.attempt
            planned = PlannedCommand(command, attempt, command.due_step_index)
            # It is announced again, and the ranks may not have made their page yet.
            with suppress(CommandImpossibleError):
                self._write_command(planned, readers)
                self._received_number = command.number

    def _publish_incidents(self, firing: int, readers: list[RingReader]) -> None:
        """Write the number of firing incidents to the command pages, if it is not there."""
        pages = frozenset(_page_path(each) for each in readers)
        if (firing, pages) == self._published or not (firing or self._published[0]):
            return
        self._published = (firing, pages)
        for path in pages:
            with suppress(CommandImpossibleError), closing(_open_page(path)) as page:
                page.set_firing_incidents(firing)

    def _update_actions(self, start: Record) -> None:
        if ON_CRITICAL_KEY in start.attributes:
            actions = start.attributes[ON_CRITICAL_KEY].split()
            self.actions = frozenset(actions) & frozenset(ACTIONS)
        elif start.attempt > self._attempt:
            # The actions of an earlier attempt do not apply to this one.
            self.actions = self._configured_actions
        self._attempt = start.attempt

    def _is_command_wanted(self, notification: Notification) -> bool:
        if not self.actions or notification.incident.severity is not Severity.CRITICAL:
            return False
        if notification.time < self._not_before:
            return False
        incidents = notification.incidents
        if notification.reason not in _TRIGGERING_REASONS or not RUN_END_DETECTORS.isdisjoint(
            each.key.detector for each in incidents
        ):
            return False
        suppression = self._suppression()
        if suppression.is_acknowledged(incidents) or all(
            suppression.longest_silence(each.key.detector) is not None for each in incidents
        ):
            return False
        is_planned = commands.is_planned(self.connection, notification.incident.name)
        return not is_planned and bool(self._active_readers())

    def _plan(self, notification: Notification) -> None:
        cause = notification.diagnosis.title if notification.diagnosis is not None else ""
        request = ActionRequest(notification.incident.name, self.actions, cause)
        if self._is_shadow:
            self._plan_in_shadow(request)
        elif not self._answer_request(request):
            commands.store_request(self.connection, request)
            self._is_request_waiting = True

    def _plan_in_shadow(self, request: ActionRequest) -> None:
        """Store the step at which the command of a request would be due, or the refusal."""
        try:
            _, fastest = self._reachable_ranks()
        except CommandImpossibleError as error:
            commands.store_refusal(self.connection, request.name, str(error))
        else:
            step = fastest.last_step + self._step_rate.lead_steps(fastest)
            commands.store_shadow(self.connection, request, step)

    def _plan_requests(self) -> None:
        """Plan the requests that wait, and those that another process has stored."""
        (version,) = self.connection.execute("pragma data_version").fetchone()
        if version == self._data_version and not self._is_request_waiting:
            return
        self._data_version, self._is_request_waiting = version, False
        requests = commands.waiting_requests(self.connection, self._known_row)
        if not requests:
            self._measuring_since = None
        elif not self._is_speed_measured():
            self._is_request_waiting = True
            return
        for request in requests:
            with transaction(self.connection, mode="immediate"):
                self._is_request_waiting |= not self._answer_request(request)

    def _is_speed_measured(self) -> bool:
        """Whether the speed is known; without actions in the settings it is measured first."""
        if self.actions:
            return True
        now = time.monotonic()
        if self._measuring_since is None:
            self._measuring_since, self._step_rate = now, StepRate()
        if readers := self._active_readers():
            self._step_rate.update(_fastest_header(readers))
        if now - self._measuring_since < MEASURING_SECONDS:
            return False
        self._measuring_since = None
        return True

    def _answer_request(self, request: ActionRequest) -> bool:
        """Store the command or the refusal of a request; false if it has to wait."""
        try:
            planned = self._plan_command(request)
        except CommandImpossibleError as error:
            commands.store_refusal(self.connection, request.name, str(error))
            return True
        if planned is not None:
            commands.store_command(self.connection, request.name, planned)
        return planned is not None

    def _plan_command(self, request: ActionRequest) -> PlannedCommand | None:
        """A command for this request, or the one that is under way; None if that has to end first.

        Raises CommandImpossibleError.
        """
        readers, fastest = self._reachable_ranks()
        attempt, latest = fastest.identity.attempt, self._latest_command
        slowest_index = min(reader.read_header().last_step_index for reader in readers)
        if (
            latest is not None
            and latest.attempt == attempt
            and latest.command.due_step_index > slowest_index
        ):
            return latest if request.actions <= latest.command.actions else None
        with _open_shared_page(readers) as page:
            number = max(page.latest_number, 0 if latest is None else latest.command.number) + 1
        lead = self._step_rate.lead_steps(fastest)
        command = Command(
            number,
            fastest.last_step_index,
            fastest.last_step_index + lead,
            request.actions,
            request.name,
            request.cause,
        )
        self._latest_command = PlannedCommand(command, attempt, fastest.last_step + lead)
        self._is_unsent = True
        return self._latest_command

    def _reachable_ranks(self) -> tuple[list[RingReader], RingHeader]:
        """The ranks that a command reaches, and the header of the fastest one.

        Raises CommandImpossibleError.
        """
        readers = self._active_readers()
        if not readers:
            raise CommandImpossibleError("no rank of it trains on this node")
        fastest = _fastest_header(readers)
        self._step_rate.update(fastest)
        self._check_reachable(readers, fastest)
        return readers, fastest

    def _check_reachable(self, readers: list[RingReader], fastest: RingHeader) -> None:
        identity = fastest.identity
        if identity.world_size != identity.local_world_size and (
            problem := self._command_problem()
        ):
            raise CommandImpossibleError(problem)
        if len(readers) < identity.local_world_size:
            raise CommandImpossibleError("not every rank of it is monitored")
        if fastest.last_step_index < 1:
            raise CommandImpossibleError("it has not completed a step")

    def _write_command(self, planned: PlannedCommand, readers: list[RingReader]) -> None:
        """Write it to the page of these ranks, unless it is late. Raises CommandImpossibleError."""
        fastest = _fastest_header(readers)
        if fastest.identity.attempt != planned.attempt:
            return
        with _open_shared_page(readers) as page:
            if page.latest_number >= planned.command.number:
                return
            if fastest.last_step_index >= planned.command.due_step_index:
                log.warning("Command dropped: the run has passed step %d", planned.step)
                return
            page.write(planned.command)

    def _active_readers(self) -> list[RingReader]:
        """Readers of the ranks of the newest attempt that are still training."""
        headers = [(reader.read_header(), reader) for reader in self._rings()]
        newest = max((header.identity.attempt for header, _ in headers), default=-1)
        return [
            reader
            for header, reader in headers
            if header.identity.attempt == newest and header.outcome == "running"
        ]


def _fastest_header(readers: Iterable[RingReader]) -> RingHeader:
    headers = (reader.read_header() for reader in readers)
    return max(headers, key=lambda header: header.last_step_index)


def _open_shared_page(readers: Iterable[RingReader]) -> closing[CommandPage]:
    """The command page that all ranks share. Raises CommandImpossibleError."""
    paths = {_page_path(each) for each in readers}
    if len(paths) > 1:
        raise CommandImpossibleError("its ranks do not share a command page")
    (path,) = paths
    return closing(_open_page(path))


def _page_path(reader: RingReader) -> Path:
    return command_page_path(reader.path, reader.read_header().identity.attempt)


def _open_page(path: Path) -> CommandPage:
    try:
        return CommandPage(path)
    except (OSError, ValueError):
        raise CommandImpossibleError("its ranks have no readable command page") from None
