"""Records a notification as an alert of trackio, in its files or at its server."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from sentinel.notify.trackers.outcome import NotRecordedError

LEVELS = {"critical": "error", "warning": "warn", "info": "info"}


def record(call: dict[str, Any]) -> None:
    """Store the alert, once for each delivery. Raises NotRecordedError."""
    runs = call["runs"]
    project = call["project"] or runs.get("trackio_project", "")
    run = call["run"] or runs.get("trackio_run", "")
    if not project or not run:
        raise NotRecordedError("no_run")
    alert = {
        "project": project,
        "run": run,
        "run_id": (runs.get("trackio_run_id") or None) if not call["run"] else None,
        "title": call["title"],
        "text": call["text"],
        "level": LEVELS[call["severity"]] if call["status"] == "firing" else "info",
        "step": call["step"],
        "timestamp": datetime.fromtimestamp(call["time"], UTC).isoformat(),
        "alert_id": call["delivery_id"],
    }
    if server := call["server"] or runs.get("trackio_server", ""):
        _send(alert, server, call["write_token"] or os.environ.get("TRACKIO_WRITE_TOKEN"))
    else:
        _store(alert, is_named=bool(call["project"]))


def _store(alert: dict[str, Any], *, is_named: bool) -> None:
    try:
        from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise NotRecordedError("not_installed") from None
    # Storing would create the project, under a name that may be mistyped. The training creates its
    # own a moment after it logs for the first time.
    if alert["project"] not in SQLiteStorage.get_projects():
        raise NotRecordedError("not_found", is_final=is_named)
    SQLiteStorage.bulk_alert(
        project=alert["project"],
        run=alert["run"],
        titles=[alert["title"]],
        texts=[alert["text"]],
        levels=[alert["level"]],
        steps=[alert["step"]],
        timestamps=[alert["timestamp"]],
        alert_ids=[alert["alert_id"]],
        run_id=alert["run_id"],
    )


def _send(alert: dict[str, Any], server: str, write_token: str | None) -> None:
    try:
        import huggingface_hub  # noqa: PLC0415 - an optional dependency
        from trackio.remote_client import RemoteClient  # noqa: PLC0415
    except ImportError:
        raise NotRecordedError("not_installed") from None
    token = None if "://" in server else huggingface_hub.get_token()
    try:
        client = RemoteClient(server, hf_token=token, write_token=write_token)
        client.predict(api_name="/bulk_alert", alerts=[alert], hf_token=token)
    except Exception as error:
        raise NotRecordedError("unreachable", is_final=False) from error
