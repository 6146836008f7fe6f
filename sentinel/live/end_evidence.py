"""What the node knows about the end of a rank's process that wrote no STOP."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.live.memory_cgroup import MemoryCgroup
from sentinel.live.process_watch import ProcessEnd
from sentinel.model.quantity_text import format_bytes
from sentinel.model.redaction import redact_line
from sentinel.transport.process import Process, read_environ
from sentinel.transport.slurm_job import SlurmJob

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable of the ranks of torchrun: where `torch.distributed.elastic` writes the
exception of a function that it records."""
MAX_ERROR_FILE_BYTES = 1 << 20
OOM_SAMPLE_SECONDS = 30.0
"""Interval at which kills of the group are counted. A kill ends a process within seconds, so an
earlier one was of another process, such as a worker of a data loader."""

_ERROR_PATTERN = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?", re.DOTALL)
_FRAME_PATTERN = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass
class EndEvidence:
    """Where to look after the end of a process, found while it runs.

    `oom_kills_before` is the count of the out-of-memory killer one or two intervals ago, `job` the
    Slurm job of the process.
    """

    memory: MemoryCgroup = field(default_factory=lambda: MemoryCgroup(()))
    error_file: Path | None = None
    oom_kills_before: int = 0
    _oom_kills: int = 0
    _sampled_at: float = 0.0
    job: SlurmJob | None = None

    @staticmethod
    def find(process: Process) -> EndEvidence:
        """For a process that runs; empty for one that is gone."""
        memory = MemoryCgroup.of_process(process.pid)
        environ = read_environ(process.pid)
        path = environ.get(ERROR_FILE_VARIABLE, "")
        job, kills = SlurmJob.of_environment(environ), memory.oom_kills()
        return EndEvidence(memory, Path(path) if path else None, kills, kills, job=job)

    def update(self, now: float) -> None:
        """Count the kills again if that is due, while the process runs."""
        if 0.0 <= now - self._sampled_at < OOM_SAMPLE_SECONDS:
            return
        self.oom_kills_before, self._oom_kills = self._oom_kills, self.memory.oom_kills()
        self._sampled_at = now

    def attributes(self, end: ProcessEnd) -> Mapping[str, str]:
        """Attributes of that end.

        `signal` or `code`; after the out-of-memory killer `oom_kill`, with `memory_limit` if there
        is one; `outcome`, `exception`, `message` and `location` from torchrun's error file.
        """
        known = dict(end.attributes)
        if known.get("signal", "SIGKILL") == "SIGKILL" and "code" not in known:
            known |= self._oom_attributes()
        if known.get("code", "1") == "1" and "signal" not in known:
            known |= self._recorded_exception()
        return known

    def _oom_attributes(self) -> dict[str, str]:
        if self.memory.oom_kills() <= self.oom_kills_before:
            return {}
        limit = self.memory.limit_bytes()
        size = {} if limit is None else {"memory_limit": format_bytes(limit, digits=3)}
        return {"signal": "SIGKILL", "oom_kill": "yes", **size}

    def _recorded_exception(self) -> dict[str, str]:
        if self.error_file is None:
            return {}
        try:
            with self.error_file.open("rb") as file:
                error = json.loads(file.read(MAX_ERROR_FILE_BYTES))["message"]
            text = str(error["message"] if isinstance(error, dict) else error)
            trace = str(error["extraInfo"]["py_callstack"]) if isinstance(error, dict) else ""
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        match = _ERROR_PATTERN.fullmatch(text)
        name, message = match.groups() if match else ("", text)
        frames = [each for each in _FRAME_PATTERN.findall(trace) if "-packages" not in each[0]]
        known = {
            "exception": redact_line(name),
            "message": redact_line(message or ""),
            "location": f"{Path(frames[-1][0]).name}:{frames[-1][1]} in {frames[-1][2]}"
            if frames
            else "",
        }
        return {"outcome": "exception", **{key: value for key, value in known.items() if value}}
