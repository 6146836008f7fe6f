"""All alert rules on the metrics of the agents of a run on two nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import run_program
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse
from support.results import make_result, step_result

from sentinel.config.plugins import load_classes
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.record import Event
from tools.generate.sample_exposition import FOLLOWER_STATUS, HEAD_STATUS, SAMPLE_NODE

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
DETECTORS = {name: kind.severity for name, kind in load_classes("detectors").items()}
HOURS = 2
SAMPLES = HOURS * 60


def node(cluster, rank, *results):
    """The exposition of the agent of a node with one of the two ranks, during the run."""
    counters = Counters()
    for count in COUNTER_FAMILIES:
        if count.family != "sentinel_nonfinite_total":
            counters.set(count.family, "0", 0.0)
    exposition = Exposition(
        counters,
        DETECTORS,
        run=f"run-{rank}",
        machine=lambda: SAMPLE_NODE,
        cluster_status=lambda: cluster,
    )
    heartbeat = make_result(
        Event.HEARTBEAT, values={"ranks_running": 1.0}, attributes={"state": "running"}
    )
    settings = {"world_size": 2.0, "local_world_size": 1.0}
    start = make_result(Event.START, rank=rank, values=settings)
    for result in (start, step_result(rank=rank, step_time=0.5), heartbeat, *results):
        exposition.update(result)
    return exposition


def series(exposition) -> Iterator[dict[str, str]]:
    """Input of `promtool test rules`: constant values, and times that advance."""
    for family in parse(generate_latest(exposition.registry).decode()):
        for sample in family.samples:
            instance = f"{exposition.state()['run']}:13130"
            labels = {**sample.labels, "job": "sentinel", "instance": instance}
            label_text = ",".join(f"{name}={json.dumps(text)}" for name, text in labels.items())
            constant = f"{sample.value:.15g}x{SAMPLES}"
            values = f"0+60x{SAMPLES}" if "timestamp_seconds" in sample.name else constant
            yield {"series": f"{sample.name}{{{label_text}}}", "values": values}


def check_no_alert(promtool, folder, *agents):
    """Result of promtool for: no alert but the watchdog fires in two hours."""
    case = {
        "interval": "1m",
        "input_series": [each for agent in agents for each in series(agent)],
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertname!="SentinelWatchdog"}',
                "eval_time": f"{minute}m",
                "exp_samples": [],
            }
            for minute in range(10, SAMPLES, 10)
        ],
    }
    (folder / "test.yml").write_text(json.dumps({"rule_files": [str(RULES)], "tests": [case]}))
    return run_program(promtool, "test", "rules", str(folder / "test.yml"))


def test_no_rule_fires_for_a_healthy_run_on_two_nodes(promtool, tmp_path):
    step = step_result(loss=1.0)
    checked = check_no_alert(
        promtool, tmp_path, node(HEAD_STATUS, 0, step), node(FOLLOWER_STATUS, 1)
    )

    assert checked.returncode == 0, checked.stdout


def test_a_disconnected_follower_raises_one_alert(promtool, tmp_path):
    disconnected = FOLLOWER_STATUS | {"connected": False}
    checked = check_no_alert(
        promtool, tmp_path, node(HEAD_STATUS, 0, step_result(loss=1.0)), node(disconnected, 1)
    )

    assert checked.returncode != 0
    alerts = set(re.findall(r"Sentinel\w+", checked.stdout)) - {"SentinelWatchdog"}
    assert alerts == {"SentinelHeadUnreachable"}


@pytest.mark.parametrize("cluster", [HEAD_STATUS, FOLLOWER_STATUS], ids=["head", "follower"])
def test_the_metrics_of_each_role_pass_the_linter(promtool, cluster):
    text = generate_latest(node(cluster, 0).registry).decode()
    checked = run_program(promtool, "check", "metrics", text=text)

    assert (checked.returncode, checked.stdout) == (0, "")
