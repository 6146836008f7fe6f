"""`sentinel run`: every process of a command that knows nothing of us is seen, and none besides."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.run_command import TRAIN, launched, words

from sentinel.model.record import Event

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


pytestmark = pytest.mark.usefixtures("isolated_commands")


def truth(stdout):
    return dict(json.loads(line) for line in stdout.splitlines() if line.startswith("["))


def losses(records):
    return [r.values["loss"] for r in records if r.event is Event.STEP and "loss" in r.values]


def test_every_rank_of_a_script_without_a_word_of_ours_is_told(script, recorded, headers, run_without_agent):
    done = launched(sys.executable, *TORCHRUN, script(TRAIN)[1])

    assert done.returncode == 0, done.stderr
    expected = truth(done.stdout)
    found = recorded()
    assert {rank: losses(records) for rank, records in found.items()} == expected
    assert sorted(expected) == [0, 1]
    for rank, records in found.items():
        assert (records[0].event, records[0].values["world_size"]) == (Event.START, 2)
        assert [r.values["optimizer_steps"] for r in records if r.event is Event.STEP][-1] == 5
        assert records[-1].facts == {"outcome": "finished"}
        assert (headers()[rank].errors, headers()[rank].identity.run) == (0, run_without_agent)
    assert len(found[0]) == len(found[1])


def test_children_of_multiprocessing_are_ranks_by_their_group(script, recorded, run_without_agent, tmp_path):
    done = launched(
        *script(f"""
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=rank, world_size=2)
    weight = torch.nn.Parameter(torch.tensor([float(rank + 1)]))
    (weight * 3).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    dist.barrier()
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
""")
    )

    assert done.returncode == 0, done.stderr
    found = recorded()
    assert {rank: losses(records) for rank, records in found.items()} == {0: [3.0], 1: [6.0]}
    assert {records[-1].facts["outcome"] for records in found.values()} == {"finished"}
    assert found[1][0].values["world_size"] == 2


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_a_child_of_multiprocessing_raised_is_told(script, recorded, run_without_agent, start):
    launched(
        *script(f"""
import multiprocessing, torch
def work():
    torch.ones(1, requires_grad=True).sum().backward()
    raise KeyError("theirs")
if __name__ == "__main__":
    child = multiprocessing.get_context({start!r}).Process(target=work)
    child.start()
    child.join()
""")
    )

    assert recorded()[0][-1].facts == {"outcome": "exception", "exception": "KeyError"}


def test_a_decorated_function_is_the_run_and_nothing_is_begun_around_it(script, recorded, run_without_agent):
    done = launched(
        *script("""
import torch, sentinel
@sentinel.monitor(max_steps=9)
def train():
    torch.ones(1, requires_grad=True).sum().backward()
    raise ValueError
try:
    train()
except ValueError:
    print("caught")
""")
    )

    assert done.stdout == "caught\n"
    start, *_, stop = recorded()[0]
    assert (start.values["max_steps"], stop.facts["exception"]) == (9, "ValueError")


def test_a_step_without_a_backward_pass_begins_a_run_too(script, recorded, run_without_agent):
    launched(
        *script("""
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.5)
for _ in range(3):
    weight.grad = torch.ones(1)
    optimizer.step()
assert weight.item() == -0.5
""")
    )

    steps = [r for r in recorded()[0] if r.event is Event.STEP]
    assert [r.values["optimizer_steps"] for r in steps] == [1, 2]


def test_who_does_not_train_claims_no_ring(script, recorded, run_without_agent):
    done = launched(*script("import torch"))

    assert (done.returncode, recorded()) == (0, {})
    assert "no training was seen" in done.stderr


def test_a_program_that_a_rank_starts_is_no_rank(script, recorded, run_without_agent):
    inner = "import torch; torch.ones(1, requires_grad=True).sum().mul(7).backward()"
    launched(
        *script(f"""
import subprocess, sys, torch
torch.ones(1, requires_grad=True).sum().backward()
subprocess.run([sys.executable, "-c", {inner!r}], check=True)
""")
    )

    assert [record.attempt for record in recorded()[0]] == [0] * len(recorded()[0])
    assert [r.event for r in recorded()[0]].count(Event.START) == 1


def test_a_compiled_step_is_seen(script, recorded, run_without_agent):
    done = launched(
        *script("""
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.5)
@torch.compile(backend="eager")
def step(x):
    optimizer.zero_grad()
    (weight * x).sum().backward()
    optimizer.step()
for _ in range(3):
    step(torch.ones(1))
""")
    )

    assert done.returncode == 0, done.stderr
    assert losses(recorded()[0])[-1] == 0.0


def test_another_sitecustomize_is_loaded_as_ever(script, tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs')\nhere = 1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(theirs), os.environ["PYTHONPATH"]]))
    done = launched(
        *script("""
import sys, sitecustomize
print(sitecustomize.here, sitecustomize.__file__)
print(any("autostart" in place for place in sys.path))
""")
    )

    # The launcher is a Python as well, and says its word when it likes.
    said = done.stdout.splitlines()
    assert said.count("theirs") == 2
    assert [line for line in said if line != "theirs"] == [
        f"1 {theirs / 'sitecustomize.py'}",
        "False",
    ]


def test_where_sentinel_is_not_installed_it_is_loaded_by_its_file(script, tmp_path, recorded, run_without_agent):
    launched(
        *script(
            f"SOURCES = {str(Path(__file__).parents[2])!r}"
            """
import sys
assert not any(name.startswith("sentinel") for name in sys.modules)
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "sentinel" else find_spec(name)
sys.path[:] = [place for place in sys.path if place != SOURCES]
import torch
torch.ones(1, requires_grad=True).sum().backward()
"""
        )
    )

    assert recorded()[0][-1].facts["outcome"] == "finished"


def test_switched_off_it_is_not_there_at_all(script, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_OFF", "1")
    done = launched(
        *script("""
import os, torch
torch.ones(1, requires_grad=True).sum().backward()
print("SENTINEL_LAUNCHER_PID" in os.environ)
""")
    )

    assert (done.stdout, done.stderr) == ("False\n", "")
    assert not (tmp_path / "home").exists()


def test_run_inside_run_is_one_run(script, recorded, run_without_agent):
    done = launched(*words("--run", "inner", "--", *script(TRAIN)))

    assert done.returncode == 0, done.stderr
    assert {r.run for r in recorded()[0]} == {run_without_agent}
    assert losses(recorded()[0]) == truth(done.stdout)[0]
