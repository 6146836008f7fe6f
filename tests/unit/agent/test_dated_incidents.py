"""An onset that is estimated after the incident opened: its date is corrected everywhere."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from sentinel.agent.processor import RunProcessor
from sentinel.config.settings import build_sinks, load_settings
from sentinel.model.counters import Counters
from sentinel.model.incident import Onset
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store import notification_codec
from sentinel.store.database import connect
from sentinel.store.run_reader import RunReader

NOW = 1_760_000_000.0
SINKS = {
    "slack": {"url": "https://hooks.slack.com/services/T0/B0/x"},
    "webhook": {"url": "https://hooks.example.org/x"},
}
FALL_STEP, CHECKPOINT_STEPS = 121, (50, 100)
ESTIMATE = Onset(98, 96, 99)
"""Before the last checkpoint of the run."""


class Worker:
    """Answers every request with `onset`, once `may_answer`."""

    def __init__(self):
        self.requests, self.onset, self.may_answer = {}, ESTIMATE, False

    def enqueue(self, requests):
        self.requests |= {each.incident: each for each in requests}

    def poll(self):
        while self.may_answer and self.requests:
            _, request = self.requests.popitem()
            yield request, self.onset


class AgentOfRun:
    """Agents of one run, one after the other, with the same database."""

    def __init__(self, path):
        self.path, self.step, self.processor = path, 0, None
        self.restart()

    def restart(self):
        if self.processor is not None:
            self.processor.connection.close()
        settings = load_settings({"sinks": SINKS, "disable": ["reward_stalled"]})
        self.processor = RunProcessor(
            *("live", self.path, connect(self.path), settings, Counters()),
            sinks=build_sinks(settings),
            read_node=NodeMeasurements,
            live_rings=list,
            clock=lambda: NOW + self.step,
        )
        self.worker = self.processor.onset_worker = Worker()
        self.processor.restore()
        self.processor.poll_silences()

    def process(self, *records):
        for record in records:
            self.processor.process(record)
        self.processor.persist()

    def record(self, event=Event.STEP, **values):
        return Record("live", WHOLE_RUN, self.step, NOW + self.step, event, values)

    def train(self, until, level=1.0):
        while self.step < until:
            self.step += 1
            self.process(self.record(reward=level + 0.02 * (self.step * 7 % 5)))
            if self.step in CHECKPOINT_STEPS:
                self.process(self.record(Event.SAVE))

    def end(self):
        self.process(replace(self.record(Event.STOP), attributes={"outcome": "finished"}))

    def estimate(self):
        self.process(*self.processor.poll_onsets())
        self.worker.may_answer = True
        self.process(*self.processor.poll_onsets())

    def queued(self, sink):
        """Reason and dates of the notifications for a sink that are not merged with another."""
        rows = self.processor.connection.execute(
            "select notification from outbox where sink = ? and state != 'merged' order by rowid",
            [sink],
        )
        found = [notification_codec.decode(text) for (text,) in rows]
        return [(each.reason.value, each.onset_step, each.last_good_step) for each in found]

    def stored(self):
        """The dates of the incident and of its case, as a page reads them."""
        reader = RunReader(self.path)
        (incident,), (case,) = reader.incidents(), reader.cases()
        dates = {(each["onset_step"], each["last_good_step"]) for each in (incident, case)}
        assert f"step {case['onset_step']}" in case["message"]["since"]
        (date,) = dates
        return date


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    agent = AgentOfRun(tmp_path / "sentinel.db")
    agent.process(agent.record(Event.START))
    agent.train(FALL_STEP - 1)
    while not agent.queued("slack"):
        agent.train(agent.step + 1, level=0.0)
    with closing(agent.processor.connection):
        yield agent


def deliver(agent):
    agent.processor.connection.execute("update outbox set state = 'delivered', receipt = '1'")


def test_a_message_that_waits_gets_the_estimate(agent):
    ((_, first, checkpoint),) = agent.queued("slack")
    assert (abs(first - FALL_STEP) <= 2, checkpoint) == (True, 100)
    agent.estimate()

    assert agent.queued("slack") == agent.queued("webhook") == [("opened", 98, 50)]
    assert agent.stored() == (98, 50)


def test_a_message_that_was_sent_is_corrected_by_the_next_one(agent):
    """A webhook that keeps an alert gets its end, and so does Slack; neither can be edited."""
    deliver(agent)
    agent.estimate()
    agent.end()

    assert [each[0] for each in agent.queued("slack")] == ["opened", "resolved"]
    assert agent.queued("slack")[-1][1:] == (98, 50)
    assert agent.stored() == (98, 50)


def test_a_receiver_that_can_change_its_message_gets_an_update(agent):
    deliver(agent)
    agent.processor.recipients = agent.processor.notification_policy.recipients
    object.__setattr__(agent.processor.recipients, "updatable", ["webhook"])
    agent.estimate()

    assert agent.queued("webhook")[-1] == ("updated", 98, 50)
    assert len(agent.queued("slack")) == 1


def test_the_same_date_is_no_update(agent):
    ((_, first, _),) = agent.queued("slack")
    deliver(agent)
    agent.worker.onset = Onset(first, first, first)
    result = []
    agent.processor.consumers += (
        type("Spy", (), {"update": lambda _, each: result.append(each)})(),
    )
    agent.estimate()

    assert [each.case_notifications for each in result] == [()]
    assert len(agent.queued("slack")) == 1


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_an_estimate_survives_the_agent(agent, has_snapshot):
    agent.estimate()
    if has_snapshot:
        agent.processor.snapshot()
    agent.restart()
    (case,) = agent.processor.pipeline.current_notifications()

    assert (case.onset_step, case.last_good_step) == (98, 50)
    assert not agent.processor.pipeline.undated_incidents


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_the_next_agent_estimates_what_the_last_one_did_not(agent, has_snapshot):
    if has_snapshot:
        agent.processor.snapshot()
    agent.restart()
    agent.estimate()

    assert agent.stored() == (98, 50)


def test_a_case_that_ends_meanwhile_is_corrected_too(agent):
    """A short run is over before its first message is sent."""
    agent.end()
    agent.estimate()

    dated = [("opened", 98, 50), ("resolved", 98, 50)]
    assert agent.queued("slack") == agent.queued("webhook") == dated
    assert agent.stored() == (98, 50)
    assert not agent.processor.pipeline.engine.case_book.runs["live"].undated_cases


def test_an_incident_that_opens_again_waits_for_its_own_estimate(agent):
    (name,) = agent.processor.pipeline.undated_incidents
    agent.process(*agent.processor.poll_onsets())
    undated = agent.processor.pipeline.engine.incident_book.undated
    undated[name] = replace(undated[name], suspected_step=130)
    agent.worker.may_answer = True

    assert agent.processor.poll_onsets() == []
    assert [each.suspected_step for each in agent.worker.requests.values()] == [130]


def test_a_remedy_names_a_checkpoint_only_where_there_is_one(agent):
    (case,) = agent.processor.pipeline.current_notifications()
    assert "resume from the checkpoint before the onset" in case.remedy
    agent.worker.onset = Onset(40, 38, 41)
    agent.estimate()
    (case,) = agent.processor.pipeline.current_notifications()
    (incident,) = RunReader(agent.path).incidents()

    assert case.last_good_step is None
    assert "start again from before the onset" in case.remedy
    assert "checkpoint" not in case.remedy
    assert incident["remedy"] == case.remedy
    assert NotificationReason.OPENED is case.reason
