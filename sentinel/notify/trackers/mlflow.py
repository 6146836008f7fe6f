"""Records a notification at MLflow: tags of the run, over the REST API or through the library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from sentinel.client.capture.tracker_run import without_password
from sentinel.notify.trackers.outcome import NotRecordedError
from sentinel.notify.trackers.rest import basic_login, request_json

CASE_TAG_PREFIX = "sentinel.case."
HEALTH_TAG = "sentinel.health"
MAX_VALUE_CHARS = 2000
"""The limit of MLflow is 5,000 characters, of some databases 500 bytes less."""

SEVERITIES = ("critical", "warning", "info")


class Store(Protocol):
    """Where MLflow keeps the tags of a run."""

    def tags(self, run_id: str) -> dict[str, str]:
        """The tags of the run. Raises NotRecordedError."""
        ...

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Add or replace these tags. Raises NotRecordedError."""
        ...


def record(call: dict[str, Any]) -> None:
    """Set the tag of the case, and that of the health of the run. Raises NotRecordedError."""
    run_id = call["run_id"] or call["runs"].get("mlflow_run", "")
    uri = call["tracking_uri"] or call["runs"].get("mlflow_uri", "")
    if not run_id or not uri:
        raise NotRecordedError("no_run")
    uri = _with_password(uri)
    is_server = uri.startswith(("http://", "https://"))
    store: Store = _Server(uri.rstrip("/"), call) if is_server else _Library(uri)
    # What lasted until the end of the run is what people should see in the table of runs.
    state = call["severity"] if call["lasts"] else call["status"]
    text = f"{state}: {call['title']}\n{call['text']}"[:MAX_VALUE_CHARS]
    tags = {**store.tags(run_id), f"{CASE_TAG_PREFIX}{call['case']}": text}
    new = {f"{CASE_TAG_PREFIX}{call['case']}": text, HEALTH_TAG: health(tags)}
    store.set_tags(run_id, new)


def health(tags: Mapping[str, str]) -> str:
    """The highest severity of the cases that are not resolved, else "ok".

    >>> health({"sentinel.case.1": "resolved: loss spike", "sentinel.case.2": "warning: KL"})
    'warning'
    """
    states = {
        value.partition(":")[0] for name, value in tags.items() if name.startswith(CASE_TAG_PREFIX)
    }
    return next((severity for severity in SEVERITIES if severity in states), "ok")


class _Server:
    def __init__(self, url: str, call: dict[str, Any]) -> None:
        self.url, self.allow_http = f"{url}/api/2.0/mlflow/runs", call["allow_http"]
        token = call["token"] or os.environ.get("MLFLOW_TRACKING_TOKEN", "")
        username = call["username"] or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
        password = call["password"] or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
        self.headers: dict[str, str] = basic_login(username, password) if username else {}
        if token and not username:
            self.headers = {"Authorization": f"Bearer {token}"}

    def tags(self, run_id: str) -> dict[str, str]:
        answer = self._request(f"get?run_id={quote(run_id, safe='')}", None)
        stored = ((answer.get("run") or {}).get("data") or {}).get("tags") or []
        return {str(tag.get("key")): str(tag.get("value")) for tag in stored}

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        stored = [{"key": key, "value": value} for key, value in tags.items()]
        self._request("log-batch", {"run_id": run_id, "tags": stored})

    def _request(self, method: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
        return request_json(
            f"{self.url}/{method}", content, self.headers, allow_http=self.allow_http
        )


class _Library:
    """Files and databases on this machine, and whatever else the library reaches."""

    def __init__(self, uri: str) -> None:
        try:
            from mlflow.entities import RunTag  # noqa: PLC0415 - an optional dependency
            from mlflow.exceptions import MlflowException  # noqa: PLC0415
            from mlflow.tracking import MlflowClient  # noqa: PLC0415
        except ImportError:
            raise NotRecordedError("not_installed") from None
        self.make_tag, self.error_class = RunTag, MlflowException
        try:
            self.client = MlflowClient(tracking_uri=uri)
        except (MlflowException, ImportError) as error:
            raise NotRecordedError("not_found") from error

    def tags(self, run_id: str) -> dict[str, str]:
        try:
            return dict(self.client.get_run(run_id).data.tags)
        except self.error_class as error:
            raise _reason(error) from error

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        try:
            self.client.log_batch(run_id, tags=[self.make_tag(*tag) for tag in tags.items()])
        except self.error_class as error:
            raise _reason(error) from error


def _reason(error: Any) -> NotRecordedError:
    is_unknown = getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST"
    return NotRecordedError("not_found" if is_unknown else "unreachable", is_final=is_unknown)


def _with_password(uri: str) -> str:
    """The address as the environment gives it: what the training reports has no password."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    is_server = uri.startswith(("http://", "https://"))
    return given if not is_server and given and without_password(given) == uri else uri
