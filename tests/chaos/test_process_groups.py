"""Sessions that begin before, after and without `init_process_group`, and groups made repeatedly.

One process imports torch and forks the ranks, so that each costs little.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from programs import free_port

pytest.importorskip("torch")
pytestmark = [pytest.mark.chaos, pytest.mark.full, pytest.mark.timeout(600)]

TIMEOUT_SECONDS = 240.0
ORDERS = ("before", "after", "without", "explicit", "repeated")
WORLD, STEPS = 2, 50

SCRIPT = f"""
import json, os, sys, traceback
import torch
import torch.distributed as dist

import sentinel

folder, *ports = sys.argv[1:]

def join(order, rank):
    if order == "explicit":
        store = f"file://{{folder}}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size={WORLD})
    elif order != "without":
        dist.init_process_group("gloo")

def train(order, rank):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if order in ("before", "repeated"):
        join(order, rank)
    for step in range(1, {STEPS} + 1):
        if order == "repeated":
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
            # A store of its own: the port of the last one may still be in use.
            store = f"file://{{folder}}/store{{step}}"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size={WORLD})
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        sentinel.log({{"mine": 10.0 * rank}}, step=step)
    if order == "repeated":
        # Inside the run; the others leave it to the interpreter.
        dist.destroy_process_group()

def main(order, rank):
    os.environ |= {{
        "SENTINEL_RUN_ID": order,
        "SENTINEL_RUNTIME_DIR": f"{{folder}}/{{order}}",
        "SENTINEL_HOME": f"{{folder}}/home",
    }}
    if order != "explicit":
        os.environ |= {{
            "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "{WORLD}", "LOCAL_WORLD_SIZE": "{WORLD}",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[{ORDERS}.index(order)],
        }}
    if order in ("after", "explicit"):
        join(order, rank)
    sentinel.monitor(run=order, agent=False, strict=True)(train)(order, rank)

children = {{}}
for order in {ORDERS}:
    for rank in range({WORLD}):
        child = os.fork()
        if not child:
            try:
                main(order, rank)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            sys.exit(rank)
        children[child] = order, rank
statuses = [(children[pid], status) for pid, status in (os.wait() for _ in children)]
with open(f"{{folder}}/statuses", "w") as file:
    json.dump(statuses, file)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The directory of all ranks, their exit statuses, and what they printed as errors."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(SCRIPT)
    with (folder / "errors").open("w") as errors:
        program = subprocess.Popen(
            [sys.executable, "train.py", str(folder), *(str(free_port()) for _ in ORDERS)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    try:
        assert program.wait(TIMEOUT_SECONDS) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    statuses = json.loads((folder / "statuses").read_text())
    return folder, {tuple(key): status for key, status in statuses}, (folder / "errors").read_text()


@pytest.mark.fault("T2", "T3")
@pytest.mark.parametrize("order", ORDERS)
def test_each_rank_is_recorded_and_ends_as_without_sentinel(ranks, order, recorded, monkeypatch):
    folder, statuses, errors = ranks
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(folder / order))
    # In the second rank the exit status of the process is 1.
    assert [statuses[order, rank] for rank in range(WORLD)] == [0, 1 << 8]
    assert "Traceback" not in errors
    assert "sentinel" not in errors
    found = recorded()
    assert found.keys() == {*range(WORLD)}
    for rank, records in found.items():
        steps = [(r.step, r.values["mine"]) for r in records if "mine" in r.values]
        assert steps == [(step, 10.0 * rank) for step in range(1, STEPS + 1)]
        assert {record.attempt for record in records} == {0}
        assert sum("loss" in record.values for record in records) == STEPS
