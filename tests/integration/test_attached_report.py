"""The report of a run follows the end of a case into its thread in Slack."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager

import pytest
from support.rank_processes import ranks, until
from support.vendors import SLACK_TOKEN, FakeSlack

from sentinel.agent.main import Agent
from sentinel.config.settings import load_settings

TIMEOUT_SECONDS = 240.0
LOSSES = [1.0] * 10 + [float("nan")] * 3 + [1.0] * 387


@pytest.fixture
def slack(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)
    with FakeSlack() as fake:
        yield fake


@contextmanager
def agent_of_run(slack):
    """An agent of a run that had a few NaN; the test runs its loop."""
    bot = {"token": SLACK_TOKEN, "channel": "training", "api_url": slack.api_url}
    sinks = {"slack_bot": {**bot, "attach_report": True}}
    at_once = {"resolve_seconds": 0.0, "cooldown_seconds": 0.0}
    with ranks() as start_rank:
        start_rank(0, world=1, steps=400, values={"loss": LOSSES})
        agent = Agent("live", load_settings({"port": 0, "sinks": sinks, **at_once}))
        agent.report_sender.start()
        agent.dispatcher.start()
        try:
            yield agent
        finally:
            agent.dispatcher.stop(TIMEOUT_SECONDS)
            agent.report_sender.stop(TIMEOUT_SECONDS)
            agent.processor.onset_worker.stop(TIMEOUT_SECONDS)
            agent.connection.close()


def run_until_counted(agent, outcome):
    """Run the agent until a report has that outcome."""

    def run_once():
        agent.run_once()
        return agent.counters.values["sentinel_sink_reports_total", f"slack_bot:{outcome}"]

    until(run_once, TIMEOUT_SECONDS, f"a report is {outcome}")


def test_the_thread_of_a_case_gets_the_report_once_it_is_over(slack):
    with agent_of_run(slack) as agent:
        run_until_counted(agent, "sent")

    (message, *_), (file,) = slack.posts, slack.files.values()
    assert ":white_check_mark: Resolved" in message["text"]
    assert (file["name"], file["thread_ts"]) == ("sentinel-live.html", message["ts"])
    html = file["content"].decode()
    (data,) = re.findall(r'id="report-data">(.*?)</script>', html)
    (run,) = json.loads(data)["runs"]
    assert run["name"] == "live"
    assert run["verdict"]["past"][0]["severity"] == "critical"
    assert run["answers"]["api/samples"] == []
