"""Cases of ended runs without an agent are closed by another process, once."""

import fcntl
import json
import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest
from support import webhook_receiver
from support.notifications import NOW, make_notification
from support.rank_processes import ranks, until
from support.webhook_receiver import Receiver

from sentinel.agent.dead_run_closer import KILLED_AFTER_SECONDS, DeadRunCloser
from sentinel.agent.processor import RunProcessor
from sentinel.agent.registration import REGISTRATION_NAME, AgentRegistration, closing_lock
from sentinel.config.settings import load_settings
from sentinel.live.rings import LiveRings
from sentinel.metrics.stored_state import stored_summary
from sentinel.model.counters import Counters
from sentinel.model.delivery import sink_address
from sentinel.model.incident import Resolution
from sentinel.model.json_safe import parse_object
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import outbox
from sentinel.pipeline.engine import Result
from sentinel.signals.hardware import NodeMeasurements
from sentinel.signals.run_metadata import NAME_KEY
from sentinel.sinks.slack import Slack
from sentinel.sinks.webhook import Webhook
from sentinel.store import database, silences
from sentinel.store.cases import store_case
from sentinel.store.history import History
from sentinel.store.run_reader import RunReader
from sentinel.store.run_summary import SUMMARY_NAME, RunIndex
from sentinel.store.sent_log import SentLog
from sentinel.transport.launch_status import LaunchStatus
from sentinel.transport.paths import (
    AGENT_LOCK,
    DATABASE_NAME,
    SENT_LOG_NAME,
    home_dir,
    list_rings,
    run_dir,
    shared_state_dir,
)
from sentinel.transport.process import Process

DEAD = "train-0a1b2c"
OPENED = make_notification(run=DEAD, detector="run_died", summary="Rank 1 was killed.")
DAMAGE = make_notification(NotificationReason.ENDED, run=DEAD, detector="nan_or_inf")
DAY = 24 * 3600.0


@pytest.fixture
def receiver():
    with Receiver() as opened:
        yield opened


@pytest.fixture
def slack():
    with Receiver() as opened:
        yield opened


@pytest.fixture
def unsent_run(receiver, slack):
    """A run that died when no receiver was reached."""
    sinks = {"webhook": Webhook(receiver.url), "slack": Slack(slack.url)}
    with closing(database.connect(run_dir(DEAD) / DATABASE_NAME)) as connection:
        History(connection).store_incident(OPENED.incident)
        store_case(connection, OPENED)
        addresses = {name: sink_address(sink) for name, sink in sinks.items()}
        outbox.store_addresses(connection, addresses)
        outbox.enqueue(connection, OPENED, sinks, NOW)
    summarise(DEAD, started=NOW - 500.0, health="critical", state="died")


@pytest.fixture
def dead_run(receiver):
    """A run that died, whose notification was delivered."""
    directory = run_dir(DEAD)
    with closing(database.connect(directory / DATABASE_NAME)) as connection:
        History(connection).store_incident(OPENED.incident)
        store_case(connection, OPENED)
        outbox.store_addresses(connection, {"webhook": sink_address(Webhook(receiver.url))})
        outbox.enqueue(connection, OPENED, ["webhook"], NOW)
        outbox.mark_delivered(connection, outbox.idempotency_key(OPENED, "webhook"), NOW)
    summarise(DEAD, started=NOW - 500.0, health="critical", state="died")
    return directory


def last_record(seconds, event=Event.STEP, attributes=None):
    """Store when the run was last active, in seconds after the case opened."""
    record = Record(DEAD, WHOLE_RUN, 200, NOW + seconds, event, {}, attributes or {})
    with closing(database.connect(run_dir(DEAD) / DATABASE_NAME)) as connection:
        History(connection).update(Result(record))


def summarise(run, *, started, health="ok", state="running", name="train"):
    directory = run_dir(run)
    (directory / DATABASE_NAME).touch()
    summary = {"run": run, "state": state, "health": health, "started": started, "name": name}
    (directory / "summary.json").write_text(json.dumps(summary))


def closer(receiver, now, slack=None):
    environ = {"SENTINEL_SINKS__WEBHOOK__URL": receiver.url}
    if slack is not None:
        environ["SENTINEL_SINKS__SLACK__URL"] = slack.url
    settings = load_settings({}, environ=environ)
    return DeadRunCloser(settings, now if callable(now) else lambda: now)


def states():
    with closing(database.connect_read_only(run_dir(DEAD) / DATABASE_NAME)) as connection:
        return [state for (state,) in connection.execute("select state from case_history")]


