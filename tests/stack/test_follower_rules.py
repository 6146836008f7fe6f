"""All rules over what agents of a run on two nodes really show: nobody is told of a healthy one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import told
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse
from support.results import step_result, make_result

from sentinel.config.plugins import load_classes
from sentinel.generate.sample_exposition import FOLLOWER_STATUS, HEAD_STATUS, SAMPLE_NODE
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.record import Event

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
DETECTORS = {name: kind.severity for name, kind in load_classes("detectors").items()}
HOURS = 2
SAMPLES = HOURS * 60


def node(cluster, rank, *verdicts):
    """What the agent of a node with one of the two ranks shows while the run is on."""
    tally = Counters()
    for count in COUNTER_FAMILIES:
        if count.family != "sentinel_nonfinite_total":
            tally.set(count.family, "0", 0.0)
    shown = Exposition(
        tally,
        DETECTORS,
        run=f"run-{rank}",
        machine=lambda: SAMPLE_NODE,
        cluster_status=lambda: cluster,
    )
    alive = make_result(
        Event.HEARTBEAT, values={"ranks_running": 1.0}, attributes={"state": "running"}
    )
    settings = {"world_size": 2.0, "local_world_size": 1.0}
    start = make_result(Event.START, rank=rank, values=settings)
    for verdict in (start, step_result(rank=rank, step_time=0.5), alive, *verdicts):
        shown.update(verdict)
    return shown


def series(shown) -> Iterator[dict[str, str]]:
    """As `promtool test rules` takes them, the same at every minute; times go with the clock."""
    for family in parse(generate_latest(shown.registry).decode()):
        for sample in family.samples:
            instance = f"{shown.state()['run']}:13130"
            labels = {**sample.labels, "job": "sentinel", "instance": instance}
            named = ",".join(f"{name}={json.dumps(text)}" for name, text in labels.items())
            steady = f"{sample.value:.15g}x{SAMPLES}"
            values = f"0+60x{SAMPLES}" if "timestamp_seconds" in sample.name else steady
            yield {"series": f"{sample.name}{{{named}}}", "values": values}


def fired(promtool, folder, *agents):
    """What promtool says where no alert but the watchdog may fire, in two hours."""
    case = {
        "interval": "1m",
        "input_series": [each for shown in agents for each in series(shown)],
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
    return told(promtool, "test", "rules", str(folder / "test.yml"))


def test_of_a_healthy_run_on_two_nodes_no_rule_fires(promtool, tmp_path):
    whole = step_result(loss=1.0)
    checked = fired(promtool, tmp_path, node(HEAD_STATUS, 0, whole), node(FOLLOWER_STATUS, 1))

    assert checked.returncode == 0, checked.stdout


def test_the_same_rules_see_a_post_whose_link_is_down(promtool, tmp_path):
    away = FOLLOWER_STATUS | {"connected": False}
    checked = fired(promtool, tmp_path, node(HEAD_STATUS, 0, step_result(loss=1.0)), node(away, 1))

    assert checked.returncode != 0
    alerts = set(re.findall(r"Sentinel\w+", checked.stdout)) - {"SentinelWatchdog"}
    assert alerts == {"SentinelHeadUnreachable"}


@pytest.mark.parametrize("cluster", [HEAD_STATUS, FOLLOWER_STATUS], ids=["head", "follower"])
def test_the_linter_has_nothing_to_say_of_either_part(promtool, cluster):
    text = generate_latest(node(cluster, 0).registry).decode()
    checked = told(promtool, "check", "metrics", text=text)

    assert (checked.returncode, checked.stdout) == (0, "")
