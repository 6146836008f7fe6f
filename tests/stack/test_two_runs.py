"""Two runs of two ranks, while agents, trainers, Prometheus and an Alertmanager are killed.

One of a pair of Alertmanagers sends what the other has not sent within 15 s, as it was when it
began to wait. If a case ends meanwhile, it states once more that the case fires. So one of them is
ended before a case ends.
"""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack

import psutil
import pytest
from programs import is_ready, wait_for
from runaway_trainings import running_training

pytestmark = [
    pytest.mark.stack, pytest.mark.chaos, pytest.mark.full, pytest.mark.timeout(1200)
]  # fmt: skip

MANAGERS = 2
RUNAWAY, KILLED = "kl-run", "killed-run"


@pytest.fixture
def trainings(stack, tmp_path_factory):
    with ExitStack() as context:
        started = [
            context.enter_context(
                running_training(stack, run, tmp_path_factory.mktemp(run), is_healthy=True)
            )
            for run in (RUNAWAY, KILLED)
        ]
        for each in started:
            each.wait_for_scrape(stack)
        yield started


def cases(stack, run, status="firing"):
    return [
        alert
        for alert in stack.alerts(run)
        if (alert["labels"]["alertname"], alert["status"]) == ("SentinelCase", status)
    ]


def messages(stack, words):
    """Those of the runaway run. If its next agent takes a minute to start, there are others too."""
    return [each for each in stack.slack_messages(RUNAWAY) if words in each["title"]]


def test_each_alert_is_delivered_once_and_nothing_is_resolved_falsely(stack, trainings):
    runaway, killed = trainings
    assert [len(each.ranks) for each in trainings] == [2, 2]
    assert stack.alerts(RUNAWAY) + stack.alerts(KILLED) == []

    runaway.healthy_file.unlink()
    (case, *_) = wait_for("the KL case", lambda: cases(stack, RUNAWAY))
    assert case["annotations"]["cause"] == "weak_kl_term"
    assert re.search(r"KL to the reference is \d+ nats .* the limit is 1", str(case["annotations"]))
    assert int(case["annotations"]["last_good_step"]) < int(case["annotations"]["onset_step"])

    first_agent = runaway.agent_pid
    runaway.kill_agent()
    wait_for("the next agent", lambda: runaway.agent_pid != first_agent)
    stack.server.end()
    stack.server.start()
    wait_for("Prometheus", lambda: stack.prometheus.ready)
    runaway.wait_for_scrape(stack)
    stack.managers[0].end(signal.SIGKILL)

    killed.kill()
    (died, *_) = wait_for("the death", lambda: cases(stack, KILLED))
    assert died["labels"]["detector"] == "run_died"
    assert re.search(r"killed by SIGKILL at step \d+", died["annotations"]["summary"])
    stack.managers[0].start()
    wait_for("Alertmanager", lambda: is_ready(stack.manager_urls[0]))
    stack.wait_for_decisions()
    assert cases(stack, RUNAWAY, "resolved") + cases(stack, KILLED, "resolved") == []

    killed.kill_agent()
    stack.managers[1].end()
    runaway.healthy_file.touch()
    wait_for("the resolve", lambda: cases(stack, RUNAWAY, "resolved"))
    wait_for("its message", lambda: len(messages(stack, "KL term")) > 1)

    assert stack.repeats() == []
    assert len(cases(stack, RUNAWAY)) == len(cases(stack, RUNAWAY, "resolved")) == 1
    assert [alert["status"] for alert in stack.alerts(KILLED)] == ["firing"]
    assert len(messages(stack, "KL term")) == 2
    assert len(stack.slack_messages(KILLED)) == 1
    assert psutil.pid_exists(runaway.agent_pid)
