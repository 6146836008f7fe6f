"""Sends the report of the run to receivers that take files, once a case is over.

The notification of its end comes first and waits for nothing: the report follows in a thread of its
own. It is built by a process of low priority within a time and a size, and sent once: a failure is
counted and not tried again. It contains no text that the model generated.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from sentinel.model.counters import Counters
from sentinel.model.delivery import AttachingSink, ReportFile, Response, Sink
from sentinel.model.notification import Notification
from sentinel.notify.report_process import report_file_name
from sentinel.notify.transports.send import send

log = logging.getLogger(__name__)

REPORTS_METRIC = "sentinel_sink_reports_total"
REPORT_OUTCOMES = ("sent", "failed", "dropped")

MAX_REPORT_BYTES = 7_000_000
"""Size of an attached report. Encoded for e-mail it is below 10 MB, a common limit."""
MAX_PENDING = 8
"""Reports that wait; further ones are dropped."""
_UPLOAD_SECONDS = 60.0
_MAX_DELIVERIES = 5

ReportBuilder = Callable[[], bytes]
"""Builds the report of the run; may raise anything."""


class ReportSender:
    """Sends reports to those of `sinks` whose setting `attach_report` is on, while it runs."""

    def __init__(
        self, run: str, sinks: Mapping[str, Sink], counters: Counters, build: ReportBuilder
    ) -> None:
        self._sinks = {
            name: sink
            for name, sink in sinks.items()
            if isinstance(sink, AttachingSink) and sink.attach_report
        }
        self._file_name = report_file_name(run)
        self._counters, self._build = counters, build
        self._pending: queue.Queue[tuple[str, Notification, str | None] | None]
        self._pending = queue.Queue(MAX_PENDING)
        self._thread: threading.Thread | None = None
        for name in self._sinks:
            for outcome in REPORT_OUTCOMES:
                counters.add(REPORTS_METRIC, f"{name}:{outcome}", 0.0)

    def start(self) -> None:
        """Send in the background. Does nothing if no sink wants reports."""
        if self._sinks and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="report-sender", daemon=True)
            self._thread.start()

    def enqueue(self, sink: str, notification: Notification, receipt: str | None) -> None:
        """Send the report to `sink`, which accepted the end of a case. Never blocks."""
        if sink not in self._sinks:
            return
        try:
            self._pending.put_nowait((sink, notification, receipt))
        except queue.Full:
            self._count(sink, "dropped")

    def stop(self, timeout: float) -> None:
        """Send what is pending within `timeout` seconds; the rest is dropped."""
        if self._thread is None:
            return
        try:
            self._pending.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        built_for, content = "", b""
        while (entry := self._pending.get()) is not None:
            sink, notification, receipt = entry
            try:
                # Several sinks get the report of the same end.
                if built_for != notification.name:
                    built_for, content = notification.name, self._build()
                is_sent = self._send(sink, notification, receipt, content)
            except Exception as error:
                built_for = ""
                # Only the class: a message can contain a secret.
                log.warning("No report for sink %s: %s", sink, type(error).__name__)
                is_sent = False
            self._count(sink, "sent" if is_sent else "failed")

    def _send(
        self, name: str, notification: Notification, receipt: str | None, content: bytes
    ) -> bool:
        """Make the deliveries of the sink, each once; whether the report arrived."""
        report = ReportFile(self._file_name, content)
        steps = self._sinks[name].attach(notification, receipt, report)
        response: Response | None = None
        for _ in range(_MAX_DELIVERIES):
            try:
                delivery = next(steps) if response is None else steps.send(response)
            except StopIteration as end:
                return bool(end.value)
            response = send(delivery, deadline=_UPLOAD_SECONDS)
            log.info("Report for sink %s: %s", name, response)
        return False

    def _count(self, sink: str, outcome: str) -> None:
        self._counters.add(REPORTS_METRIC, f"{sink}:{outcome}")
