"""Inhibition in the shipped Alertmanager configuration."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import requests
from programs import find, free_port, is_ready, running, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

NUMBERS = itertools.count()
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
        wait_for("Alertmanager", lambda: is_ready(url))
        yield url


@pytest.fixture
def inhibited(alertmanager):
    """Returns a function that sends alerts and returns the names of the inhibited ones.

    The last two are of a run of their own, and one inhibits the other. Once that is so,
    Alertmanager has evaluated those before them.
    """

    def send(*alerts):
        own = f"last-{next(NUMBERS)}"
        last = [
            case("critical", own, "run_died"),
            alert("SentinelStepRegression", "warning", own, detector="step_regression"),
        ]
        labels = [*alerts, *last]
        body = [{"labels": each} for each in labels]
        requests.post(f"{alertmanager}/api/v2/alerts", json=body, timeout=240).raise_for_status()
        runs = {each["run"] for each in labels}

        def evaluated():
            alerts = requests.get(f"{alertmanager}/api/v2/alerts", timeout=240).json()
            sent = [each for each in alerts if each["labels"]["run"] in runs]
            inhibited = [each["labels"] for each in sent if each["status"]["inhibitedBy"]]
            is_done = len(sent) == len(labels) and last[1] in inhibited
            return {(each["alertname"], each["run"]) for each in inhibited} if is_done else None

        found = wait_for("the alerts are evaluated", evaluated)
        return {name for name, run in found if run != own}

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
