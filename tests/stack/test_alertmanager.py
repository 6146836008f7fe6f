"""Inhibition in the shipped Alertmanager configuration."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import requests
from programs import find, free_port, running, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

CONFIG = Path(__file__).parents[2] / "deploy" / "alertmanager" / "alertmanager.yml"


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory):
    """URL of an Alertmanager with the shipped configuration."""
    program, folder = find("alertmanager", "prometheus-alertmanager"), tmp_path_factory.mktemp("am")
    url = f"http://127.0.0.1:{free_port()}"
    with running(
        folder / "log",
        program,
        f"--config.file={CONFIG}",
        f"--storage.path={folder}/data",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ):
        wait_for("Alertmanager", lambda: _ready(url))
        yield url


def _ready(url):
    with suppress(requests.ConnectionError, requests.Timeout):
        return requests.get(f"{url}/-/ready", timeout=240).ok
    return False


@pytest.fixture
def inhibited(alertmanager):
    """Returns a function that sends alerts and returns the names of the inhibited ones."""

    def send(*alerts):
        labels = [dict(alert) for alert in alerts]
        body = [{"labels": each} for each in labels]
        requests.post(f"{alertmanager}/api/v2/alerts", json=body, timeout=240).raise_for_status()
        runs = {each["run"] for each in labels}

        def known():
            alerts = requests.get(f"{alertmanager}/api/v2/alerts", timeout=240).json()
            sent = [each for each in alerts if each["labels"]["run"] in runs]
            return sent if len(sent) == len(labels) else None

        found = wait_for("the alerts", known)
        return {each["labels"]["alertname"] for each in found if each["status"]["inhibitedBy"]}

    return send


def alert(name, severity, run, **labels):
    return {"alertname": name, "severity": severity, "run": run} | labels


def case(severity, run, detector, cause="none"):
    labels = {"case": f"{detector}#1", "detector": detector, "cause": cause}
    return alert("SentinelCase", severity, run, **labels)


def test_warnings_of_a_dead_run_are_inhibited(inhibited):
    """Those of another run are not."""
    assert inhibited(
        case("critical", "dead", "run_died"),
        alert("SentinelStepRegression", "warning", "dead", detector="step_regression"),
        alert("SentinelLossPlateau", "warning", "other", detector="loss_plateau"),
    ) == {"SentinelStepRegression"}


def test_warnings_of_a_vanished_run_are_inhibited(inhibited):
    assert inhibited(
        alert("SentinelRunVanished", "critical", "vanished"),
        case("warning", "vanished", "loss_plateau"),
    ) == {"SentinelCase"}


def test_a_critical_alert_is_never_inhibited(inhibited):
    assert not inhibited(
        case("critical", "both", "run_died"),
        case("critical", "both", "kl_blowup"),
    )


def test_the_warning_of_a_critical_detector_is_inhibited(inhibited):
    """That of another detector is not."""
    assert inhibited(
        alert("SentinelKlBlowup", "critical", "worse", detector="kl_blowup"),
        alert("SentinelKlBlowup", "warning", "worse", detector="kl_blowup"),
        alert("SentinelLossPlateau", "warning", "worse", detector="loss_plateau"),
        alert("SentinelSinkFailing", "warning", "worse"),
    ) == {"SentinelKlBlowup"}
