"""What the sinks of experiment trackers share: they record incidents where people look already.

Each delivery is a process of its own, which may need a library that takes seconds to import, or a
file server that hangs. It reads one JSON object and prints why it did not record the incident. It
never touches the training: it writes beside what the training writes, or asks a server.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from typing import Any, ClassVar

from pydantic import SecretStr

from sentinel.model.delivery import ProcessInput, Rejection, Response
from sentinel.model.json_safe import parse_object
from sentinel.model.message import build_message
from sentinel.model.notification import Notification
from sentinel.sinks._case_id import case_id
from sentinel.sinks._plain_text import plain_headline, plain_name, plain_text

WORKER_MODULE = "sentinel.notify.trackers"
REJECTED_STATUS = 65
"""`EX_DATAERR` of sysexits(3)."""

_MAX_TITLE_CHARS = 120
_TIMEOUT_SECONDS = 55.0

_REMEDIES = {
    "no_run": "Nothing was logged to {tracker} in this run yet; a setting of the sink can name its "
    "run.",
    "not_installed": "Install {tracker} where the agent runs: pip install {package}.",
    "offline": "The W&B run is offline, so no server knows it. `wandb sync` uploads it later, and "
    "`sentinel report` shows its incidents.",
    "unauthorized": "{tracker} does not accept the credentials: check them.",
    "not_found": "{tracker} does not know the run, or its directory is not on this machine.",
    "refused_url": "The address of {tracker} is not encrypted: use https://, or set allow_http.",
    "unreachable": "{tracker} does not respond: check address, network and proxy.",
}
"""What to do, by the reason that the worker prints."""


class TrackerSink:
    """The sink of a tracker. Subclasses are dataclasses, whose fields the worker gets."""

    tracker: ClassVar[str]
    """Name of the worker's function, and of the package to install."""
    title: ClassVar[str]
    """Name for people."""
    is_record: ClassVar[bool] = True
    for_programs: ClassVar[bool] = True

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> ProcessInput:
        """The worker's input: the text, what it is about, the runs at trackers and the fields."""
        del receipt
        settings = fields(self)  # type: ignore[arg-type]  # of the subclass
        message = build_message(notification, None)
        incident, cause = notification.incident, notification.diagnosis
        call = {
            "tracker": self.tracker,
            "delivery_id": delivery_id,
            "title": plain_headline(message, _MAX_TITLE_CHARS),
            "text": plain_text(message, delivery_id),
            "subject": plain_name(incident.key.detector if cause is None else cause.cause),
            "severity": message.severity.value,
            "status": message.status,
            "lasts": message.status == "firing" or incident.lasted_until is not None,
            "case": case_id(notification)[:8],
            "step": notification.step,
            "time": notification.time,
            "runs": dict(notification.context.trackers),
            **{each.name: _plain(getattr(self, each.name)) for each in settings},
        }
        arguments = (sys.executable, "-P", "-m", WORKER_MODULE)
        return ProcessInput(arguments, json.dumps(call).encode(), _TIMEOUT_SECONDS)

    def is_accepted(self, response: Response) -> bool:
        """Whether the worker ended with exit status 0."""
        return not response.error and response.status == 0

    def receipt(self, response: Response) -> None:
        """None: what is recorded of a case is found by its identifier."""
        del response

    def rejection(self, response: Response) -> Rejection | None:
        """Only exit status 65 is final; what else goes wrong may be over at the next try."""
        is_final = not response.error and response.status == REJECTED_STATUS
        return Rejection.PERMANENT if is_final else Rejection.TEMPORARY

    def explain(self, response: Response) -> str:
        """What to do about the reason that the worker printed."""
        reason = str(parse_object(response.body).get("reason", ""))
        text = _REMEDIES.get(reason, "")
        return text.format(tracker=self.title, package=self.tracker)


def _plain(setting: Any) -> Any:
    """The value of a field as JSON can hold it; empty for a secret that is not set."""
    if isinstance(setting, SecretStr):
        return setting.get_secret_value()
    return "" if setting is None else setting
