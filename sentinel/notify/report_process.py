"""Builds the report of a run in another process of low priority, to keep the agent responsive."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from sentinel.model.delivery import ProcessInput
from sentinel.notify.transports import process

BUILD_SECONDS = 60.0
"""Time after which the process is ended."""
_MAX_NAME_CHARS = 80


class ReportError(Exception):
    """The report was not built; the message is for people."""


def build_report(
    run: str, database: Path, *, max_bytes: int | None = None, with_samples: bool = True
) -> bytes:
    """The report of the run in that database as an HTML file. Raises ReportError and OSError."""
    low_priority = ("nice", "-n", "19") if shutil.which("nice") else ()
    with tempfile.TemporaryDirectory(prefix="sentinel-report-") as folder:
        path = Path(folder) / "report.html"
        options = ["--name", run, "-o", str(path)]
        options += [] if with_samples else ["--no-samples"]
        options += [] if max_bytes is None else ["--max-mb", f"{max_bytes / 1e6:g}"]
        command = (sys.executable, "-m", "sentinel", "report", *options, "--", str(database))
        call = ProcessInput((*low_priority, *command), timeout=BUILD_SECONDS)
        response = process.send(call, deadline=BUILD_SECONDS)
        if response.error or response.status:
            raise ReportError(f"The report was not built ({response}).")
        if max_bytes is not None and path.stat().st_size > max_bytes:
            raise ReportError("The report is too large.")
        return path.read_bytes()


def report_file_name(run: str) -> str:
    """The name of the file for the report of that run.

    >>> report_file_name("grpo 7b/lr=1e-6")
    'sentinel-grpo-7b-lr-1e-6.html'
    """
    return f"sentinel-{re.sub(r'[^A-Za-z0-9._-]+', '-', run)[:_MAX_NAME_CHARS]}.html"
