"""The id of a run that has none: the name, and digits that the ranks of one launch share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

from sentinel.transport.process import Process
from sentinel.transport.slurm_job import step_seed


def derive_run_id(name: str | None, environ: Mapping[str, str], *, is_alone: bool) -> str:
    """An id for a run that has none, from the process that the ranks of this node share.

    That is their parent, or this process itself where it `is_alone` on its node. A step of a Slurm
    job has the same id after a requeue.
    """
    return f"{slug(name or Path(sys.argv[0]).stem)}-{launch_digest(environ, is_alone=is_alone)}"


def launch_digest(environ: Mapping[str, str], *, is_alone: bool) -> str:
    """Six digits that the ranks of one launch on this node share, and no other launch has.

    A launch of a Slurm job that was requeued has those of the launch before.
    """
    own = Process.current()
    # torchrun stays the parent of its workers through elastic restarts, while the port may change,
    # also where it starts one worker on each node. One script may start several jobs in sequence;
    # only the port distinguishes them.
    parent = (
        None
        if is_alone and "TORCHELASTIC_RUN_ID" not in environ
        else Process.from_pid(os.getppid())
    )
    shared = parent or own
    if step := step_seed(environ, shared):
        return _digest(step)
    seed = [shared.pid, shared.start_ticks, os.uname().nodename]
    if parent and "TORCHELASTIC_RUN_ID" not in environ:
        seed += [environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")]
    return _digest(seed)


def _digest(seed: Sequence[object]) -> str:
    return f"{crc32(repr(seed).encode()) & 0xFFFFFF:06x}"


def slug(text: str) -> str:
    """A name as a part of an id.

    >>> slug("Llama 3 / GRPO!"), slug("...")
    ('llama-3-grpo', 'run')
    """
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")[:80] or "run"
