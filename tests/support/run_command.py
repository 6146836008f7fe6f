"""`sentinel run` in a subprocess, and the incidents of its run."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from support.rank_processes import has_agent, until

from sentinel.store import database
from sentinel.store.history import History
from sentinel.transport.paths import home_dir

TIMEOUT_SECONDS = 240.0

TRAIN = """
import json, os, sys, time
import torch
import torch.distributed as dist

rank = int(os.environ.get("RANK", "0"))
torch.manual_seed(rank)
net = torch.nn.Linear(4, 1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
losses = []
for step in range(5):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
sys.stdout.write(json.dumps([rank, losses]) + "\\n")
sys.stdout.flush()
if "RANK" in os.environ:
    # An exit while gloo's threads still work aborts in a few of 100 cases, also without sentinel.
    dist.barrier()
    time.sleep(0.5)
"""


def run_arguments(*command):
    """Command line of `sentinel run` with these arguments."""
    return [sys.executable, "-m", "sentinel", "run", *command]


def run_to_end(*command, **options):
    """Run a command under `sentinel run` and return the completed process."""
    return subprocess.run(
        run_arguments("--", *command),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        **options,
    )


def incidents():
    """Detector and summary of the incidents of the only run, once its agent has exited."""
    runs = home_dir() / "runs"
    # A slow agent has its directory after the command has ended.
    (run,) = until(lambda: [*runs.glob("*")], TIMEOUT_SECONDS, "the run has a directory")
    until((run / "sentinel.db").exists, TIMEOUT_SECONDS, "the agent has a database")
    until(lambda: not has_agent(run), TIMEOUT_SECONDS, "the agent has exited")
    with closing(database.connect(run / "sentinel.db")) as connection:
        return [(each["detector"], each["summary"]) for each in History(connection).incidents()]
