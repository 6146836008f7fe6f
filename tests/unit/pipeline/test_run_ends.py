"""The end of a run ends its incidents, and what was ended is not found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import ONSET, TRL, doubling, grpo_run, records, since

from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.incident import IncidentKey, IncidentState, Resolution
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import UNKNOWN_OUTCOME, WHOLE_RUN, Event, Record
from sentinel.pipeline.incidents import ACKNOWLEDGED_KEY, MAX_LASTING_SECONDS, IncidentBook
from sentinel.pipeline.snapshot import deserialize, serialize

BAD = Finding("Bad.")


class Probe:
    needs = frozenset()
    signal = "loss"
    severity = Severity.WARNING
    remedy = "Repair it."


class Driver:
    """An incident book, and records of one run: a second and a step apart."""

    def __init__(self):
        self.book = IncidentBook()
        self.step = 100
        self.now = 1000.0

    def process(self, event=Event.STEP, *, outputs=None, attempt=0, **attributes):
        """Detector and resolution of the changes by one record; `outputs` are by detector."""
        self.step += event is Event.STEP
        self.now += 1.0
        record = Record(
            *("run", WHOLE_RUN, self.step, self.now, event), attributes=attributes, attempt=attempt
        )
        changes = [
            self.book.update_incident(IncidentKey("run", WHOLE_RUN, name), record, output, Probe())
            for name, output in (outputs or {}).items()
        ]
        changes += self.book.update(record)
        self.notifications = [each for each in changes if isinstance(each, Notification)]
        return [
            (
                each.incident.key.detector,
                each.incident.resolution
                if each.reason is NotificationReason.RESOLVED
                else each.reason,
            )
            for each in self.notifications
        ]

    def find(self, *detectors, event=Event.HEARTBEAT, **fields):
        return self.process(event, outputs=dict.fromkeys(detectors, BAD), **fields)

    def restart_agent(self):
        self.book = deserialize(serialize(self.book))


@pytest.fixture
def driver():
    return Driver()


@pytest.mark.parametrize(
    ("outcome", "resolution"),
    [
        ("finished", Resolution.RUN_FINISHED),
        ("interrupted", Resolution.RUN_STOPPED),
        ("stopped", Resolution.RUN_STOPPED),
    ],
)
def test_a_run_that_ends_well_ends_what_it_opened(driver, outcome, resolution):
    driver.find("slow", "drift", event=Event.STEP)

    assert driver.process(Event.STOP, outcome=outcome) == [
        ("slow", resolution),
        ("drift", resolution),
    ]
    (first, _) = driver.notifications
    assert first.incident.state is IncidentState.RESOLVED
    assert (first.step, first.incident.resolved_step, first.incident.resolved_time) == (
        driver.step,
        driver.step,
        driver.now,
    )
    assert not driver.book.open_incidents


@pytest.mark.parametrize("outcome", ["exception", "exit", "died", UNKNOWN_OUTCOME])
def test_a_run_that_fails_keeps_its_incidents_until_the_failure_is_found(driver, outcome):
    driver.find("slow", event=Event.STEP)

    assert driver.process(Event.STOP, outcome=outcome) == []
    assert driver.book.open_incidents


@pytest.mark.parametrize(
    ("event", "remedy"),
    [(Event.STEP, "Start the run again."), (Event.SAVE, "Resume from the last checkpoint.")],
)
def test_a_failure_advises_to_resume_only_if_there_is_a_checkpoint(
    driver, monkeypatch, event, remedy
):
    """One that was saved at the last step, too."""
    monkeypatch.setattr(Probe, "remedy", "Resume from the last checkpoint.")
    driver.process(event)
    driver.find("run_failed")

    assert driver.notifications[0].incident.remedy == remedy


def test_what_a_run_ended_is_not_found_again(driver):
    driver.find("disk", event=Event.STEP)
    driver.process(Event.STOP, outcome="finished")
    driver.restart_agent()

    assert driver.find("disk") == driver.find("gpu") == []
    assert driver.find("run_failed") == [("run_failed", NotificationReason.OPENED)]


def test_the_next_attempt_is_watched_again(driver):
    driver.find("disk", event=Event.STEP)
    driver.process(Event.STOP, outcome="finished")
    driver.process(Event.START, attempt=1)

    assert driver.find("disk", attempt=1) == [("disk", NotificationReason.OPENED)]


def test_an_incident_that_was_over_before_keeps_its_step(driver):
    driver.find("slow", event=Event.STEP)
    for _ in range(20):
        driver.process(outputs={"slow": Clear()})

    assert driver.process(Event.STOP, outcome="finished") == [("slow", Resolution.CLEARED)]
    assert driver.notifications[0].step == 102, "the first record without a finding"


def test_an_incident_that_had_ended_shortly_before_the_run_keeps_its_step(driver):
    driver.find("slow", "drift", event=Event.STEP)
    driver.process(outputs={"slow": Clear()})
    driver.process()

    assert driver.process(Event.STOP, outcome="finished") == [
        ("slow", Resolution.CLEARED),
        ("drift", Resolution.RUN_FINISHED),
    ]
    assert [each.step for each in driver.notifications] == [102, 103]


NAN = Finding("NaN.", severity=Severity.CRITICAL)


def end_with_nan(driver):
    driver.process(outputs={"nan_or_inf": NAN, "slow": BAD})
    return driver.process(Event.STOP, outcome="finished")


def test_what_is_critical_fires_on_when_the_run_finishes(driver):
    assert end_with_nan(driver) == [
        ("nan_or_inf", NotificationReason.ENDED),
        ("slow", Resolution.RUN_FINISHED),
    ]
    driver.restart_agent()

    (incident,) = driver.book.open_incidents.values()
    assert incident.is_ended_firing
    clears = [driver.process(outputs={"nan_or_inf": Clear()}) for _ in range(60)]
    assert clears == [[]] * 60
    assert driver.process(Event.HEARTBEAT, outputs={"nan_or_inf": NAN}) == []
    assert driver.process(Event.STOP, outcome="finished") == []


@pytest.mark.parametrize("outcome", ["interrupted", "stopped"])
def test_what_is_critical_ends_with_a_run_that_is_stopped(driver, outcome):
    driver.process(outputs={"nan_or_inf": NAN})

    assert driver.process(Event.STOP, outcome=outcome) == [("nan_or_inf", Resolution.RUN_STOPPED)]


def test_what_was_critical_and_over_is_resolved_when_the_run_finishes(driver):
    driver.process(outputs={"nan_or_inf": NAN})
    driver.process(outputs={"nan_or_inf": Clear()})

    assert driver.process(Event.STOP, outcome="finished") == [("nan_or_inf", Resolution.CLEARED)]


@pytest.mark.parametrize("detector", ["run_stalled", "node_lost", "memory_creep"])
def test_what_a_run_that_finishes_has_overcome_is_resolved(driver, detector):
    driver.process(outputs={detector: NAN})

    assert driver.process(Event.STOP, outcome="finished") == [(detector, Resolution.RUN_FINISHED)]


def test_the_next_attempt_ends_what_outlived_the_run(driver):
    end_with_nan(driver)

    assert driver.process(Event.START, attempt=1) == []
    assert driver.process(attempt=1) == [("nan_or_inf", Resolution.STARTED_AGAIN)]
    assert driver.find("nan_or_inf", attempt=1) == [("nan_or_inf", NotificationReason.OPENED)]


@pytest.mark.parametrize(
    "close",
    [
        lambda driver: driver.process(Event.HEARTBEAT, **{ACKNOWLEDGED_KEY: "nan_or_inf"}),
        lambda driver: driver.process(attempt=1),
    ],
    ids=["acknowledged", "started again"],
)
def test_that_the_run_ended_damaged_stays_known(driver, close):
    end_with_nan(driver)
    driver.restart_agent()
    close(driver)

    (closed,) = driver.notifications
    assert closed.incident.lasted_until is Resolution.RUN_FINISHED
    assert closed.incident.resolution is not Resolution.RUN_FINISHED


def test_an_acknowledgement_ends_what_outlived_the_run(driver):
    end_with_nan(driver)
    acknowledged = {ACKNOWLEDGED_KEY: "nan_or_inf"}

    assert driver.process(Event.HEARTBEAT, **acknowledged) == [
        ("nan_or_inf", Resolution.ACKNOWLEDGED)
    ]


def test_what_outlived_the_run_ends_after_a_day(driver):
    end_with_nan(driver)
    driver.now += MAX_LASTING_SECONDS

    assert driver.process(Event.HEARTBEAT) == [("nan_or_inf", Resolution.EXPIRED)]


def test_the_day_counts_from_the_end_of_the_run(driver):
    driver.process(outputs={"nan_or_inf": NAN})
    driver.now += 3 * MAX_LASTING_SECONDS
    driver.process(Event.STOP, outcome="finished")
    driver.restart_agent()

    assert driver.process(Event.HEARTBEAT) == []
    driver.now += MAX_LASTING_SECONDS
    assert driver.process(Event.HEARTBEAT) == [("nan_or_inf", Resolution.EXPIRED)]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [("finished", NotificationReason.ENDED), ("stopped", NotificationReason.RESOLVED)],
)
def test_a_case_that_its_cause_makes_critical_fires_on(outcome, reason):
    run = grpo_run(1)
    run["kl_ref"] *= doubling(15, 60)
    run["reward"] -= 0.6 * np.clip(since(ONSET + 60) / 8, 0, 1)
    last = list(records(run))[-1]
    stop = replace(last, event=Event.STOP, values={}, attributes={"outcome": outcome})
    replay = diagnose_run([*records(run), stop], TRL | {"beta": 0.001})

    assert replay.causes == ["policy_collapse"]
    end = replay.notifications[-1]
    assert (end.reason, end.diagnosis.cause) == (reason, "policy_collapse")
    is_firing = end.incident.state is IncidentState.FIRING
    assert is_firing == (reason is NotificationReason.ENDED)


def test_a_pending_incident_is_not_notified_at_the_end():
    driver = Driver()
    driver.book.findings_to_fire = 3
    driver.find("slow", event=Event.STEP)

    assert driver.process(Event.STOP, outcome="finished") == []


@pytest.mark.parametrize("failure", ["run_died", "run_failed"])
def test_a_failure_ends_the_other_incidents_without_a_message(driver, failure):
    driver.find("slow", "run_stalled", event=Event.STEP)

    assert driver.find(failure) == [
        (failure, NotificationReason.OPENED),
        ("slow", Resolution.RUN_FAILED),
        ("run_stalled", Resolution.RUN_FAILED),
    ]
    assert all(each.is_silent for each in driver.notifications[1:])
    assert driver.find("slow", "run_stalled", failure) == []


def test_a_stall_after_a_failure_is_no_incident_and_others_are(driver):
    driver.find("run_died")

    assert driver.find("run_stalled") == []
    assert driver.find("gpu_fault") == [("gpu_fault", NotificationReason.OPENED)]


@pytest.mark.parametrize("failure", ["run_died", "run_failed", "node_lost"])
def test_a_failure_ends_at_the_first_step_of_the_next_attempt(driver, failure):
    driver.find(failure)
    driver.process(Event.START, attempt=1)
    for _ in range(10):
        assert driver.process(Event.HEARTBEAT, outputs={failure: Clear()}, attempt=1) == []

    assert driver.process(attempt=1) == [(failure, Resolution.RESUMED)]
    assert not driver.notifications[0].is_silent


def test_a_step_of_the_same_attempt_does_not_end_a_failure(driver):
    driver.find("run_died")

    assert driver.process() == []


def test_a_second_failure_before_the_first_step_is_the_same_incident(driver):
    driver.find("run_failed")
    driver.process(Event.START, attempt=1)

    assert driver.find("run_failed", attempt=1) == []
    driver.process(Event.START, attempt=2)
    assert driver.process(attempt=2) == [("run_failed", Resolution.RESUMED)]
    assert driver.find("run_failed", attempt=2) == [("run_failed", NotificationReason.OPENED)]


def test_an_acknowledged_failure_ends_and_is_not_found_again(driver):
    driver.find("run_failed")

    assert driver.find("run_failed", **{ACKNOWLEDGED_KEY: "slow,run_failed"}) == [
        ("run_failed", Resolution.ACKNOWLEDGED)
    ]
    driver.restart_agent()
    assert driver.find("run_failed") == []


def test_an_acknowledged_warning_does_not_end(driver):
    driver.find("slow", event=Event.STEP)

    assert driver.find("slow", **{ACKNOWLEDGED_KEY: "slow"}) == []
    assert driver.book.open_incidents


def test_a_failure_ends_after_a_day(driver):
    driver.find("run_died")
    driver.now += MAX_LASTING_SECONDS - 2.0
    assert driver.find("run_died") == []

    assert driver.find("run_died") == [("run_died", Resolution.EXPIRED)]
    assert driver.notifications[0].is_silent


def test_the_true_culprit_replaces_a_failure_without_a_message(driver):
    driver.find("run_failed")

    assert driver.find("run_died") == [
        ("run_died", NotificationReason.OPENED),
        ("run_failed", Resolution.CORRECTED),
    ]


def test_another_culprit_of_a_failure_is_a_change(driver):
    driver.process(Event.HEARTBEAT, outputs={"run_failed": replace(BAD, rank=0)})
    record = Record("run", WHOLE_RUN, 100, driver.now, Event.HEARTBEAT)
    key = IncidentKey("run", WHOLE_RUN, "run_failed")
    change = driver.book.update_incident(key, record, replace(BAD, rank=1), Probe())

    assert change.finding.rank == 1
    assert driver.book.update_incident(key, record, replace(BAD, rank=1), Probe()) is None


def test_a_failure_of_an_earlier_attempt_hides_no_stall_of_the_next(driver):
    driver.find("run_failed")
    driver.process(Event.START, attempt=1)

    assert driver.find("run_stalled", attempt=0) == []
    assert driver.find("run_stalled", attempt=1) == [("run_stalled", NotificationReason.OPENED)]


def test_a_failure_of_an_earlier_attempt_is_not_corrected_by_the_next(driver):
    driver.find("run_failed")
    driver.process(Event.START, attempt=1)

    withdrawal = {"run_failed": Clear(withdraws=True)}
    assert driver.process(Event.HEARTBEAT, outputs=withdrawal, attempt=1) == []
    assert driver.find("run_died", attempt=1) == [
        ("run_died", NotificationReason.OPENED),
        ("run_failed", Resolution.RUN_FAILED),
    ]
    # The cause of the end of this attempt may still change.
    assert driver.find("run_failed", attempt=1) == [
        ("run_failed", NotificationReason.OPENED),
        ("run_died", Resolution.CORRECTED),
    ]


def test_an_acknowledged_failure_of_an_earlier_attempt_hides_no_further_one(driver):
    driver.find("run_died")
    driver.process(Event.START, attempt=1)
    acknowledged = {ACKNOWLEDGED_KEY: "run_died"}
    assert driver.process(Event.HEARTBEAT, attempt=1, **acknowledged) == [
        ("run_died", Resolution.ACKNOWLEDGED)
    ]

    assert driver.find("run_died", attempt=1) == [("run_died", NotificationReason.OPENED)]
