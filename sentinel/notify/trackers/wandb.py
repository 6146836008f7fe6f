"""Records a notification at W&B through its GraphQL API: an alert, and a tag of the run."""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from sentinel.notify.trackers.outcome import NotRecordedError
from sentinel.notify.trackers.rest import basic_login, request_json

DEFAULT_URL = "https://api.wandb.ai"
MAX_TITLE_CHARS, MAX_TAG_CHARS = 64, 64
"""Limits of W&B."""

LEVELS = {"critical": "ERROR", "warning": "WARN", "info": "INFO"}

ALERT_MUTATION = """
mutation NotifyScriptableRunAlert($entityName: String!, $projectName: String!, $runName: String!,
    $title: String!, $text: String!, $severity: AlertSeverity = INFO, $waitDuration: Duration) {
  notifyScriptableRunAlert(input: {entityName: $entityName, projectName: $projectName,
      runName: $runName, title: $title, text: $text, severity: $severity,
      waitDuration: $waitDuration}) {
    success
  }
}"""
RUN_QUERY = """
query Run($entityName: String!, $projectName: String!, $runName: String!) {
  project(name: $projectName, entityName: $entityName) {
    run(name: $runName) {
      id
      tags
    }
  }
}"""
TAG_MUTATION = """
mutation UpsertBucket($id: String!, $tags: [String!]) {
  upsertBucket(input: {id: $id, tags: $tags}) {
    bucket {
      id
    }
  }
}"""


def record(call: dict[str, Any]) -> None:
    """Send the alert; add the tag when the case opens. Raises NotRecordedError."""
    runs = call["runs"]
    path = call["run"] or runs.get("wandb_run", "")
    if not call["run"] and runs.get("wandb_offline"):
        raise NotRecordedError("offline")
    if path.count("/") != 2:
        raise NotRecordedError("no_run")
    base_url = call["base_url"] or os.environ.get("WANDB_BASE_URL", "")
    if not call["api_key"]:
        # What the training reports does not decide where a secret setting is sent.
        base_url = call["base_url"] or runs.get("wandb_url") or base_url
    base_url = (base_url or DEFAULT_URL).rstrip("/")
    key = call["api_key"] or os.environ.get("WANDB_API_KEY") or _netrc_key(base_url)
    if not key:
        raise NotRecordedError("unauthorized")

    def execute(query: str, **variables: Any) -> dict[str, Any]:
        content = {"query": query, "variables": variables}
        answer = request_json(
            f"{base_url}/graphql",
            content,
            basic_login("api", key),
            allow_http=call["allow_http"],
        )
        data = answer.get("data")
        if answer.get("errors") or not isinstance(data, dict):
            raise NotRecordedError("not_found" if answer.get("errors") else "failed")
        return data

    entity, project, name = path.split("/")
    place = {"entityName": entity, "projectName": project, "runName": name}
    found = (execute(RUN_QUERY, **place).get("project") or {}).get("run")
    if not found:
        raise NotRecordedError("not_found")
    alert = execute(
        ALERT_MUTATION,
        **place,
        title=call["title"][:MAX_TITLE_CHARS],
        text=f"{call['title']}\n{call['text']}",
        severity=LEVELS[call["severity"]] if call["status"] == "firing" else "INFO",
        waitDuration=0,
    )
    if not (alert.get("notifyScriptableRunAlert") or {}).get("success"):
        raise NotRecordedError("failed", is_final=False)
    if call["tags"] and call["status"] == "firing":
        with suppress(NotRecordedError):
            _add_tag(execute, found, f"sentinel:{call['subject']}"[:MAX_TAG_CHARS])


def _add_tag(execute: Callable[..., dict[str, Any]], found: dict[str, Any], tag: str) -> None:
    tags = found.get("tags") or []
    if tag not in tags:
        execute(TAG_MUTATION, id=found["id"], tags=[*tags, tag])


def _netrc_key(base_url: str) -> str:
    """The key that `wandb login` stored."""
    with suppress(OSError, netrc.NetrcParseError):
        login = netrc.netrc().authenticators(urlsplit(base_url).hostname or "")
        return (login[2] or "") if login else ""
    return ""