def test_an_agent_of_a_dead_run_still_learns_how_its_command_ended(receiver):
    """The agent was killed with its run, before it had read the last records."""
    gone = Process(os.getpid(), Process.current().start_ticks - 1)
    shared = shared_state_dir(DEAD)
    database.connect(shared / DATABASE_NAME).close()
    with ranks() as begin:
        rank = begin(0, run=DEAD, world=1)
        LaunchStatus(DEAD, gone, "train", 1.0, time.time() + 60.0, 137).write()
        SentLog(shared.parent / SENT_LOG_NAME).append("key", "webhook", "incident", "opened")
        rank.kill()
        rank.wait()

        closer(receiver, NOW).close_cases()
        assert not shared.exists()
        with closing(LiveRings(DEAD, Counters())) as rings:
            records = rings.poll()
        assert {r.attributes.get("signal") for r in records if r.event is Event.HEARTBEAT} == {
            "SIGKILL"
        }
        assert (shared.parent / SENT_LOG_NAME).exists()


def test_the_next_run_of_that_name_closes_the_case_once(receiver, dead_run):
    summarise("train-3d4e5f", started=NOW + 100.0)

    for _ in range(2):
        closer(receiver, NOW + 120.0).close_cases()

    (request,) = receiver.accepted
    assert request.json["status"] == "resolved"
    assert b"training was started again" in request.body
    assert states() == ["resolved"]


def test_a_case_of_a_run_that_nobody_started_again_is_closed_after_a_day(receiver, dead_run):
    closer(receiver, NOW + DAY - 1.0).close_cases()
    assert states() == ["firing"]

    closer(receiver, NOW + DAY + 1.0).close_cases()
    assert [request.json["status"] for request in receiver.accepted] == ["resolved"]


def test_the_day_counts_from_the_end_of_the_run(receiver, dead_run):
    last_record(3 * DAY)

    closer(receiver, NOW + 4 * DAY - 1.0).close_cases()
    assert states() == ["firing"]
    closer(receiver, NOW + 4 * DAY).close_cases()
    assert states() == ["resolved"]


def test_the_list_of_runs_shows_that_the_case_is_closed(receiver, dead_run):
    last_record(10.0)
    closer(receiver, NOW + 2 * DAY).close_cases()

    index = RunIndex(stored_summary)
    index.refresh()
    (entry,) = index.entries()
    assert (entry.state, entry.health) == ("unfinished", "unknown")


def test_an_acknowledgement_of_a_dead_run_closes_the_case(receiver, dead_run):
    with closing(database.connect(dead_run / DATABASE_NAME)) as connection:
        assert silences.acknowledge(connection, "", NOW + 60.0, "ana", "")

    closer(receiver, NOW + 120.0).close_cases()

    (request,) = receiver.accepted
    assert b"It was acknowledged" in request.body
    assert states() == ["resolved"]


def test_a_run_that_ended_damaged_stays_damaged(receiver, dead_run):
    incident = replace(DAMAGE.incident, resolution=Resolution.RUN_FINISHED)
    with closing(database.connect(dead_run / DATABASE_NAME)) as connection:
        connection.execute("delete from case_history")
        store_case(connection, replace(DAMAGE, incident=incident))
    last_record(10.0)
    last_record(20.0, Event.STOP, {"outcome": "finished"})

    closer(receiver, NOW + 2 * DAY).close_cases()

    summary = stored_summary(DEAD, dead_run / DATABASE_NAME)
    assert (summary["state"], summary["health"]) == ("finished", "ended_badly")
    (case,) = RunReader(dead_run / DATABASE_NAME).cases()
    assert case["lasted_until"] == "the run finished"
    assert case["resolution"] == "24 hours have passed"


@pytest.mark.parametrize(("seconds", "state"), [(50.0, "firing"), (150.0, "resolved")])
def test_a_run_of_that_name_counts_if_it_started_after_the_end(receiver, dead_run, seconds, state):
    last_record(100.0)
    summarise("train-3d4e5f", started=NOW + seconds)

    closer(receiver, NOW + 200.0).close_cases()

    assert states() == [state]


@pytest.mark.parametrize(
    "other",
    [
        {"run": "train-3d4e5f", "started": NOW - 100.0},
        {"run": "train-3d4e5f", "started": NOW + 100.0, "name": "another"},
        {"run": "train-3d4e5f", "started": NOW + 100.0, "name": ""},
    ],
    ids=["a twin", "another name", "no name"],
)
def test_other_runs_do_not_close_it(receiver, dead_run, other):
    summarise(**other)

    closer(receiver, NOW + 120.0).close_cases()

    assert (receiver.requests, states()) == ([], ["firing"])


