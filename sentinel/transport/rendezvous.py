"""Meeting: where the nodes of one job find each other, from what their launcher told the ranks.

Every launcher of many nodes tells its ranks the address of the first one, since PyTorch needs it as
well; and something that is the same on all of them for as long as the job lasts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_HOST_VARIABLES = ("MASTER_ADDR", "LWS_LEADER_ADDRESS", "RAY_HEAD_SERVICE_HOST")
_NODE_RANK_VARIABLES = ("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID", "NODE_RANK", "LWS_WORKER_INDEX")
_UNNAMED_JOB = "none"
"""What torchrun calls a job that nobody named."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What ranks of one job share.

    `host` is that of rank 0, `port` PyTorch's own there; both may change with a restart, `job` does
    not. `node` is the number of this node, -1 where nobody told. Empty texts: not told either.
    """

    host: str = ""
    port: str = ""
    job_id: str = ""
    node_rank: int = -1


NO_RENDEZVOUS = Rendezvous()
"""What a rank is told whose run is on one node."""


def detect_rendezvous(environ: Mapping[str, str]) -> Rendezvous:
    """What the environment of a rank tells of its job.

    >>> meeting({"MASTER_ADDR": "gpu-a", "MASTER_PORT": "29500", "SLURM_JOB_ID": "7"})
    Meeting(host='gpu-a', port='29500', job='7/29500', node=-1)
    """
    told = (environ.get(name, "") for name in _HOST_VARIABLES)
    host = next(filter(None, told), "") or _first_slurm_host(_slurm_nodelist(environ))
    host = host or _ray_host(environ.get("RAY_ADDRESS", ""))
    port = environ.get("MASTER_PORT", "")
    named = environ.get("TORCHELASTIC_RUN_ID", "")
    # A job that torchrun knows by name may get another port whenever it restarts.
    lasting = port if named in {"", _UNNAMED_JOB} else named
    job = "/".join(filter(None, (environ.get("SLURM_JOB_ID", ""), lasting)))
    numbers = (environ.get(name, "") for name in _NODE_RANK_VARIABLES)
    node = next((int(number) for number in numbers if number.isdecimal()), -1)
    return Rendezvous(host, port, job, node)


def _slurm_nodelist(environ: Mapping[str, str]) -> str:
    """Those of our step of a Slurm job, which may be some of the job's."""
    return environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")


def _first_slurm_host(nodelist: str) -> str:
    """First host of a list as Slurm writes it.

    >>> _first_of("gpu[003-006,9],login"), _first_of("a1,a2"), _first_of("rack[1-2]n[07,9]")
    ('gpu003', 'a1', 'rack1n07')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _ray_host(address: str) -> str:
    """Host of an address as Ray writes it; none where it means this machine.

    >>> _host_of("10.0.0.7:6379"), _host_of("ray://head:10001"), _host_of("auto")
    ('10.0.0.7', 'head', '')
    """
    host, colon, _ = address.rpartition("//")[2].rpartition(":")
    return host if colon else ""
