"""Estimates onsets in a process of its own, which ends with the estimates.

In the agent, numpy and ruptures would occupy memory until the end of the run.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sentinel.model.incident import Onset
from sentinel.pipeline.onset_request import OnsetRequest

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 120.0
"""A busy node takes long to import ruptures; estimates later than this are given up."""
_SOURCE_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = "from sentinel.pipeline.onset_process import main; main()"


class OnsetProcessError(RuntimeError):
    """The process failed or took too long: there is no estimate."""


class OnsetProcess:
    """Runs one process at a time; see `estimate`. Not for several threads."""

    def __init__(self, deadline: float = DEADLINE_SECONDS) -> None:
        self.deadline = deadline
        self._child: subprocess.Popen[str] | None = None

    def estimate(self, requests: Sequence[OnsetRequest]) -> list[Onset | None]:
        """The onset for each request; None if there is no clear change, or the estimate fails.

        Raises OnsetProcessError, OSError.
        """
        # A new program, not a fork of this one, which has threads.
        self._child = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-P", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            text=True,
        )
        with self._child as child:
            try:
                output, errors = child.communicate(
                    json.dumps([[each.points, each.suspected_step] for each in requests]),
                    self.deadline,
                )
            except subprocess.TimeoutExpired:
                child.kill()
                message = f"The process took longer than {self.deadline:g} s."
                raise OnsetProcessError(message) from None
        if child.returncode:
            reason = (errors.strip().splitlines() or ["no message"])[-1]
            raise OnsetProcessError(f"The process exited with {child.returncode}: {reason}")
        return [
            _to_onset(request, answer)
            for request, answer in zip(requests, json.loads(output), strict=True)
        ]

    def kill(self) -> None:
        """End the process, if one runs; from any thread."""
        child = self._child
        if child is not None and child.returncode is None:
            child.kill()


def _to_onset(request: OnsetRequest, answer: list[int] | str | None) -> Onset | None:
    """The onset in an answer of `main`; an error is logged."""
    if isinstance(answer, str):
        log.error("The onset of %s cannot be estimated: %s", request.incident, answer)
        return None
    return None if answer is None else Onset(*answer)


def child_environment() -> dict[str, str]:
    """The environment of a process that needs no more than one thread, and finds this package."""
    paths = (str(_SOURCE_ROOT), os.environ.get("PYTHONPATH"))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    python_path = os.pathsep.join(path for path in paths if path)
    return {**os.environ, **threads, "PYTHONPATH": python_path}


def main() -> None:
    """Read points and suspected steps from standard input; print the steps of each onset.

    In place of the steps, there is None without a clear change, and the message of an error.
    """
    from sentinel.pipeline.onset import estimate_onset  # noqa: PLC0415 - this process only

    answers: list[tuple[int, int, int] | str | None] = []
    for points, suspected_step in json.load(sys.stdin):
        try:
            onset = estimate_onset([(step, value) for step, value in points], suspected_step)
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
        else:
            steps = None if onset is None else (onset.step, onset.earliest, onset.latest)
            answers.append(steps)
    sys.stdout.write(json.dumps(answers))