def test_a_run_of_the_same_script_without_a_name_does_not_close_it(receiver, dead_run):
    """It may be the next job of an array."""
    summarise(DEAD, started=NOW - 500.0, health="critical", state="died", name="")
    summarise("train-3d4e5f", started=NOW + 100.0, name="")

    closer(receiver, NOW + 120.0).close_cases()
    assert (receiver.requests, states()) == ([], ["firing"])


def test_the_id_of_a_run_is_its_name_where_it_has_no_other(receiver, dead_run):
    summarise("train", started=NOW + 100.0, name="")

    closer(receiver, NOW + 120.0).close_cases()
    assert states() == ["resolved"]


def test_the_receiver_of_another_project_gets_nothing(receiver, dead_run):
    with Receiver() as other:
        closer(other, NOW + DAY + 1.0).close_cases()
        assert (other.requests, states()) == ([], ["firing"])

    closer(receiver, NOW + DAY + 1.0).close_cases()
    assert [request.json["status"] for request in receiver.accepted] == ["resolved"]


@pytest.mark.parametrize("is_newer", [False, True], ids=["damaged", "of a later version"])
def test_a_run_that_cannot_be_read_does_not_hide_the_others(receiver, dead_run, is_newer):
    summarise("broken-0a1b2c", started=0.0, health="critical", state="died")
    path = run_dir("broken-0a1b2c") / DATABASE_NAME
    if is_newer:
        with closing(database.connect(path)) as connection:
            connection.execute(f"pragma user_version={database.SCHEMA_VERSION + 1}")
    else:
        path.write_text("no database" * 100)

    closer(receiver, NOW + DAY + 1.0).close_cases()

    assert states() == ["resolved"]


def outbox_rows():
    with closing(database.connect_read_only(run_dir(DEAD) / DATABASE_NAME)) as connection:
        return set(connection.execute("select sink, reason, state from outbox"))


def test_an_alert_that_its_agent_left_unsent_is_sent_within_a_day(receiver, slack, unsent_run):
    closer(receiver, NOW + 3600.0, slack).close_cases()

    assert [request.json["status"] for request in receiver.accepted] == ["firing"]
    assert len(slack.accepted) == 1
    assert states() == ["firing"]


def test_it_is_sent_though_training_was_started_again(receiver, slack, unsent_run):
    """It is the only message of the failure."""
    summarise("train-3d4e5f", started=NOW + 100.0)
    running_clock = count(NOW + 3600.0).__next__
    closer(receiver, running_clock, slack).close_cases()

    assert [request.json["status"] for request in receiver.accepted] == ["firing", "resolved"]
    assert len(slack.accepted) == 1
    assert states() == ["resolved"]


@pytest.mark.parametrize("is_sending", [False, True], ids=["queued", "being sent"])
def test_an_alert_that_is_too_old_is_given_up_and_its_end_is_not_sent(
    receiver, slack, unsent_run, is_sending
):
    if is_sending:
        with closing(database.connect(run_dir(DEAD) / DATABASE_NAME)) as connection:
            assert outbox.claim(connection, "slack", NOW)
    closer(receiver, NOW + 30 * DAY, slack).close_cases()

    assert receiver.requests == slack.requests == []
    assert states() == ["resolved"]
    assert outbox_rows() == {("webhook", "opened", "dead"), ("slack", "opened", "dead")}


def test_an_alert_that_was_acknowledged_is_not_sent(receiver, slack, unsent_run):
    with closing(database.connect(run_dir(DEAD) / DATABASE_NAME)) as connection:
        assert silences.acknowledge(connection, "", NOW + 60.0, "ana", "")
    closer(receiver, NOW + 120.0, slack).close_cases()

    assert slack.requests == []
    assert ("slack", "opened", "merged") in outbox_rows()


