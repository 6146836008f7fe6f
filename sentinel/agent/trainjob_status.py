"""Reports the progress of a run as the status of its Kubeflow TrainJob.

Kubeflow Trainer sets the address, the certificate and a token in the environment of a TrainJob's
containers, if its feature gate TrainJobStatus is on, and stores what is sent there in `status`.
Trainers of Transformers report it themselves, and nothing is sent for them.
Source: kubeflow/trainer, pkg/statusserver and proposals/2779-trainjob-progress, read on 2026-11-30.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

from sentinel.signals.catalogue import SIGNALS

log = logging.getLogger(__name__)

URL_VARIABLE = "KUBEFLOW_TRAINER_SERVER_URL"
CERTIFICATE_VARIABLE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN_VARIABLE = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - the name of a variable
INTERVAL_SECONDS = 10.0
_TIMEOUT_SECONDS, _STOP_SECONDS = 5.0, 2.0
_REPORTS_ITSELF = "transformers"
"""Integration whose trainer reports its progress."""


class TrainJobStatus:
    """Sends the status of the run that `state` describes, when it changes, every 10 seconds.

    In a thread, since the server may not answer; an error is logged once. `is_head` is whether this
    agent evaluates the run.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        state: Callable[[], dict[str, Any]],
        is_head: Callable[[], bool],
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._url = environ.get(URL_VARIABLE, "")
        self._certificate = environ.get(CERTIFICATE_VARIABLE)
        self._token_file = Path(environ.get(TOKEN_VARIABLE, ""))
        self._state, self._is_head, self._interval = state, is_head, interval
        self._stopping = Flag()
        self._sent: dict[str, Any] | None = None
        self._has_failed = False
        self._thread = Thread(target=self._run, name="sentinel-trainjob", daemon=True)

    def start(self) -> None:
        """Send in the background, if the run is a TrainJob with such a status."""
        if self._url:
            self._thread.start()

    def stop(self) -> None:
        """Send the last status, and wait for that for at most two seconds."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(self._interval)
            if not self._is_head():
                continue
            status = trainer_status(self._state())
            if status and status != self._sent and self._send(status):
                self._sent = status

    def _send(self, status: dict[str, Any]) -> bool:
        # Most agents send no status.
        import requests  # noqa: PLC0415

        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        try:
            # The token is renewed while the Pod runs.
            token = self._token_file.read_text(encoding="utf-8").strip()
            with requests.Session() as session:
                # No proxy leads to a service of the cluster.
                session.trust_env = False
                session.post(
                    self._url,
                    json={"trainerStatus": status | {"lastUpdatedTime": now}},
                    headers={"Authorization": f"Bearer {token}"},
                    verify=self._certificate or True,
                    timeout=_TIMEOUT_SECONDS,
                    allow_redirects=False,
                ).raise_for_status()
        except (OSError, ValueError) as error:
            if not self._has_failed:
                log.warning("The status of the TrainJob cannot be sent (%s)", type(error).__name__)
            self._has_failed = True
            return False
        self._has_failed = False
        return True


def trainer_status(state: Mapping[str, Any]) -> dict[str, Any]:
    """Progress, remaining time and metrics as a `TrainerStatus`, from the state of the run.

    Empty before the first step, and for a trainer that reports them itself. The values of metrics
    are text.
    """
    step, steps = state["step"], state["steps"]
    if not steps or _REPORTS_ITSELF in state["patches"]:
        return {}
    values = {
        name: signal["value"]
        for name, signal in state["signals"].items()
        if not SIGNALS[name].entity and isfinite(signal["value"])
    }
    metrics = {name: f"{value:.6g}" for name, value in values.items()}
    metrics["open_cases"] = str(len(state["cases"]))
    status: dict[str, Any] = {
        "metrics": [{"name": name, "value": metrics[name]} for name in sorted(metrics)]
    }
    max_steps = state["metadata"].get("max_steps", 0.0)
    if isinstance(max_steps, float) and 1.0 <= max_steps < inf:
        status["progressPercentage"] = int(min(max(step / max_steps, 0.0), 1.0) * 100)
        seconds = (state["last_step_time"] - state["started"]) / steps
        if isfinite(seconds) and seconds >= 0.0:
            status["estimatedRemainingSeconds"] = int(max(max_steps - step, 0.0) * seconds)
    return status
