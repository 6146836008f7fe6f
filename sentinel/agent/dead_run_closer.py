"""Closes the cases of ended runs that have no agent, from the agent of another run or `serve`.

What the agent left in shared memory moves to the home directory first. The end of a run that was
killed together with its agent is reported, see `report_killed_run`.

The case of a run that died or failed stays open for people, longer than its agent stays. A receiver
that keeps an alert open, such as PagerDuty, would never learn that it is over.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event as Flag
from threading import Thread

from sentinel.agent.registration import REGISTRATION_NAME, closing_lock
from sentinel.agent.run_directory import move_to_home, probe, remove_shared_files
from sentinel.config.settings import Settings, build_sinks
from sentinel.metrics.stored_state import stored_summary
from sentinel.model.counters import Counters
from sentinel.model.delivery import Sink, sink_address
from sentinel.model.incident import Incident, IncidentState, Resolution, RunTier
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.run_states import STATES_WITHOUT_OUTCOME
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.notify.policy import NotificationPolicy
from sentinel.notify.recipients import Recipients
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.pipeline.incidents import MAX_LASTING_SECONDS, outlives_run
from sentinel.store import database, notification_codec
from sentinel.store.cases import store_case
from sentinel.store.history import History
from sentinel.store.relocation import copy_to_home
from sentinel.store.run_summary import (
    FOREIGN_AGENT_SECONDS,
    RunEntry,
    RunIndex,
    write_summary,
)
from sentinel.store.silences import Suppression
from sentinel.store.verdict import UNHEALTHY
from sentinel.transport.paths import (
    DATABASE_NAME,
    home_dir,
    is_agent_running,
    is_home_remote,
    list_rings,
    run_dir,
    runtime_dir,
    shared_run_dir,
)
from sentinel.transport.ring import read_header

log = logging.getLogger(__name__)

FIRST_PASS_SECONDS, PASS_INTERVAL_SECONDS = 20.0, 300.0
"""When the runs are looked at: after the start, when a new run has a summary, and then again."""
KILLED_AFTER_SECONDS = 75.0
"""How long nothing was written by an agent that is reported as killed. One that serves a run writes
every minute, and one that was killed alone is started again within a minute."""
DELIVERY_SECONDS = 15.0
"""Longest wait for receivers; what they do not accept is tried again at the next pass."""
STOP_SECONDS = 5.0
"""Time in which a receiver that got a notification may still respond before the process ends.

