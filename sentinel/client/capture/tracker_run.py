"""Reports to which run of an experiment tracker the training logs.

The agent can then record incidents there, from outside of the training. Only what identifies the
run is read, and nothing that holds a password.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sentinel.client.capture.patcher import Patcher
from sentinel.model.record import Event

MAX_RUNS = 64
"""Runs of a tracker that are distinguished; further ones are not reported."""


@dataclass
class TrackerRunReporter:
    """Reports each run of one tracker when something is first logged to it."""

    patcher: Patcher
    _reported: set[Hashable] = field(default_factory=set)

    def report(self, identity: Hashable, describe: Callable[[], Mapping[str, str | None]]) -> None:
        """Report the run once; `describe` returns its metadata, None for what is not known.

        A version of the tracker that describes its runs in another way is not an error: the values
        that are logged matter more.
        """
        if identity in self._reported or len(self._reported) >= MAX_RUNS:
            return
        self._reported.add(identity)
        with suppress(Exception):
            known = {name: value for name, value in describe().items() if type(value) is str}
            if known:
                self.patcher.recorder.record_event(Event.METADATA, None, known)


def without_password(url: str) -> str:
    """The URL without user name and password.

    >>> without_password("https://ana:secret@mlflow.example:5000/a")
    'https://mlflow.example:5000/a'
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if parts.netloc else url


def absolute_path(path: str) -> str:
    """The path from the root of the file system; a URL stays as it is."""
    return path if "://" in path else os.path.abspath(path)  # noqa: PTH100 - `..` is resolved
