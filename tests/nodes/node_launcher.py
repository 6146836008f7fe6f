"""The process that launchers leave on each node: the parent of its ranks, with their variables.

    python node_launcher.py '{"kind": "slurm", "node": 1, "nodes": 2, ...}' script.py plan.json

Exits with the highest exit code of its ranks.
"""

import json
import os
import subprocess
import sys


def torchelastic(at):
    return {
        **torch_variables(at),
        "LOCAL_WORLD_SIZE": at["ranks"],
        "GROUP_RANK": at["node"],
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_RUN_ID": at.get("job", "none"),
    }


def pytorch(at):
    """PyTorchJob, whose pods also have the options of torchrun."""
    return {**torch_variables(at), "PET_NNODES": at["nodes"], "PET_NODE_RANK": at["node"]}


def torch_variables(at):
    """The variables that PyTorch reads."""
    return {
        "RANK": at["rank"],
        "LOCAL_RANK": at["local"],
        "WORLD_SIZE": at["world"],
        "MASTER_ADDR": at["head"],
        "MASTER_PORT": at["port"],
    }


def hostfile(at):
    return {**torch_variables(at), "LOCAL_SIZE": at["ranks"], "CROSS_RANK": at["node"]}


def ray(at):
    return {
        **torch_variables(at),
        "LOCAL_WORLD_SIZE": at["ranks"],
        "NODE_RANK": at["node"],
        "RAY_ADDRESS": f"{at['head']}:6379",
    }


def slurm(at):
    return {
        "SLURM_PROCID": at["rank"],
        "SLURM_LOCALID": at["local"],
        "SLURM_NODEID": at["node"],
        "SLURM_NTASKS": at["world"],
        "SLURM_NTASKS_PER_NODE": at["ranks"],
        "SLURM_JOB_ID": at["port"],
        "SLURM_JOB_NODELIST": f"{at['head']},elsewhere[3-4]",
    }


def mpi(at):
    return {
        "OMPI_COMM_WORLD_RANK": at["rank"],
        "OMPI_COMM_WORLD_SIZE": at["world"],
        "OMPI_COMM_WORLD_LOCAL_RANK": at["local"],
        "OMPI_COMM_WORLD_LOCAL_SIZE": at["ranks"],
        "MASTER_ADDR": at["head"],
        "MASTER_PORT": at["port"],
    }


KINDS = {each.__name__: each for each in (torchelastic, pytorch, hostfile, ray, slurm, mpi)}


def main():
    description, command = json.loads(sys.argv[1]), sys.argv[2:]
    ranks = description["ranks"]
    children = []
    for local in range(ranks):
        rank = description["node"] * ranks + local
        at = {**description, "local": local, "rank": rank, "world": description["nodes"] * ranks}
        environ = {name: str(value) for name, value in KINDS[description["kind"]](at).items()}
        children.append(subprocess.Popen([sys.executable, *command], env={**os.environ, **environ}))
    sys.exit(max(abs(child.wait()) for child in children))


if __name__ == "__main__":
    main()
