"""`sentinel preflight` of a training on two ranks, and the end of a process group."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil
import pytest

from sentinel.agent import process_tree

TIMEOUT_SECONDS = 240.0
PREFLIGHT = [sys.executable, "-m", "sentinel", "preflight"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]

RANK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print(f"begins: {input()}", flush=True)
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
model.load_state_dict({"module.0.weight": torch.zeros(8, 8)}, strict=False)
replica = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
while True:
    optimizer.zero_grad()
    # Without the wrapper: the gradients are not averaged.
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    with open(f"rank-{dist.get_rank()}", "w") as file:
        file.write("weights")
"""

pytestmark = pytest.mark.usefixtures("isolated_commands")


def test_errors_of_two_ranks_and_of_a_load_before_the_first_step_are_found(tmp_path):
    (tmp_path / "train.py").write_text(RANK)
    done = subprocess.run(
        [*PREFLIGHT, "--json", "--", sys.executable, *TORCHRUN, "train.py"],
        input="yes\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert done.returncode == 3, done.stderr
    assert "begins: yes" in done.stderr
    found = json.loads(done.stdout)
    checks = {each["check"]: each for each in found["checks"]}
    assert {name: each["result"] for name, each in checks.items()} == {
        "replicas": "found",
        "accumulation": "not checked",
        "gradients": "passed",
        "mode": "passed",
        "weights": "passed",
        "weight_changes": "passed",
        "batches": "not checked",
        "evaluation": "not checked",
        "first_loss": "not checked",
        "inputs": "not checked",
        "loaded_weights": "found",
        "precision": "not checked",
        "scaler_steps": "not checked",
        "schedule": "not checked",
    }
    assert checks["replicas"]["severity"] == "critical"
    assert checks["replicas"]["remedy"]
    assert (found["ranks"], found["exit_status"], found["was_killed"]) == (2, None, False)
    assert found["updates"] >= 20
    assert sorted(found["written"]) == ["rank-0", "rank-1"]
    # Nothing of sentinel, neither here nor where runs are stored otherwise.
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rank-0", "rank-1", "train.py"]
    assert {"Ranks", "Optimizer"} <= {each["name"] for each in found["facts"]}


def test_a_group_ends_with_what_ignores_sigterm_and_what_has_left_it(monkeypatch):
    monkeypatch.setattr(process_tree, "GRACE_SECONDS", 1.0)
    code = """
import signal, subprocess, sys, time
waiting = [sys.executable, "-c", "import time; time.sleep(600)"]
apart = subprocess.Popen(waiting, start_new_session=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(apart.pid, flush=True)
time.sleep(600)
"""
    ignoring = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, process_group=0
    )
    apart = psutil.Process(int(ignoring.stdout.readline()))
    ignoring.stdout.close()

    assert process_tree.end_group(ignoring.pid, [])
    assert ignoring.wait(TIMEOUT_SECONDS) == -signal.SIGKILL
    assert not apart.is_running() or apart.status() == psutil.STATUS_ZOMBIE


def test_a_group_that_ends_by_itself_is_not_killed():
    waiting = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], process_group=0
    )

    assert not process_tree.end_group(waiting.pid, [])
    assert waiting.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
