"""From a training to the notification, through Prometheus and Alertmanager; and killed.

The tests share one run and depend on their order.
"""

from __future__ import annotations

import os
import re

import pytest
import requests
from dashboards import VARIABLES, queries, with_variables
from programs import run_program, wait_for
from runaway_trainings import running_training

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.timeout(1200)]

RUN = "runaway-test"
CAUSE = "weak_kl_term"
SCRAPES = 8
"""Number of further scrapes after which an alert counts as not sent."""

LIVE = dict.fromkeys(VARIABLES, ".*") | {
    "$run": RUN,
    "$__rate_interval": "20s",
    "$__range": "5m",
}
EXPECTED_EMPTY = {
    r"sentinel_detector_errors_total": "no detector fails",
    r"sentinel_config_errors_total": "all settings are valid",
    r"sentinel_node_read_errors_total": "all hardware metrics can be read",
    r"sentinel_head_connection_rejected_total|sentinel_nodes": "this run is on one node",
    r"sentinel_sink_": "this agent has no sink: Alertmanager sends notifications",
    r"sentinel_gpu_": "there may be no GPU here",
    r"DCGM_|node_uname": "no other exporter runs here",
    r"sentinel_detector_threshold\{(?!.*kl_ref)": "other detectors are disabled",
    r"name=~.*beta": "the script has no such setting",
    r"sentinel_policy_kl_info": "the script logs no key of a framework",
}
"""Why a query may stay empty, by a pattern of it."""


@pytest.fixture(scope="module")
def training(stack, tmp_path_factory):
    with running_training(stack, RUN, tmp_path_factory.mktemp("rings")) as started:
        started.wait_for_scrape(stack)
        yield started


def _series(metric: str) -> str:
    return f'{metric}{{run="{RUN}"}}'


def _further_scrapes(stack, metric: str) -> None:
    """Wait until Prometheus has stored that many more samples of a series of the run."""
    count = f"count_over_time({metric}[1h])"

    def stored() -> float:
        return sum(float(series["value"][1]) for series in stack.prometheus.instant_query(count))

    before = stored()
    wait_for(f"{SCRAPES} more samples of {metric}", lambda: stored() >= before + SCRAPES)


def _cases(stack, status: str, **labels: str) -> list[dict]:
    """The alerts of cases with these labels that the webhook received."""
    wanted = labels | {"alertname": "SentinelCase"}
    return [
        alert
        for alert in stack.alerts(RUN)
        if alert["status"] == status and wanted.items() <= alert["labels"].items()
    ]


def test_one_message_has_cause_number_step_and_checkpoint(stack, training):
    """The shipped rule and the shipped template of Slack."""
    assert len(training.ranks) == 2
    (alert, *_) = wait_for("the KL case", lambda: _cases(stack, "firing", cause=CAUSE))
    (message, *_) = wait_for("the Slack message", lambda: stack.slack_messages(RUN))
    annotations, (onset, checkpoint) = alert["annotations"], _onset_and_checkpoint(training)

    assert annotations["cause"] == CAUSE
    assert annotations["onset_step"] == onset
    assert annotations["last_good_step"] == checkpoint
    assert message["title"].startswith("Critical: ")
    assert message["title"].endswith(f", run {RUN} (kl_runaway.py on {os.uname().nodename})")
    assert re.search(rf"(At|Since) step {onset}\b", message["text"])
    assert "20 nats" in message["text"]
    assert "What to do: " in message["text"]
    assert f"Last good checkpoint: step {checkpoint}" in message["text"]


def _onset_and_checkpoint(training) -> tuple[str, str]:
    """As notified: the page shows the onset that is estimated later."""
    incidents = requests.get(f"{training.url}/api/run", timeout=240).json()["incidents"]
    (found,) = (each for each in incidents if each["detector"] == "kl_blowup")
    return str(found["onset_step"]), str(found["last_good_step"])


