"""Reads a process's identity from the environment that its launcher set.

Launchers set a rank's position in the environment. They do not agree on a run id, so the ranks of
one node derive it from their common parent process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from sentinel.transport import paths
from sentinel.transport.identity import Identity
from sentinel.transport.launch_status import LAUNCHER_PID_VARIABLE
from sentinel.transport.process import Process
from sentinel.transport.rendezvous import NO_RENDEZVOUS, Rendezvous, detect_rendezvous
from sentinel.transport.ring import read_header
from sentinel.transport.ring_layout import HEADER_SIZE, OUTCOMES, parse_header
from sentinel.transport.run_id import derive_run_id, launch_digest, slug

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


def identify(name: str | None = None, environ: Mapping[str, str] | None = None) -> Identity:
    """The identity of the calling process.

    `name` is the run's name as the user gave it; the default is the script's name. An explicit
    `SENTINEL_RUN_ID` is the id itself. Raises ValueError if it is not a valid id.
    """
    environ = os.environ if environ is None else environ
    # Without a rank variable this is a single process, even where SLURM_NTASKS is set: `salloc`
    # sets it for the shell as well.
    rank = _int_variable(environ, _RANK_VARIABLES)
    world_size = (
        max(1, _int_variable(environ, _WORLD_SIZE_VARIABLES, 1))
        if _has_int_variable(environ, _RANK_VARIABLES)
        else 1
    )
    inferred = _infer_local_world_size(environ, world_size)
    local_world_size = min(
        world_size, max(1, _int_variable(environ, _LOCAL_WORLD_SIZE_VARIABLES, inferred))
    )
    is_one_node = local_world_size == world_size
    rendezvous = detect_rendezvous(environ)
    is_alone = local_world_size == 1
    run = _explicit_run_id(environ, rendezvous, rank)
    if run:
        run = _unless_in_use(paths.validate_run_id(run), rank, world_size, environ, is_alone)
    else:
        run = derive_run_id(name, environ, is_alone=is_alone)
    # On another node than before, nothing else shows how many attempts there were.
    restart_count = max(
        _int_variable(environ, (name,))
        for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    )
    return Identity(
        run=paths.validate_run_id(run),
        attempt=first_free_attempt(
            run, rank, restart_count, local_world_size=local_world_size, world_size=world_size
        ),
        rank=rank,
        local_rank=_int_variable(environ, _LOCAL_RANK_VARIABLES, rank if is_one_node else 0),
        world_size=world_size,
        local_world_size=local_world_size,
        host=os.uname().nodename,
        rendezvous=NO_RENDEZVOUS if is_one_node else rendezvous,
    )


def first_free_attempt(
    run: str, rank: int, start: int = 0, *, local_world_size: int = 1, world_size: int = 1
) -> int:
    """The first attempt from `start` on in which this rank has no ring yet.

    An attempt is over once its ranks on this node are gone, if there were `local_world_size` of
    them or their world had another size: an elastic restart may give this node other ranks, or
    more of them.
    """
    rings = paths.list_rings(run)
    used_names = {path.name for path in rings} | paths.removed_ring_names(run)
    attempt = max([start, *map(paths.attempt_from_ring_name, used_names)])
    current = [name for name in used_names if paths.attempt_from_ring_name(name) == attempt]
    if paths.ring_name(attempt, rank) in current:
        return attempt + 1
    writers = [_ring_writer(path) for path in rings if path.name in current]
    complete = len(current) >= local_world_size or any(size != world_size for _, size in writers)
    all_exited = not any(process.is_alive() for process, _ in writers)
    return attempt + 1 if current and complete and all_exited else attempt


def _ring_writer(ring: Path) -> tuple[Process, int]:
    """The process that writes a ring, and the size of its world."""
    try:
        with ring.open("rb") as file:
            header = parse_header(file.read(HEADER_SIZE))
    except (OSError, ValueError):
        # The ring is still being created: its writer is alive, and nothing else is known.
        return Process.current(), 0
    return header.process, header.identity.world_size


def _infer_local_world_size(environ: Mapping[str, str], world_size: int) -> int:
    """Ranks on this node, from the task counts of all nodes or from the number of nodes.

    >>> _infer_local_world_size({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2"}, 9)
    1
    >>> _infer_local_world_size({"PET_NNODES": "2"}, 8), _infer_local_world_size({}, 8)
    (4, 8)
    """
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    tasks = [int(ranks) for ranks, nodes in parts for _ in range(min(int(nodes or 1), world_size))]
    node = _int_variable(environ, ("SLURM_NODEID",))
    if node < len(tasks) and sum(tasks) == world_size:
        return tasks[node]
    return -(-world_size // max(1, _int_variable(environ, _NODE_COUNT_VARIABLES, 1)))


def _explicit_run_id(environ: Mapping[str, str], rendezvous: Rendezvous, rank: int) -> str:
    """The id in the environment, with the node's name appended on all nodes but the first.

    Nodes often share a home directory, and each stores a run of its own there. A node that already
    owns the plain id keeps it, whichever node has rank 0 after a restart; while its agent runs, no
    other node uses the plain id. `sentinel run` sets an id that is specific to its node.
    """
    given = environ.get("SENTINEL_RUN_ID", "")
    if not given or LAUNCHER_PID_VARIABLE in environ:
        return given
    host = os.uname().nodename
    home = paths.read_home(given)
    if home.owner == host:
        return given
    # The lock of an agent on another node can only be seen in the file system that both share.
    is_served = (
        "agent.json" in home.names
        if paths.is_home_remote()
        else paths.is_agent_running(paths.home_dir() / "runs" / given)
    )
    in_use = bool(home.owner) and is_served
    return f"{given}.{slug(host)}" if in_use or (rendezvous.node_rank > 0 and rank > 0) else given


def _unless_in_use(
    run: str, rank: int, world_size: int, environ: Mapping[str, str], is_alone: bool
) -> str:
    """The given id, or one made from it where the ranks of another launch train under it now."""
    own, parent = Process.current(), Process.from_pid(os.getppid())
    for path in paths.list_rings(run):
        header = read_header(path)
        if header is None or header.outcome != OUTCOMES[0] or header.process == own:
            continue
        is_rival = header.identity.rank == rank or header.identity.world_size != world_size
        if not is_rival or not header.process.is_alive():
            continue
        if not is_alone and header.process.parent() == parent:
            # An elastic restart whose former worker is about to end.
            continue
        other = f"{run[:120]}-{launch_digest(environ, is_alone=is_alone)}"
        if rank == 0:
            sys.stderr.write(
                f"sentinel: run id {run} is in use by process {header.process.pid}; "
                f"this run is monitored as {other}.\n"
            )
        return other
    return run


def _has_int_variable(environ: Mapping[str, str], names: tuple[str, ...]) -> bool:
    return any(environ.get(name, "").isdecimal() for name in names)


def _int_variable(environ: Mapping[str, str], names: tuple[str, ...], default: int = 0) -> int:
    for name in names:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return default
