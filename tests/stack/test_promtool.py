"""The shipped files are valid for the programs that use them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from programs import run_program
from prometheus_client import generate_latest
from support.results import incident_result, make_incident, make_result, make_spread, step_result

from sentinel.metrics.exposition import Exposition
from sentinel.metrics.run_state import LIVENESS_HELP
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.finding import Severity
from sentinel.model.record import Event
from sentinel.signals.catalogue import SIGNALS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

DEPLOY = Path(__file__).parents[2] / "deploy"
GRAFANA = DEPLOY.parent / "grafana"


def test_all_metrics_pass_the_linter(promtool):
    counters = Counters()
    for count in COUNTER_FAMILIES:
        counters.add(count.family, "one")
    exposition = Exposition(counters, {"kl_blowup": Severity.CRITICAL})
    values = dict.fromkeys(SIGNALS, 1.0)
    spreads = {name: make_spread(0.5, 2.0) for name in SIGNALS}
    for result in (
        make_result(Event.START, rank=0, attributes={"model": 'quo"ted\n'}),
        step_result(rank=0, step_time=0.5),
        make_result(values=values | {"mine": 1.0}, spread=spreads),
        make_result(Event.SAVE),
        make_result(
            Event.HEARTBEAT, values=dict.fromkeys(LIVENESS_HELP, 2.0) | {"idle_seconds": 1.0}
        ),
        incident_result(of=make_incident()),
    ):
        exposition.update(result)

    checked = run_program(
        promtool, "check", "metrics", text=generate_latest(exposition.registry).decode()
    )

    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_linter_rejects_a_wrong_name(promtool):
    wrong = "# TYPE sentinel_step_ms gauge\nsentinel_step_ms 1\n"

    assert run_program(promtool, "check", "metrics", text=wrong).returncode != 0


def test_the_rules_are_valid(promtool):
    checked = run_program(promtool, "check", "rules", str(DEPLOY / "prometheus/rules.yml"))

    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    "tests",
    [
        "rules_test.yml",
        "rules_detectors_test.yml",
        "rules_day_test.yml",
        "rules_recording_test.yml",
    ],
)
def test_the_tests_of_the_rules_pass(promtool, tests):
    checked = run_program(promtool, "test", "rules", str(DEPLOY / "prometheus" / tests))

    assert checked.returncode == 0, checked.stdout


def test_the_prometheus_configuration_is_valid(promtool):
    checked = run_program(promtool, "check", "config", str(DEPLOY / "prometheus/prometheus.yml"))

    assert checked.returncode == 0, checked.stdout
    assert "rule files found" in checked.stdout


def test_the_alertmanager_configuration_is_valid(amtool):
    checked = run_program(amtool, "check-config", str(DEPLOY / "alertmanager/alertmanager.yml"))

    assert checked.returncode == 0, checked.stdout


def test_watchdog_and_info_alerts_are_not_sent(amtool):
    config = str(DEPLOY / "alertmanager/alertmanager.yml")

    def receiver(**labels: str) -> str:
        pairs = [f"{name}={value}" for name, value in labels.items()]
        route = run_program(amtool, "config", "routes", "test", f"--config.file={config}", *pairs)
        return route.stdout.split()[-1]

    assert receiver(alertname="SentinelWatchdog", severity="none") == "none"
    assert receiver(alertname="SentinelRecordsDropped", severity="info") == "none"
    assert receiver(alertname="SentinelKlBlowup", severity="warning") == "people"
    assert receiver(alertname="SentinelRunVanished", severity="critical") == "people"


def test_compose_mounts_existing_files_read_only():
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    mounts = [v for service in compose["services"].values() for v in service["volumes"]]
    own_mounts = [mount.split(":") for mount in mounts if mount.startswith("..")]

    assert own_mounts
    for source, _, *mode in own_mounts:
        assert (DEPLOY / "compose" / source).exists(), source
        assert mode == ["ro"]


def test_compose_mounts_the_dashboards_where_grafana_reads_them():
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/sentinel.yaml").read_text())
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]

    assert f"../../grafana/dashboards:{folder}:ro" in compose["services"]["grafana"]["volumes"]
