"""The shipped Alertmanager configuration keeps quiet what follows from something else."""

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
    """Its address, with the configuration as it is shipped."""
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
        return requests.get(f"{url}/-/ready", timeout=60).ok
    return False


@pytest.fixture
def quiet(alertmanager):
    """Tell it of these alerts, and learn which of them people do not hear of."""

    def send(*alerts):
        labels = [dict(alert) for alert in alerts]
        told = [{"labels": one} for one in labels]
        requests.post(f"{alertmanager}/api/v2/alerts", json=told, timeout=60).raise_for_status()
        runs = {one["run"] for one in labels}

        def known():
            every = requests.get(f"{alertmanager}/api/v2/alerts", timeout=60).json()
            mine = [one for one in every if one["labels"]["run"] in runs]
            return mine if len(mine) == len(labels) else None

        found = wait_for("the alerts", known)
        return {one["labels"]["alertname"] for one in found if one["status"]["inhibitedBy"]}

    return send


def alert(name, severity, run, detector=""):
    labels = {"alertname": name, "severity": severity, "run": run}
    return labels | ({"detector": detector} if detector else {})


def test_what_follows_from_a_death_is_kept_quiet(quiet):
    """A dead run's warnings are not told; those of another run are."""
    assert quiet(
        alert("SentinelRunDied", "critical", "dead", "run_died"),
        alert("SentinelStepRegression", "warning", "dead", "step_regression"),
        alert("SentinelLossPlateau", "warning", "other", "loss_plateau"),
    ) == {"SentinelStepRegression"}


def test_a_critical_alert_is_never_kept_quiet(quiet):
    """Whatever else of the run fires."""
    assert not quiet(
        alert("SentinelRunDied", "critical", "both", "run_died"),
        alert("SentinelKlBlowup", "critical", "both", "kl_blowup"),
    )


def test_what_has_become_worse_is_told_once(quiet):
    """The warning of the same detector is quiet, that of another is not."""
    assert quiet(
        alert("SentinelKlBlowup", "critical", "worse", "kl_blowup"),
        alert("SentinelKlBlowup", "warning", "worse", "kl_blowup"),
        alert("SentinelLossPlateau", "warning", "worse", "loss_plateau"),
        alert("SentinelSinkFailing", "warning", "worse"),
    ) == {"SentinelKlBlowup"}