Without that response, it is sent again.
"""

_FIRING_SQL = "select notification from case_history where state = 'firing' order by opened_time"


class DeadRunCloser:
    """Closes the cases in a thread, since the home directory may be slow.

    A case is closed once it is acknowledged, once a run that was given the same name has started
    since the end of its run, or a day after that end. Its end is sent by the outbox of its run, to
    the sinks that got its start; a case is left alone if one of them has another receiver in
    `settings`. The lock of the run lets one process do it, and an agent of the run that starts
    meanwhile waits.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._clock = settings, clock
        self._index = RunIndex(stored_summary, clock)
        self._closed: dict[str, tuple[int, int]] = {}
        self._not_reported: dict[str, tuple[int, int]] = {}
        """Killed runs that are left alone, and when their summary was written."""
        self._has_recent = False
        """Whether a run may have been killed so recently that its agent may be started again."""
        self._stopping = Flag()
        self._thread = Thread(target=self._run, name="sentinel-closer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End the thread; wait up to `timeout` seconds for the response that it stores."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def close_cases(self) -> None:
        """Look at every run once. Raises OSError if the home directory cannot be read."""
        self._index.refresh()
        entries = self._index.entries()
        starts: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for entry in entries:
            starts[_name(entry)][entry.run] = entry.started
        self._has_recent = False
        for entry in entries:
            if self._stopping.is_set():
                return
            if not _is_dead(entry, self._clock()):
                continue
            # An agent that ended by itself has removed its registration.
            was_killed = (
                entry.state in STATES_WITHOUT_OUTCOME
                and (entry.directory / REGISTRATION_NAME).exists()
            )
            if was_killed and self._clock() - entry.stamp[0] / 1e9 < KILLED_AFTER_SECONDS:
                self._has_recent = True
                continue
            try:
                _move_home(entry)
                if was_killed and self._report_killed(entry):
                    continue
                if self._may_have_cases(entry):
                    others = (
                        started for run, started in starts[_name(entry)].items() if run != entry.run
                    )
                    self._close_cases_of(entry, max(others, default=0.0))
            except (OSError, sqlite3.Error, database.NewerSchemaError) as error:
                # A read-only or damaged run, or one of a later version, must not hide the others.
                self._closed[entry.run] = entry.stamp
                log.info("Cases of %s are not closed: %s", entry.run, type(error).__name__)

    def _run(self) -> None:
        delay = FIRST_PASS_SECONDS
        while not self._stopping.wait(delay):
            delay = PASS_INTERVAL_SECONDS
            try:
                self.close_cases()
                if self._has_recent:
                    delay = KILLED_AFTER_SECONDS
            except Exception as error:
                # The runs of others must not disturb this one.
                log.warning("Cases of ended runs are not closed: %s", type(error).__name__)

    def _may_have_cases(self, entry: RunEntry) -> bool:
        is_known = self._closed.get(entry.run) == entry.stamp
        has_problem = entry.health in UNHEALTHY or bool(entry.problem)
        return entry.is_complete and has_problem and not is_known

    def _report_killed(self, entry: RunEntry) -> bool:
        """Report a run whose agent was killed with it; whether it was done.

        It is left alone if that was long ago, or if its agent had other receivers.
        """
        is_old = self._clock() - entry.stamp[0] / 1e9 >= MAX_LASTING_SECONDS
        if is_old or self._not_reported.get(entry.run) == entry.stamp:
            return False
        # It imports all that an agent runs, which few servers ever need.
        from sentinel.agent.killed_run import report_killed_run  # noqa: PLC0415

        with closing_lock(entry.directory) as is_locked:
            if not is_locked:
                return False
            self._not_reported[entry.run] = entry.stamp
            database_path = entry.directory / DATABASE_NAME
            with _usable_database(database_path) as path:
                with closing(database.connect(path)) as connection:
                    sinks = self._own_sinks(connection)
                    if not outbox.load_addresses(connection).keys() <= sinks.keys():
                        return False
                if not report_killed_run(entry.run, path, self._settings, sinks, self._clock):
                    return False
                log.info("Reported that %s was killed together with its agent", entry.run)
                # What is not delivered now is delivered by the next pass.
                self._deliver(path, sinks, Recipients.of_settings(self._settings, sinks))
            (entry.directory / REGISTRATION_NAME).unlink(missing_ok=True)
            write_summary(entry.directory, stored_summary(entry.run, database_path))
            remove_shared_files(entry.run)
        return True

    def _own_sinks(self, connection: sqlite3.Connection) -> dict[str, Sink]:
        """The sinks of this process that the agent of the run had too.

        A sink of that name may have another receiver in the settings of that run.
        """
        addresses = outbox.load_addresses(connection)
        return {
            name: sink
            for name, sink in build_sinks(self._settings).items()
            if addresses.get(name) == sink_address(sink)
        }

    def _close_cases_of(self, entry: RunEntry, last_start: float) -> None:
        with closing_lock(entry.directory) as is_locked:
            if not is_locked:
                return
            database_path = entry.directory / DATABASE_NAME
            with _usable_database(database_path) as path:
                is_done = self._close_and_deliver(path, last_start)
            if is_done:
                self._closed[entry.run] = entry.stamp
                # Not before: a run that looks healthy is not looked at again.
                files = entry.directory.glob(f"{DATABASE_NAME}*")
                if max(each.stat().st_mtime_ns for each in files) > entry.stamp[0]:
                    write_summary(entry.directory, stored_summary(entry.run, database_path))

    def _close_and_deliver(self, path: Path, last_start: float) -> bool:
        """Close what is over, and send what is queued; whether nothing is left for later."""
        with closing(database.connect(path)) as connection:
            sinks = self._own_sinks(connection)
            recipients = Recipients.of_settings(self._settings, sinks)
            with database.transaction(connection, mode="immediate"):
                self._give_up_old(connection, recipients)
                firing = self._close(connection, recipients, last_start)
            undelivered = outbox.count_undelivered(connection, sinks)
            if undelivered and not self._stopping.is_set():
                undelivered = self._deliver(path, sinks, recipients)
            return not firing and not undelivered

    def _give_up_old(self, connection: sqlite3.Connection, recipients: Recipients) -> None:
        """Give up alerts that the agent of the run left unsent, and that are no news any more.

        A person who got no other message still gets one that is not too old, also if its case is
        closed because training was started again.
        """
        now, sinks = self._clock(), recipients.routes
        outbox.requeue_interrupted(connection, now)
        if given_up := outbox.give_up_old(connection, sinks, now, recipients.closable):
            log.warning("%d notifications of a dead run are too old to be sent", given_up)

    def _close(
        self, connection: sqlite3.Connection, recipients: Recipients, last_start: float
    ) -> int:
        """Close what is over, in the caller's transaction; the number of cases to close later."""
        now, firing = self._clock(), 0
        history = History(connection)
        policy = NotificationPolicy(
            connection, recipients, RunTier(self._settings.tier), self._clock
        )
        policy.poll()
        ended = max((each.time for each in history.latest_records("")), default=None)
        for notification in _firing_cases(connection):
            reached = outbox.sinks_of(connection, notification.incident.name)
            if not reached <= recipients.routes.keys():
                continue
            end_time = notification.incident.opened_time if ended is None else ended
            if last_start > end_time:
                resolution = Resolution.STARTED_AGAIN
            elif _is_acknowledged(notification, policy.suppression):
                resolution = Resolution.ACKNOWLEDGED
            elif now - end_time >= MAX_LASTING_SECONDS:
                resolution = Resolution.EXPIRED
            else:
                firing += 1
                continue
            closed = _closed(notification, resolution, now)
            for incident in closed.incidents:
                history.store_incident(incident)
            store_case(connection, closed)
            policy.enqueue([closed])
            log.info("Closed %s: %s", closed.incident.name, resolution.value)
        return firing

    def _deliver(self, path: Path, sinks: Mapping[str, Sink], recipients: Recipients) -> int:
        """Send what the outbox holds; the number that no receiver has accepted."""
        dispatcher = Dispatcher(
            path,
            sinks,
            Counters(),
            self._clock,
            DeliveryTiming(max_per_hour=self._settings.max_notifications_per_hour),
            recipients=recipients,
        )
        dispatcher.start()
        try:
            return dispatcher.drain(DELIVERY_SECONDS, self._stopping)
        finally:
            dispatcher.stop(STOP_SECONDS)


def _is_dead(entry: RunEntry, now: float) -> bool:
    """Whether the run has neither an agent nor ranks, as far as is known."""
    # An agent writes the summary every minute; on another node its lock may not be seen.
    is_new = now - entry.stamp[0] / 1e9 < FOREIGN_AGENT_SECONDS
    if entry.is_live or (is_new and not _is_of_this_node(entry)):
        return False
    if is_agent_running(shared_run_dir(entry.run)):
        return False
    headers = (read_header(ring) for ring in list_rings(entry.run))
    return not any(header is not None and header.process.is_alive() for header in headers)


def _move_home(entry: RunEntry) -> None:
    """Move what a killed agent left in shared memory to the home directory.

    Raises OSError, sqlite3.Error, NewerSchemaError.
    """
    home = home_dir() / "runs" / entry.run
    if entry.directory == home:
        return
    # The home directory first: its disk may not respond, and an agent that starts waits for the
    # lock in shared memory.
    with closing_lock(run_dir(entry.run)) as is_home_locked:
        probe(home)
        with closing_lock(entry.directory) as is_locked:
            if not (is_locked and is_home_locked):
                return
            move_to_home(entry.directory, home)
            remove_shared_files(entry.run)
            entry.directory = home


@contextmanager
def _usable_database(path: Path) -> Iterator[Path]:
    """The database, or a copy where it is on a file server, which has no write-ahead log.

    What is written to the copy is moved to the server, also after an error.
    """
    if not is_home_remote():
        yield path
        return
    with TemporaryDirectory(dir=runtime_dir(make=True)) as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        with closing(database.connect(copy)) as watcher:
            before = _data_version(watcher)
            try:
                yield copy
            finally:
                if _data_version(watcher) != before:
                    copy_to_home(copy, path)


def _data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection writes the database."""
    (version,) = connection.execute("pragma data_version").fetchone()
    return int(version)


def _is_of_this_node(entry: RunEntry) -> bool:
    return entry.host in {"", os.uname().nodename}


def _name(entry: RunEntry) -> str:
    """The name that the user gave the run, else its id.

    The name of a script is none: the jobs of an array, of which one died, have the same script.
    """
    return entry.name or entry.run


def _firing_cases(connection: sqlite3.Connection) -> Iterator[Notification]:
    for (text,) in connection.execute(_FIRING_SQL).fetchall():
        try:
            yield notification_codec.decode(text)
        except notification_codec.UnreadableNotificationError:
            continue


def _is_acknowledged(notification: Notification, suppression: Suppression) -> bool:
    """Whether an agent of the run would close the case for its acknowledgement."""
    firing = [each for each in notification.incidents if each.state is IncidentState.FIRING]
    return bool(firing) and all(
        outlives_run(each) and suppression.acknowledgement(each) for each in firing
    )


def _closed(notification: Notification, resolution: Resolution, now: float) -> Notification:
    """The notification of the end of that case."""

    def resolved(incident: Incident) -> Incident:
        if incident.state is IncidentState.RESOLVED:
            return incident
        incident = replace(incident)
        incident.resolve(resolution, notification.step, now)
        return incident

    return replace(
        notification,
        reason=NotificationReason.RESOLVED,
        incident=resolved(notification.incident),
        others=tuple(map(resolved, notification.others)),
        time=now,
        notes=(),
    )
