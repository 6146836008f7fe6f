"""OpenTelemetry: a case as a log record of the event `sentinel.case`, over OTLP/HTTP with JSON.

A collector accepts it at port 4318 without settings. The severity is ERROR of a critical case, WARN
or INFO; INFO at its end.
Responses: 200 with `partialSuccess.rejectedLogRecords` for what was not accepted, 429 and 503 with
`Retry-After`.
Source: opentelemetry.io/docs/specs, "OTLP Specification 1.9" and "Logs Data Model"; read in
November 2026.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import unquote

from pydantic import ConfigDict, SecretStr
from pydantic.dataclasses import dataclass

from sentinel.config.field_types import HeaderValue
from sentinel.config.url_policy import check_url
from sentinel.model.clean_text import clean
from sentinel.model.delivery import HttpRequest, Rejection, Response
from sentinel.model.finding import Severity
from sentinel.model.json_safe import parse_object
from sentinel.model.message import build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.sinks._plain_text import plain_headline, plain_text

EVENT_NAME = "sentinel.case"
_SEVERITIES = {Severity.CRITICAL: (17, "ERROR"), Severity.WARNING: (13, "WARN")}
_INFO = (9, "INFO")
_MAX_ATTRIBUTE_CHARS = 300
_PREFIX = "OTEL_EXPORTER_OTLP_"
_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class Otlp:
    """`url` receives the POST, and `authorization` is its header of that name.

    By default they are those of the variables `OTEL_EXPORTER_OTLP_ENDPOINT` and
    `OTEL_EXPORTER_OTLP_HEADERS`. The files of `OTEL_EXPORTER_OTLP_CERTIFICATE`,
    `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE` and `OTEL_EXPORTER_OTLP_CLIENT_KEY` are those of TLS.
    The variables for logs, as `OTEL_EXPORTER_OTLP_LOGS_ENDPOINT`, precede these. `allow_http`
    permits an unencrypted `url` on another machine.
    """

    url: SecretStr | None = None
    authorization: HeaderValue | None = None
    allow_http: bool = False

    can_update: ClassVar[bool] = False

    def __post_init__(self) -> None:
        url = self._url()
        if not url:
            raise ValueError("needs `url`, or the variable OTEL_EXPORTER_OTLP_ENDPOINT")
        check_url("url", url, allow_http=self.allow_http)
        for name in _FILES:
            if (file := _variable(name)) and not os.access(file, os.R_OK):
                raise ValueError(f"cannot read the file of the variable {_PREFIX}{name}: {file}")
        if _variable("CLIENT_KEY") and not _variable("CLIENT_CERTIFICATE"):
            raise ValueError(f"{_PREFIX}CLIENT_KEY needs {_PREFIX}CLIENT_CERTIFICATE")

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """The request with one log record; its attributes are those of the incident."""
        del receipt
        headers = {**_headers(), "Content-Type": "application/json"}
        if self.authorization:
            headers["Authorization"] = self.authorization.get_secret_value()
        body = json.dumps(_logs(notification, delivery_id), ensure_ascii=False)
        ca_file, *client_files = map(_variable, _FILES)
        return HttpRequest(
            self._url(),
            body.encode("utf-8", "replace"),
            headers,
            allow_http=self.allow_http,
            ca_file=ca_file,
            client_files=tuple(filter(None, client_files)),
        )

    def is_accepted(self, response: Response) -> bool:
        """A status 2xx without a record that was rejected."""
        return 200 <= response.status < 300 and not _has_rejected(response)

    def rejection(self, response: Response) -> Rejection | None:
        """A record that a collector rejects may not be sent again."""
        is_final = 200 <= response.status < 300 and _has_rejected(response)
        return Rejection.PERMANENT if is_final else None

    def receipt(self, response: Response) -> None:
        """None: a log record cannot be changed."""
        del response

    def _url(self) -> str:
        if self.url is not None:
            return self.url.get_secret_value()
        if url := os.environ.get(f"{_PREFIX}LOGS_ENDPOINT"):
            return url
        base = os.environ.get(f"{_PREFIX}ENDPOINT", "")
        return f"{base.rstrip('/')}/v1/logs" if base else ""


def _has_rejected(response: Response) -> bool:
    partial = parse_object(response.body).get("partialSuccess")
    rejected = partial.get("rejectedLogRecords", 0) if isinstance(partial, dict) else 0
    return str(rejected) != "0"


def _variable(name: str) -> str:
    """The variable for logs, or that for all signals; empty if neither is set."""
    return os.environ.get(f"{_PREFIX}LOGS_{name}") or os.environ.get(f"{_PREFIX}{name}", "")


def _headers() -> dict[str, str]:
    """The headers of `name=value,...` with percent-encoded values."""
    pairs = (each.partition("=") for each in _variable("HEADERS").split(","))
    return {
        name.strip(): unquote(value.strip())
        for name, equals, value in pairs
        if equals and name.strip() and unquote(value).isprintable()
    }


def _logs(notification: Notification, delivery_id: str) -> dict[str, Any]:
    message = build_message(notification, time.time())
    text = f"{plain_headline(message)}\n{plain_text(message, delivery_id)}"
    is_over = notification.reason is NotificationReason.RESOLVED
    number, name = _INFO if is_over else _SEVERITIES.get(notification.incident.severity, _INFO)
    record = {
        "timeUnixNano": str(int(notification.time * 1e9)),
        "severityNumber": number,
        "severityText": name,
        "eventName": EVENT_NAME,
        "body": {"stringValue": text},
        "attributes": _pairs(_attributes(notification, delivery_id)),
    }
    resource = {"attributes": _pairs({"service.name": "sentinel"})}
    scope_logs = [{"scope": {"name": "sentinel"}, "logRecords": [record]}]
    return {"resourceLogs": [{"resource": resource, "scopeLogs": scope_logs}]}


def _attributes(notification: Notification, delivery_id: str) -> dict[str, str | int | float]:
    incident, diagnosis = notification.incident, notification.diagnosis
    found: dict[str, str | int | float] = {
        "sentinel.delivery_id": delivery_id,
        "sentinel.run": incident.key.run,
        "sentinel.case": incident.name,
        "sentinel.detector": incident.key.detector,
        "sentinel.signal": incident.signal,
        "sentinel.severity": incident.severity.value,
        "sentinel.reason": notification.reason.value,
        "sentinel.step": notification.step,
        "sentinel.onset_step": incident.onset_step,
    }
    if diagnosis is not None:
        found |= {
            "sentinel.cause": diagnosis.cause,
            "sentinel.cause_confidence": diagnosis.confidence,
        }
    return found


def _pairs(attributes: Mapping[str, str | int | float]) -> list[dict[str, Any]]:
    """Attributes as OTLP writes them; a 64-bit integer is text in JSON."""
    values: dict[str, dict[str, Any]] = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            values[name] = {"stringValue": clean(value, _MAX_ATTRIBUTE_CHARS)}
        elif isinstance(value, int):
            values[name] = {"intValue": str(value)}
        else:
            values[name] = {"doubleValue": value}
    return [{"key": name, "value": value} for name, value in values.items()]
