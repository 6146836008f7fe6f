"""The rendezvous of a job's nodes, from the environment that the launcher set.

Every multi-node launcher gives its ranks the address of the first node, since PyTorch needs it,
and a value that is the same on all nodes for as long as the job lasts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_HOST_VARIABLES = ("MASTER_ADDR", "LWS_LEADER_ADDRESS", "RAY_HEAD_SERVICE_HOST")
_NODE_RANK_VARIABLES = ("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID", "NODE_RANK", "LWS_WORKER_INDEX")
_UNNAMED_JOB = "none"
"""torchrun's run id of a job without a name."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What the ranks of one job share.

    `host` is the host of rank 0, `port` PyTorch's port there; both may change with a restart,
    `job_id` does not. `node_rank` is the number of this node, -1 if unknown. Unknown texts are "".
    """

    host: str = ""
    port: str = ""
    job_id: str = ""
    node_rank: int = -1


NO_RENDEZVOUS = Rendezvous()
"""The rendezvous of a run on one node."""


def detect_rendezvous(environ: Mapping[str, str]) -> Rendezvous:
    """The rendezvous in a rank's environment.

    >>> detect_rendezvous({"MASTER_ADDR": "gpu-a", "MASTER_PORT": "29500", "SLURM_JOB_ID": "7"})
    Rendezvous(host='gpu-a', port='29500', job_id='7/29500', node_rank=-1)
    """
    hosts = (environ.get(name, "") for name in _HOST_VARIABLES)
    host = next(filter(None, hosts), "") or _first_slurm_host(_slurm_nodelist(environ))
    host = host or _ray_host(environ.get("RAY_ADDRESS", ""))
    port = environ.get("MASTER_PORT", "")
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    # torchrun may give a named job another port at each restart.
    stable = port if run_id in {"", _UNNAMED_JOB} else run_id
    job_id = "/".join(filter(None, (environ.get("SLURM_JOB_ID", ""), stable)))
    numbers = (environ.get(name, "") for name in _NODE_RANK_VARIABLES)
    node_rank = next((int(number) for number in numbers if number.isdecimal()), -1)
    return Rendezvous(host, port, job_id, node_rank)


def _slurm_nodelist(environ: Mapping[str, str]) -> str:
    """The nodes of this Slurm job step, which may be a subset of the job's nodes."""
    return environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")


def _first_slurm_host(nodelist: str) -> str:
    """First host of a list in Slurm's notation.

    >>> _first_slurm_host("gpu[003-006,9],login"), _first_slurm_host("rack[1-2]n[07,9]")
    ('gpu003', 'rack1n07')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _ray_host(address: str) -> str:
    """Host of a Ray address; "" if the address means this machine.

    >>> _ray_host("10.0.0.7:6379"), _ray_host("ray://head:10001"), _ray_host("auto")
    ('10.0.0.7', 'head', '')
    """
    host, colon, _ = address.rpartition("//")[2].rpartition(":")
    return host if colon else ""
