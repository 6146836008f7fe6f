"""`sentinel run`: every training process of an unchanged command is recorded, and no other."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.run_command import TRAIN, run_arguments, run_to_end

from sentinel.model.record import Event

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


pytestmark = pytest.mark.usefixtures("isolated_commands")


def printed_losses(stdout):
    return dict(json.loads(line) for line in stdout.splitlines() if line.startswith("["))


def losses(records):
    return [r.values["loss"] for r in records if r.event is Event.STEP and "loss" in r.values]


def test_every_rank_of_an_unchanged_script_is_recorded(
    script, recorded, headers, run_without_agent
):
    done = run_to_end(sys.executable, *TORCHRUN, script(TRAIN)[1])

    assert done.returncode == 0, done.stderr
    expected = printed_losses(done.stdout)
    found = recorded()
    assert {rank: losses(records) for rank, records in found.items()} == expected
    assert sorted(expected) == [0, 1]
    for rank, records in found.items():
        assert (records[0].event, records[0].values["world_size"]) == (Event.START, 2)
        assert [r.values["optimizer_steps"] for r in records if r.event is Event.STEP][-1] == 5
        assert records[-1].attributes == {"outcome": "finished"}
        assert (headers()[rank].errors, headers()[rank].identity.run) == (0, run_without_agent)
    assert len(found[0]) == len(found[1])


@pytest.mark.fault("T2")
def test_children_of_multiprocessing_are_ranks_by_their_group(
    script, recorded, run_without_agent, tmp_path
):
    done = run_to_end(
        *script(f"""
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=rank, world_size=2)
    weight = torch.nn.Parameter(torch.tensor([float(rank + 1)]))
    (weight * 3).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
""")
    )

    assert done.returncode == 0, done.stderr
    found = recorded()
    assert {rank: losses(records) for rank, records in found.items()} == {0: [3.0], 1: [6.0]}
    assert {records[-1].attributes["outcome"] for records in found.values()} == {"finished"}
    assert found[1][0].values["world_size"] == 2


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_an_exception_in_a_child_of_multiprocessing_is_recorded(
    script, recorded, run_without_agent, start
):
    run_to_end(
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

    attributes = dict(recorded()[0][-1].attributes)
    assert attributes.pop("location").endswith(" in work")
    assert attributes == {"outcome": "exception", "exception": "KeyError", "message": "'theirs'"}


def test_a_decorated_function_starts_the_only_session(script, recorded, run_without_agent):
    done = run_to_end(
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
    assert (start.values["max_steps"], stop.attributes["exception"]) == (9, "ValueError")


def test_an_optimizer_step_without_backward_starts_a_session(script, recorded, run_without_agent):
    run_to_end(
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


def test_a_process_without_training_has_no_ring(script, recorded, run_without_agent):
    done = run_to_end(*script("import torch"))

    assert (done.returncode, recorded()) == (0, {})
    assert "no training found" in done.stderr


@pytest.mark.fault("I6")
def test_a_subprocess_of_a_rank_is_not_recorded(script, recorded, run_without_agent):
    inner = "import torch; torch.ones(1, requires_grad=True).sum().mul(7).backward()"
    run_to_end(
        *script(f"""
import subprocess, sys, torch
torch.ones(1, requires_grad=True).sum().backward()
subprocess.run([sys.executable, "-c", {inner!r}], check=True)
""")
    )

    assert [record.attempt for record in recorded()[0]] == [0] * len(recorded()[0])
    assert [r.event for r in recorded()[0]].count(Event.START) == 1


@pytest.mark.fault("T10")
def test_a_compiled_step_is_recorded(script, recorded, run_without_agent):
    done = run_to_end(
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


def test_another_sitecustomize_is_still_loaded(script, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('other')\nvalue = 1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other), os.environ["PYTHONPATH"]]))
    done = run_to_end(
        *script("""
import sys, sitecustomize
print(sitecustomize.value, sitecustomize.__file__)
print(any("autostart" in place for place in sys.path))
""")
    )

    # The launcher is a Python process too, and prints at any time.
    output = done.stdout.splitlines()
    assert output.count("other") == 2
    assert [line for line in output if line != "other"] == [
        f"1 {other / 'sitecustomize.py'}",
        "False",
    ]


def test_without_an_installation_sentinel_is_loaded_from_its_file(
    script, tmp_path, recorded, run_without_agent
):
    run_to_end(
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

    assert recorded()[0][-1].attributes["outcome"] == "finished"


def test_with_sentinel_off_the_command_runs_alone(script, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_OFF", "1")
    done = run_to_end(
        *script("""
import os, torch
torch.ones(1, requires_grad=True).sum().backward()
print("SENTINEL_LAUNCHER_PID" in os.environ)
""")
    )

    assert (done.stdout, done.stderr) == ("False\n", "")
    assert not (tmp_path / "home").exists()


def test_a_nested_run_command_is_the_same_run(script, recorded, run_without_agent):
    done = run_to_end(*run_arguments("--run", "inner", "--", *script(TRAIN)))

    assert done.returncode == 0, done.stderr
    assert {r.run for r in recorded()[0]} == {run_without_agent}
    assert losses(recorded()[0]) == printed_losses(done.stdout)[0]
