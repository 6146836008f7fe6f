"""Ranks of one node as forks, with the environment of torchrun's in a fraction of its time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from programs import free_port
from support.fork_server import ForkedProcess, ForkServer


def start_ranks(
    server: ForkServer,
    command: Sequence[Any],
    ranks: int = 2,
    *,
    cwd: Path,
    output: IO[Any],
    **environment: str,
) -> list[ForkedProcess]:
    """Start `command`, a script and its arguments, once for each rank; `environment` is added."""
    port = free_port()
    return [
        server.start(
            command,
            env={**os.environ, **_torchrun_environment(rank, ranks, port), **environment},
            cwd=cwd,
            output=output,
        )
        for rank in range(ranks)
    ]


def _torchrun_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets for a rank of one node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
