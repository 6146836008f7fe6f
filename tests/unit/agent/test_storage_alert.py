"""The warning about degraded storage ends when it is over, and not before."""

from __future__ import annotations

import pytest

from sentinel.agent.storage_alert import StorageAlert
from sentinel.model.message import build_message
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.storage_state import MEMORY, OK, REPLACED, StorageState

NOW = 1_700_000_000.0
FOLDER = "/dev/shm/sentinel-1000/home/runs/r"
DEGRADED = StorageState(
    MEMORY, "/home is read-only", NOW, "Make it writable.", "", "", 1, 0, FOLDER
)


def record(step, event=Event.STEP):
    return Record("r", WHOLE_RUN, step, NOW + step, event)


def notifications_of(*states):
    """The notifications of a run whose storage is in these states at its steps, and at its end."""
    current = [StorageState()]
    alert = StorageAlert("r", lambda: current[0], lambda _: False)
    found = []
    for step, state in enumerate(states):
        current[0] = state
        found += alert.update(record(step))
    return [*found, *alert.update(record(len(states), Event.STOP))]


def test_the_warning_names_the_folder_of_the_data():
    opened = notifications_of(DEGRADED)[0]

    assert opened.incident.finding.summary == (
        "/home is read-only since 2023-11-14 22:13:20 UTC; the run is stored in " + FOLDER + "."
    )


def test_a_run_that_ends_with_its_data_in_memory_is_not_resolved():
    opened, left = notifications_of(StorageState(), DEGRADED, DEGRADED)

    assert [opened.reason, left.reason] == [NotificationReason.OPENED, NotificationReason.UPDATED]
    assert left.name == "r/storage#1:updated-1"
    assert left.incident.opened_step == opened.incident.opened_step == 1
    text = build_message(left, None).text
    assert f"The run ended with its data in {FOLDER}: /home is read-only" in text
    assert f"What to do: Copy {FOLDER} to a disk" in text
    assert "Resolved" not in text


def test_one_whose_storage_is_lost_at_its_end_says_so_at_once():
    current = [StorageState()]
    alert = StorageAlert("r", lambda: current[0], lambda _: False)
    list(alert.update(record(1)))
    current[0] = DEGRADED
    (opened,) = alert.update(record(2, Event.STOP))

    assert opened.reason is NotificationReason.OPENED
    assert "ended with its data in" in opened.incident.finding.summary


@pytest.mark.parametrize("state", [OK, REPLACED])
def test_one_with_its_data_on_the_disk_is_resolved(state):
    storage = StorageState(state, number=1)
    opened, resolved = notifications_of(StorageState(REPLACED, "damaged", NOW, number=1), storage)

    assert (opened.reason, resolved.reason) == (
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
    )
    assert (resolved.incident.onset_step, opened.incident.onset_step) == (0, 0)


def test_storage_that_recovers_while_the_agent_stays_is_resolved():
    current = [DEGRADED]
    alert = StorageAlert("r", lambda: current[0], lambda _: False)
    list(alert.update(record(1)))
    list(alert.update(record(2, Event.STOP)))
    current[0] = StorageState(number=1)
    (resolved,) = alert.update(record(2, Event.HEARTBEAT))

    assert resolved.reason is NotificationReason.RESOLVED