def test_a_run_with_an_agent_is_left_to_it(receiver, dead_run):
    summarise("train-3d4e5f", started=NOW + 100.0)
    with (dead_run / AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        closer(receiver, NOW + 120.0).close_cases()

    assert (receiver.requests, states()) == ([], ["firing"])


def test_what_a_receiver_does_not_accept_is_sent_at_a_later_pass(receiver, dead_run, monkeypatch):
    summarise("train-3d4e5f", started=NOW + 100.0)
    again = closer(receiver, NOW + 120.0)
    with monkeypatch.context() as unsent:
        unsent.setattr("sentinel.agent.dead_run_closer.DELIVERY_SECONDS", 0.0)
        unsent.setattr("sentinel.notify.dispatcher.Dispatcher.start", lambda _: None)
        again.close_cases()
    assert receiver.requests == []

    again.close_cases()
    assert [request.json["status"] for request in receiver.accepted] == ["resolved"]


def test_a_stop_does_not_wait_until_a_receiver_that_fails_accepts_something(
    receiver, dead_run, monkeypatch
):
    receiver.default = webhook_receiver.status(500)
    monkeypatch.setattr("sentinel.agent.dead_run_closer.FIRST_PASS_SECONDS", 0.0)
    monkeypatch.setattr("sentinel.agent.dead_run_closer.DELIVERY_SECONDS", 10_000.0)
    running = closer(receiver, NOW + DAY + 1.0)
    running.start()
    until(lambda: receiver.requests, 240.0, "a request")
    running.stop(timeout=60.0)

    assert "sentinel-closer" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def remote_home(monkeypatch):
    monkeypatch.setattr("sentinel.agent.dead_run_closer.is_home_remote", lambda: True)


def test_on_a_file_server_the_end_survives_an_error_of_the_delivery(
    receiver, dead_run, remote_home, monkeypatch
):
    def fail(_):
        raise OSError

    with monkeypatch.context() as unsent:
        unsent.setattr("sentinel.notify.dispatcher.Dispatcher.start", fail)
        closer(receiver, NOW + DAY + 1.0).close_cases()
    assert states() == ["resolved"]

    closer(receiver, NOW + DAY + 1.0).close_cases()
    assert [request.json["status"] for request in receiver.accepted] == ["resolved"]


def test_on_a_file_server_only_what_changed_is_written(receiver, dead_run, remote_home):
    before = (dead_run / DATABASE_NAME).stat()
    closer(receiver, NOW + 1.0).close_cases()

    after = (dead_run / DATABASE_NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_on_a_file_server_a_run_with_an_agent_is_not_read(
    receiver, dead_run, remote_home, monkeypatch
):
    read = []
    monkeypatch.setattr("shutil.copyfile", lambda *paths: read.append(paths))
    with (dead_run / AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        closer(receiver, NOW + DAY + 1.0).close_cases()

    assert read == []


def test_a_lock_file_that_its_owner_removed_is_no_lock(dead_run, monkeypatch):
    flock = fcntl.flock

    def flock_after_removal(descriptor, operation):
        (dead_run / AGENT_LOCK).unlink()
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", flock_after_removal)
    with closing_lock(dead_run) as is_locked:
        assert not is_locked


def test_an_agent_that_starts_meanwhile_waits(dead_run, monkeypatch):
    registration = AgentRegistration(DEAD, home_dir() / "targets")
    held = closing_lock(dead_run)
    assert held.__enter__()
    waits = []

    def release(seconds):
        waits.append(seconds)
        if len(waits) == 20:
            held.__exit__(None, None, None)

    monkeypatch.setattr("sentinel.agent.registration.time.sleep", release)
    registration.set_directory(dead_run)
    registration.release()

    assert len(waits) == 20


def test_each_summary_is_read_once_however_many_runs_are_dead(receiver, dead_run, monkeypatch):
    parsed = []

    def parse(text):
        parsed.append(text)
        return parse_object(text)

    for number in range(20):
        summarise(f"train-{number:06x}", started=NOW - 500.0, health="critical", state="died")
    for module in ("store.run_summary", "agent.dead_run_closer"):
        monkeypatch.setattr(f"sentinel.{module}.parse_object", parse, raising=False)
    closer(receiver, NOW + 120.0).close_cases()

    assert len(parsed) == 21


@pytest.fixture
def killed_run(receiver):
    """Makes a run that was killed with its agent, after two steps on these nodes."""

    def make(nodes=1):
        path, ranks_per_node = run_dir(DEAD) / DATABASE_NAME, 2
        world = float(nodes * ranks_per_node)
        sizes = {"world_size": world, "local_world_size": 2.0, "expected_ranks": world}
        records = [
            Record(DEAD, rank, step, NOW + step, event, values, step_index=step)
            for step, event, values in (
                (0, Event.START, sizes),
                (1, Event.STEP, {"loss": 2.0}),
                (2, Event.STEP, {"loss": 1.9}),
            )
            for rank in range(ranks_per_node)
        ]
        with closing(database.connect(path)) as connection:
            processor = RunProcessor(
                DEAD,
                path,
                connection,
                load_settings({}, environ={}),
                Counters(),
                sinks={},
                read_node=NodeMeasurements,
                live_rings=list,
            )
            with database.transaction(connection):
                processor.restore()
                processor.process(Record(DEAD, 0, 0, NOW, Event.METADATA, {}, {NAME_KEY: "train"}))
                for record in records:
                    processor.process(record)
                processor.persist()
            outbox.store_addresses(connection, {"webhook": sink_address(Webhook(receiver.url))})
        summarise(DEAD, started=NOW)
        (path.parent / REGISTRATION_NAME).touch()
        os.utime(path.parent / SUMMARY_NAME, (NOW + 2.0, NOW + 2.0))
        return path.parent

    return make


@pytest.mark.fault("P30")
def test_a_run_that_was_killed_with_its_agent_is_reported_once(receiver, killed_run):
    directory = killed_run()
    for seconds in (KILLED_AFTER_SECONDS, 120.0, 3600.0):
        closer(receiver, NOW + seconds).close_cases()
        assert len(receiver.accepted) == (seconds > KILLED_AFTER_SECONDS)

    (request,) = receiver.accepted
    assert request.json["status"] == "firing"
    summary = request.json["alerts"][0]["annotations"]["summary"]
    assert summary.startswith("Ranks 0-1 were killed at step 2 ")
    assert "together with the agent" in summary
    assert stored_summary(DEAD, directory / DATABASE_NAME)["state"] == "died"


def test_the_next_run_of_that_name_ends_the_report(receiver, killed_run):
    killed_run()
    summarise("train-3d4e5f", started=NOW + 60.0)
    again = closer(receiver, NOW + 120.0)
    again.close_cases()
    again.close_cases()

    assert [request.json["status"] for request in receiver.accepted] == ["firing", "resolved"]
    assert states() == ["resolved"]


def end_by_itself(directory):
    (directory / REGISTRATION_NAME).unlink()


def notify_others(directory):
    with closing(database.connect(directory / DATABASE_NAME)) as connection:
        outbox.store_addresses(connection, {"webhook": sink_address(Webhook("https://other/"))})


def end_long_ago(directory):
    os.utime(directory / SUMMARY_NAME, (NOW - 2 * DAY, NOW - 2 * DAY))


@pytest.mark.parametrize("change", [end_by_itself, notify_others, end_long_ago])
def test_another_run_without_an_end_is_not_reported(receiver, killed_run, change):
    change(killed_run())
    closer(receiver, NOW + 120.0).close_cases()

    assert (receiver.requests, states()) == ([], [])


def test_a_case_of_a_run_that_is_not_reported_is_closed_all_the_same(receiver, dead_run):
    """It was killed more than a day ago."""
    summarise(DEAD, started=NOW - 500.0, health="critical")
    (dead_run / REGISTRATION_NAME).touch()
    os.utime(dead_run / SUMMARY_NAME, (NOW, NOW))
    closer(receiver, NOW + DAY + 1.0).close_cases()

    assert [request.json["status"] for request in receiver.accepted] == ["resolved"]
    assert states() == ["resolved"]


def test_a_run_on_several_nodes_is_left_to_the_others(receiver, killed_run):
    killed_run(nodes=2)
    closer(receiver, NOW + 120.0).close_cases()

    assert (receiver.requests, states()) == ([], [])


@pytest.mark.fault("P30")
def test_what_a_killed_agent_had_not_read_is_read_first(receiver, killed_run):
    """The rings are still in shared memory: their ranks were killed with the agent."""
    directory = killed_run()
    with ranks() as begin:
        for rank in range(2):
            child = begin(rank, run=DEAD, attempt=1, steps=40)
            child.kill()
            child.wait()
        closer(receiver, NOW + 120.0).close_cases()

    (request,) = receiver.accepted
    summary = request.json["alerts"][0]["annotations"]["summary"]
    assert summary.startswith("Ranks 0-1 were killed at step 40 ")
    assert summary.endswith("; no rank is left.")
    stored = stored_summary(DEAD, directory / DATABASE_NAME)
    assert (stored["state"], stored["step"]) == ("died", 40)
    assert list_rings(DEAD) == []


def test_a_run_that_had_ended_is_stored_as_that(receiver, killed_run):
    directory = killed_run()
    with ranks() as begin:
        for rank in range(2):
            child = begin(rank, run=DEAD, attempt=1, ending="finished")
            child.kill()
            child.wait()
        closer(receiver, NOW + 120.0).close_cases()

    assert receiver.requests == []
    assert stored_summary(DEAD, directory / DATABASE_NAME)["state"] == "finished"
