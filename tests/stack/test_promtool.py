"""What we ship is taken by the programs it is for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from programs import told
from prometheus_client import generate_latest
from scenario import openmetrics
from support.results import make_incident, step_result, incident_result, make_result, make_spread

from sentinel.metrics.exposition import Exposition
from sentinel.metrics.run_state import LIVENESS_HELP
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.finding import Severity
from sentinel.model.record import Event
from sentinel.signals.catalogue import SIGNALS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

DEPLOY = Path(__file__).parents[2] / "deploy"
GRAFANA = DEPLOY.parent / "grafana"


def test_the_metrics_pass_the_linter_without_a_word(promtool):
    """Every family there can be: names, units, types and helps are as Prometheus wants them."""
    tally = Counters()
    for count in COUNTER_FAMILIES:
        tally.add(count.family, "one")
    shown = Exposition(tally, {"kl_blowup": Severity.CRITICAL})
    values = dict.fromkeys(SIGNALS, 1.0)
    spreads = {name: make_spread(0.5, 2.0) for name in SIGNALS}
    for verdict in (
        make_result(Event.START, rank=0, attributes={"model": 'quo"ted\n'}),
        step_result(rank=0, step_time=0.5),
        make_result(values=values | {"mine": 1.0}, spread=spreads),
        make_result(Event.SAVE),
        make_result(
            Event.HEARTBEAT, values=dict.fromkeys(LIVENESS_HELP, 2.0) | {"idle_seconds": 1.0}
        ),
        incident_result(of=make_incident()),
    ):
        shown.update(verdict)

    checked = told(promtool, "check", "metrics", text=generate_latest(shown.registry).decode())

    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_linter_would_have_spoken(promtool):
    """The same check finds fault with a name that is wrong."""
    wrong = "# TYPE sentinel_step_ms gauge\nsentinel_step_ms 1\n"

    assert told(promtool, "check", "metrics", text=wrong).returncode != 0


def test_the_rules_are_valid(promtool):
    """Prometheus parses every rule."""
    checked = told(promtool, "check", "rules", str(DEPLOY / "prometheus/rules.yml"))

    assert checked.returncode == 0, checked.stdout


def test_the_rules_do_what_they_say(promtool):
    """The rules' own unit tests: killed, finished, restarted, stalled and sick runs."""
    checked = told(promtool, "test", "rules", str(DEPLOY / "prometheus/rules_test.yml"))

    assert checked.returncode == 0, checked.stdout


def test_the_prometheus_configuration_is_valid(promtool):
    """With the rules it names."""
    checked = told(promtool, "check", "config", str(DEPLOY / "prometheus/prometheus.yml"))

    assert checked.returncode == 0, checked.stdout
    assert "rule files found" in checked.stdout


def test_the_alertmanager_configuration_is_valid(amtool):
    """Routes, inhibitions and receivers."""
    checked = told(amtool, "check-config", str(DEPLOY / "alertmanager/alertmanager.yml"))

    assert checked.returncode == 0, checked.stdout


def test_nothing_that_is_no_news_reaches_people(amtool):
    """The watchdog and what is only for the dashboard go nowhere; all else goes to people."""
    config = str(DEPLOY / "alertmanager/alertmanager.yml")

    def receiver(**labels: str) -> str:
        pairs = [f"{name}={value}" for name, value in labels.items()]
        route = told(amtool, "config", "routes", "test", f"--config.file={config}", *pairs)
        return route.stdout.split()[-1]

    assert receiver(alertname="SentinelWatchdog", severity="none") == "nobody"
    assert receiver(alertname="SentinelRecordsDropped", severity="info") == "nobody"
    assert receiver(alertname="SentinelKlBlowup", severity="warning") == "people"
    assert receiver(alertname="SentinelRunVanished", severity="critical") == "people"


def test_compose_mounts_only_what_is_there():
    """Every file of ours that a container reads exists, and is read-only."""
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    mounts = [v for service in compose["services"].values() for v in service["volumes"]]
    ours = [mount.split(":") for mount in mounts if mount.startswith("..")]

    assert ours
    for source, _, *mode in ours:
        assert (DEPLOY / "compose" / source).exists(), source
        assert mode == ["ro"]


def test_grafana_is_given_our_dashboards_and_their_data():
    """The provider's folder is where compose mounts the dashboards."""
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/sentinel.yaml").read_text())
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]

    assert f"../../grafana/dashboards:{folder}:ro" in compose["services"]["grafana"]["volumes"]


def test_the_scenario_is_openmetrics(promtool, tmp_path):
    """The hour that the dashboards are tried on is one that Prometheus can read."""
    (tmp_path / "hour.om").write_text(openmetrics())
    read = told(
        promtool,
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        f"{tmp_path}/hour.om",
        f"{tmp_path}/d",
    )

    assert read.returncode == 0, read.stdout
