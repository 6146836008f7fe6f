"""What a launcher leaves on each node: one parent of the ranks there, in the words of several.

    python node_launcher.py '{"kind": "slurm", "node": 1, "nodes": 2, ...}' script.py plan.json

Ends as the worst of its ranks did, once all have ended.
"""

import json
import os
import subprocess
import sys


def torchelastic(at):
    return {
        **placed(at),
        "LOCAL_WORLD_SIZE": at["ranks"],
        "GROUP_RANK": at["node"],
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_RUN_ID": at.get("job", "none"),
    }


def pytorch(at):
    """PyTorchJob's, whose pods are told of torchrun's options too."""
    return {**placed(at), "PET_NNODES": at["nodes"], "PET_NODE_RANK": at["node"]}


def placed(at):
    """What PyTorch itself goes by."""
    return {
        "RANK": at["rank"],
        "LOCAL_RANK": at["local"],
        "WORLD_SIZE": at["world"],
        "MASTER_ADDR": at["head"],
        "MASTER_PORT": at["port"],
    }


def hostfile(at):
    return {**placed(at), "LOCAL_SIZE": at["ranks"], "CROSS_RANK": at["node"]}


def ray(at):
    return {
        **placed(at),
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
    told, words = json.loads(sys.argv[1]), sys.argv[2:]
    ranks = told["ranks"]
    children = []
    for local in range(ranks):
        rank = told["node"] * ranks + local
        at = {**told, "local": local, "rank": rank, "world": told["nodes"] * ranks}
        environ = {name: str(value) for name, value in KINDS[told["kind"]](at).items()}
        children.append(subprocess.Popen([sys.executable, *words], env={**os.environ, **environ}))
    sys.exit(max(abs(child.wait()) for child in children))


if __name__ == "__main__":
    main()
