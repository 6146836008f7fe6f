"""Trackio: an alert of the run, shown on its page and by `trackio list alerts`.

The library stores it in its files on this machine, or sends it to the Space or the server that the
training logs to. It stores an alert once, however often that is tried. The training need not take
part: `trackio.alert` of the training does the same.
Source: github.com/gradio-app/trackio, version 0.43, read in November 2026.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict, SecretStr
from pydantic.dataclasses import dataclass

from sentinel.sinks._tracker import TrackerSink


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Trackio(TrackerSink):
    """`project` and `run` are by default those that the training logs to.

    `server` is the id of a Space or the URL of a server, `write_token` the token of a server, by
    default that of TRACKIO_WRITE_TOKEN.
    """

    project: str = ""
    run: str = ""
    server: str = ""
    write_token: SecretStr | None = None

    def __post_init__(self) -> None:
        if self.write_token and not self.server:
            # What the training reports does not decide where a secret is sent.
            raise ValueError("`write_token` needs `server`")

    can_update: ClassVar[bool] = False
    tracker: ClassVar[str] = "trackio"
    title: ClassVar[str] = "trackio"
