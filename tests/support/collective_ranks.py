"""One rank of a job whose nodes are folders of one machine: trains, and ends as planned.

Run as a program with a plan as JSON: see `collective_jobs.py`.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import sentinel
from sentinel.client.collective import aggregation, readiness, shutdown

PLAN = json.loads(sys.argv[1]) if __name__ == "__main__" else {}
RANK = int(os.environ.get("RANK", "0"))
ENDING = PLAN.get("ending", "return") if RANK in PLAN.get("failing_ranks", range(99)) else "return"
for name, value in PLAN.get("constants", {}).items():
    known = [module for module in (aggregation, shutdown, readiness) if hasattr(module, name)]
    assert known, name
    for module in known:
        setattr(module, name, value)
BITS = (float("nan"), float("inf"), -0.0, 1e-320, -1e308)


def monitored(function):
    """The function, monitored unless the plan excludes this rank."""
    if RANK in PLAN.get("without", ()):
        return function
    return sentinel.monitor(
        run="gathered", aggregate="collective", agent=PLAN.get("agent", False), strict=True
    )(function)


def sync(step):
    """The all-reduce of data-parallel training; ranks may diverge in the middle of the run."""
    if PLAN.get("lockstep", True) or step <= PLAN["steps"] // 2:
        grad = torch.ones(1)
        dist.all_reduce(grad)
        assert grad.item() == dist.get_world_size()


def fail_as_planned():
    """Called in the middle of the run, where some ranks fail."""
    if ENDING == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ENDING == "stop":
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif ENDING == "raise":
        raise ValueError("on purpose")
    elif ENDING == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif ENDING == "exit":
        sys.exit(3)


def one_step(step, parameter, optimizer):
    optimizer.zero_grad()
    (parameter * (RANK + 1 + step)).sum().backward()
    sync(step)
    if not (ENDING == "silent" and step > PLAN["steps"] // 2):
        optimizer.step()
        values = {"x": RANK + step / 1000, "odd": BITS[step % len(BITS)], f"own_{RANK}": step / 3}
        sentinel.log(values, step=step, weight=RANK + 1)
    time.sleep(PLAN["step_seconds"])


@monitored
def train():
    dist.init_process_group("gloo")
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    for step in range(1, PLAN["steps"] + 1):
        one_step(step, parameter, optimizer)
        if step == PLAN["steps"] // 2:
            fail_as_planned()
    sentinel.mark("save", step=PLAN["steps"])
    if ENDING == "destroy":
        dist.destroy_process_group()


if __name__ == "__main__":
    train()
    print("trained", flush=True)