def test_a_live_agents_metrics_pass_the_linter(training, promtool):
    page = requests.get(f"{training.url}/metrics", timeout=240).text
    checked = run_program(promtool, "check", "metrics", text=page)

    assert (checked.returncode, checked.stdout) == (0, "")


def test_every_dashboard_query_returns_data_of_the_live_run(stack, training):
    """Only the expected panels are empty."""
    empty = {with_variables(target["expr"], LIVE) for _, target in queries()}

    def always_empty() -> set[str]:
        """Queries that never returned data; later misses do not count."""
        empty.difference_update({q for q in empty if stack.prometheus.instant_query(q)})
        return empty

    # Rates need a few scrapes, and a checkpoint needs its step.
    try:
        wait_for("data of each query", lambda: not [*filter(_must_have_data, always_empty())])
    finally:
        print(f"Empty: {sorted(filter(_must_have_data, empty))}")


def _must_have_data(query: str) -> bool:
    return not any(re.search(pattern, query) for pattern in EXPECTED_EMPTY)


def test_a_case_is_one_message_for_each_severity_and_a_resolve(stack, training):
    """Its detectors send none of their own."""
    training.healthy_file.touch()
    (resolved,) = wait_for("the resolve", lambda: _cases(stack, "resolved"))[:1]
    wait_for("its message", lambda: stack.slack_messages(RUN)[-1]["title"].startswith("No longer"))
    messages = stack.slack_messages(RUN)
    severities = {alert["labels"]["severity"] for alert in _cases(stack, "firing")}

    assert len(messages) == len(severities) + 1
    assert messages[-1]["title"].startswith("No longer firing: Weak KL term, run ")
    assert messages[-1]["text"].startswith(
        f"It began at step {resolved['annotations']['onset_step']}. The alert fired from 2"
    )
    assert "What to do" not in messages[-1]["text"]


def test_a_killed_training_is_notified_and_does_not_look_recovered(stack, training):
    """After SIGKILL of every rank the death is notified, and keeps firing."""
    training.healthy_file.unlink()
    first = {alert["labels"]["case"] for alert in _cases(stack, "firing")}

    def next_case():
        return [a for a in _cases(stack, "firing") if a["labels"]["case"] not in first]

    wait_for("the next case", next_case)
    training.kill()
    (died, *_) = wait_for("the death", lambda: _cases(stack, "firing", detector="run_died"))
    firing = f'sentinel_case_firing{{run="{RUN}", detector="run_died"}}'
    _further_scrapes(stack, firing)

    assert died["labels"]["severity"] == "critical"
    assert "kill" in died["annotations"]["summary"].lower()
    assert _cases(stack, "resolved", detector="run_died") == []
    # Polled: a busy machine may miss a scrape.
    state = f'sentinel_run_state{{run="{RUN}", state="died"}} == 1'
    wait_for("the alert still firing", lambda: stack.prometheus.instant_query(f"{firing} == 1"))
    wait_for("the state", lambda: stack.prometheus.instant_query(state))


def test_a_killed_agent_does_not_look_recovered(stack, training):
    """Without a target, the case keeps firing; those that ended before do not return.

    Not even to a Prometheus that is restarted meanwhile.
    """
    training.kill_agent()
    wait_for(
        "the agent's absence", lambda: stack.prometheus.instant_query('up{job="sentinel"} == 0')
    )
    stack.server.end()
    stack.server.start()
    wait_for("Prometheus", lambda: stack.prometheus.ready)
    firing = f'ALERTS{{alertname="SentinelCase", run="{RUN}", alertstate="firing"}}'
    _further_scrapes(stack, f'{firing[:-1]}, detector="run_died"}}')

    assert stack.prometheus.instant_query(_series("sentinel_case_firing")) == []
    cases = {alert["metric"]["detector"] for alert in stack.prometheus.instant_query(firing)}
    assert cases == {"run_died"}
    assert _cases(stack, "resolved", detector="run_died") == []
    names = {alert["labels"]["alertname"] for alert in stack.alerts(RUN)}
    assert names <= {"SentinelCase", "SentinelRunVanished"}
    assert stack.repeats() == []
