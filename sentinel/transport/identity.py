"""Identity: which run this process is part of, and which rank of it.

Launchers tell a rank its place in the environment. The run's id is the one thing they do not
agree on, so the ranks of one node derive it from what they share: their parent process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from sentinel.transport import paths
from sentinel.transport.process import Process
from sentinel.transport.rendezvous import NO_RENDEZVOUS, Rendezvous, detect_rendezvous
from sentinel.transport.run_lock import is_lock_held

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_WORLD_SIZE_VARIABLES = (
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "RAY_LOCAL_WORLD_SIZE",
    "PET_NPROC_PER_NODE",
)
_NODE_COUNT_VARIABLES = ("PET_NNODES", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "NNODES")


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank of one attempt of one run, and where it runs."""

    run: str
    attempt: int = 0
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    host: str = ""
    rendezvous: Rendezvous = NO_RENDEZVOUS


def identify(name: str | None = None, environ: Mapping[str, str] | None = None) -> Identity:
    """Who the calling process is, from what its launcher left in the environment.

    `name` is the run's name as a person gave it; without one the script's name serves. An
    explicit `SENTINEL_RUN_ID` is the id itself. Raises ValueError if that is not a usable id.
    """
    environ = os.environ if environ is None else environ
    # Tasks of a Slurm allocation that no launcher numbered are one process: `salloc` sets
    # SLURM_NTASKS for the shell as well.
    rank = _int_variable(environ, _RANK_VARIABLES)
    world = (
        max(1, _int_variable(environ, _WORLD_SIZE_VARIABLES, 1))
        if _has_int_variable(environ, _RANK_VARIABLES)
        else 1
    )
    local_world = min(
        world,
        max(
            1,
            _int_variable(
                environ, _LOCAL_WORLD_SIZE_VARIABLES, _infer_local_world_size(environ, world)
            ),
        ),
    )
    place = detect_rendezvous(environ)
    run = _explicit_run_id(environ, place, rank) or derive_run_id(
        name, environ, is_alone=local_world == 1
    )
    start = _int_variable(environ, ("TORCHELASTIC_RESTART_COUNT",))
    return Identity(
        run=paths.validate_run_id(run),
        attempt=first_free_attempt(
            run, rank, start, local_world_size=local_world, world_size=world
        ),
        rank=rank,
        local_rank=_int_variable(
            environ, _LOCAL_RANK_VARIABLES, rank if local_world == world else 0
        ),
        world_size=world,
        local_world_size=local_world,
        host=os.uname().nodename,
        rendezvous=place if local_world < world else NO_RENDEZVOUS,
    )


def _infer_local_world_size(environ: Mapping[str, str], world_size: int) -> int:
    """Ranks on this node, where only those of the nodes are told, or how many nodes there are.

    >>> _shared_out({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2"}, 9)
    1
    >>> _shared_out({"PET_NNODES": "2"}, 8), _shared_out({}, 8)
    (4, 8)
    """
    told = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", told)
    tasks = [int(ranks) for ranks, nodes in parts for _ in range(min(int(nodes or 1), world_size))]
    node = _int_variable(environ, ("SLURM_NODEID",))
    if node < len(tasks) and sum(tasks) == world_size:
        return tasks[node]
    return -(-world_size // max(1, _int_variable(environ, _NODE_COUNT_VARIABLES, 1)))


def _explicit_run_id(environ: Mapping[str, str], rendezvous: Rendezvous, rank: int) -> str:
    """The id a person gave, with the node's name behind it on all nodes but the first.

    Nodes often share a home directory, and each keeps a run of its own there. A node that had the
    id itself keeps it, wherever rank 0 is after a restart; while its agent lives, no other takes
    it. Whoever was started by `sentinel run` was given an id by the launcher of its node.
    """
    given = environ.get("SENTINEL_RUN_ID", "")
    if not given or "SENTINEL_LAUNCHED" in environ:
        return given
    here = os.uname().nodename
    owner = paths.read_owner_host(given)
    if owner == here:
        return given
    taken = bool(owner) and is_lock_held(paths.run_dir(given) / "agent.lock")
    return f"{given}.{_slug(here)}" if taken or (rendezvous.node_rank > 0 and rank > 0) else given


def first_free_attempt(
    run: str, rank: int, start: int = 0, *, local_world_size: int = 1, world_size: int = 1
) -> int:
    """The attempt from `start` on that this rank is part of: one in which it left no trace.

    One that had all its `sharers` on this node, or was of a world of another size, is over once
    they are gone: an elastic restart may give this node other ranks, or more of them.
    """
    rings = paths.list_rings(run)
    taken = {path.name for path in rings} | paths.removed_ring_names(run)
    attempt = max([start, *map(paths.attempt_from_ring_name, taken)])
    there = [name for name in taken if paths.attempt_from_ring_name(name) == attempt]
    if paths.ring_name(attempt, rank) in there:
        return attempt + 1
    found = [_ring_writer(path) for path in rings if path.name in there]
    done = len(there) >= local_world_size or any(size != world_size for _, size in found)
    gone = not any(process.is_alive() for process, _ in found)
    return attempt + 1 if there and done and gone else attempt


def _ring_writer(ring: Path) -> tuple[Process, int]:
    """The process that writes to a ring, and the size of its world."""
    from sentinel.transport.ring_layout import HEADER_SIZE, parse_header  # noqa: PLC0415 - it needs `Identity`

    try:
        with ring.open("rb") as file:
            header = parse_header(file.read(HEADER_SIZE))
    except (OSError, ValueError):
        # Of one that is just being made nothing can be said but that somebody lives.
        return Process.current(), 0
    return header.process, header.identity.world_size


def derive_run_id(name: str | None, environ: Mapping[str, str], *, is_alone: bool) -> str:
    """An id for a run that has none: that of our own process where it is `alone` on its node."""
    me = Process.current()
    # The parent of torchrun's workers stays through elastic restarts, while the port may change;
    # one script may start several jobs one after the other, told apart by the port alone.
    # They have it for a parent also where each is the only one of its node.
    parent = (
        None
        if is_alone and "TORCHELASTIC_RUN_ID" not in environ
        else Process.from_pid(os.getppid())
    )
    shared = parent or me
    seed = [shared.pid, shared.start_ticks, os.uname().nodename]
    if parent and "TORCHELASTIC_RUN_ID" not in environ:
        seed += [environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")]
    digest = crc32(repr(seed).encode()) & 0xFFFFFF
    return f"{_slug(name or Path(sys.argv[0]).stem)}-{digest:06x}"


def _slug(text: str) -> str:
    """A name as a part of an id.

    >>> _slug("Llama 3 / GRPO!"), _slug("...")
    ('llama-3-grpo', 'run')
    """
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")[:80] or "run"


def _has_int_variable(environ: Mapping[str, str], names: tuple[str, ...]) -> bool:
    return any(environ.get(name, "").isdecimal() for name in names)


def _int_variable(environ: Mapping[str, str], names: tuple[str, ...], default: int = 0) -> int:
    for name in names:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return default
