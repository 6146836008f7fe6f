"""TensorBoard: a text for each notification, at its step, beside the curves of the run.

The texts are in an event file of their own, in the subdirectory `sentinel` of the run's directory,
which TensorBoard shows as a run of that name. A second file in the same directory would end the
curves: TensorBoard reads the files of a directory one after the other and does not return to one.
Source: tensorboard 2.21, `directory_watcher.py`, and github.com/tensorflow/tensorboard
"README: multiple event files", read in November 2026.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict, field_validator
from pydantic.dataclasses import dataclass

from sentinel.sinks._tracker import TrackerSink


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Tensorboard(TrackerSink):
    """`directory` is an absolute path, by default the one that the training writes to."""

    directory: str = ""

    can_update: ClassVar[bool] = False
    tracker: ClassVar[str] = "tensorboard"
    title: ClassVar[str] = "TensorBoard"

    @field_validator("directory")
    @classmethod
    def _check_directory(cls, directory: str) -> str:
        if directory and (not directory.startswith("/") or "\0" in directory):
            raise ValueError("must be an absolute path")
        return directory
