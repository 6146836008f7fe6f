"""`sentinel run`: a command that knows nothing of us is watched, and runs as if it were alone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from ranks import until

from sentinel.outlets import database
from sentinel.outlets.history import History
from sentinel.record import Event
from sentinel.wire.places import home, run_dir
from sentinel.wire.process import Process

PATIENCE = 240.0

TRAIN = """
import json, os, sys
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
"""

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def unserved(monkeypatch):
    """A run whose agent's place is taken, so that its rings stay to be read."""
    monkeypatch.setenv("SENTINEL_RUN_ID", "unserved")
    with (run_dir("unserved") / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield "unserved"


def words(*command):
    return [sys.executable, "-m", "sentinel", "run", *command]


def launched(*command, **more):
    return subprocess.run(
        words("--", *command), capture_output=True, text=True, timeout=PATIENCE, check=False, **more
    )


def incidents():
    """What was found wrong with the only run there is, once its agent has left."""
    (run,) = (home() / "runs").iterdir()
    until((run / "sentinel.db").exists, 60.0, "the agent is up")
    until(lambda: not (run / "agent.json").exists() and left(run), 60.0, "the agent has left")
    with closing(database.connect(run / "sentinel.db")) as connection:
        return [(each["detector"], each["summary"]) for each in History(connection).incidents()]


def left(run):
    with (run / "agent.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def truth(stdout):
    return dict(json.loads(line) for line in stdout.splitlines() if line.startswith("["))


def losses(records):
    return [r.values["loss"] for r in records if r.event is Event.STEP and "loss" in r.values]


def test_every_rank_of_a_script_without_a_word_of_ours_is_told(script, told, headers, unserved):
    done = launched(sys.executable, *TORCHRUN, script(TRAIN)[1])

    assert done.returncode == 0, done.stderr
    expected = truth(done.stdout)
    found = told()
    assert {rank: losses(records) for rank, records in found.items()} == expected
    assert sorted(expected) == [0, 1]
    for rank, records in found.items():
        assert (records[0].event, records[0].values["world_size"]) == (Event.START, 2)
        assert [r.values["optimizer_steps"] for r in records if r.event is Event.STEP][-1] == 5
        assert records[-1].facts == {"outcome": "finished"}
        assert (headers()[rank].errors, headers()[rank].identity.run) == (0, unserved)
    assert len(found[0]) == len(found[1])


def test_children_of_multiprocessing_are_ranks_by_their_group(script, told, unserved, tmp_path):
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
    found = told()
    assert {rank: losses(records) for rank, records in found.items()} == {0: [3.0], 1: [6.0]}
    assert {records[-1].facts["outcome"] for records in found.values()} == {"finished"}
    assert found[1][0].values["world_size"] == 2


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_a_child_of_multiprocessing_raised_is_told(script, told, unserved, start):
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

    assert told()[0][-1].facts == {"outcome": "exception", "exception": "KeyError"}


def test_a_decorated_function_is_the_run_and_nothing_is_begun_around_it(script, told, unserved):
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
    start, *_, stop = told()[0]
    assert (start.values["max_steps"], stop.facts["exception"]) == (9, "ValueError")


def test_a_step_without_a_backward_pass_begins_a_run_too(script, told, unserved):
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

    steps = [r for r in told()[0] if r.event is Event.STEP]
    assert [r.values["optimizer_steps"] for r in steps] == [1, 2]


def test_who_does_not_train_claims_no_ring(script, told, unserved):
    done = launched(*script("import torch"))

    assert (done.returncode, told()) == (0, {})
    assert "no training was seen" in done.stderr


def test_a_program_that_a_rank_starts_is_no_rank(script, told, unserved):
    inner = "import torch; torch.ones(1, requires_grad=True).sum().mul(7).backward()"
    launched(
        *script(f"""
import subprocess, sys, torch
torch.ones(1, requires_grad=True).sum().backward()
subprocess.run([sys.executable, "-c", {inner!r}], check=True)
""")
    )

    assert [record.attempt for record in told()[0]] == [0] * len(told()[0])
    assert [r.event for r in told()[0]].count(Event.START) == 1


def test_a_compiled_step_is_seen(script, told, unserved):
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
    assert losses(told()[0])[-1] == 0.0


def test_another_sitecustomize_is_loaded_as_ever(script, tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs')\nhere = 1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(theirs), os.environ["PYTHONPATH"]]))
    done = launched(
        *script("""
import sys, sitecustomize
print(sitecustomize.here, sitecustomize.__file__)
print(any("bootstrap" in place for place in sys.path))
""")
    )

    # The launcher is a Python as well.
    said = done.stdout.splitlines()
    assert said == ["theirs", "theirs", f"1 {theirs / 'sitecustomize.py'}", "False"]


def test_where_sentinel_is_not_installed_it_is_loaded_by_its_file(script, tmp_path, told, unserved):
    launched(
        *script(
            f"SOURCES = {str(Path(__file__).parents[1])!r}"
            + """
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

    assert told()[0][-1].facts["outcome"] == "finished"


def test_switched_off_it_is_not_there_at_all(script, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_OFF", "1")
    done = launched(
        *script("""
import os, torch
torch.ones(1, requires_grad=True).sum().backward()
print("SENTINEL_LAUNCHED" in os.environ)
""")
    )

    assert (done.stdout, done.stderr) == ("False\n", "")
    assert not (tmp_path / "home").exists()


def test_the_exit_code_is_the_commands_and_is_paged_with_the_rank(script):
    done = launched(*script(TRAIN + "sys.exit(3)"))

    assert done.returncode == 3
    assert incidents() == [("run_failed", "Rank 0 left with exit code 3 at step 5.")]


def test_an_exit_that_no_rank_told_of_is_paged(script):
    done = launched(*script(TRAIN + "raise SystemExit(4)"))

    assert done.returncode == 4
    (found,) = incidents()
    assert found == ("run_failed", "The command left with exit code 4 after every rank had ended.")


def test_a_rank_that_was_killed_is_paged_with_the_signal(script):
    done = launched(*script(TRAIN + "os.kill(os.getpid(), 9)"))

    assert done.returncode == 128 + 9
    assert incidents() == [
        ("run_died", "Rank 0 was killed by SIGKILL at step 5 without a word; none is left.")
    ]


def test_a_command_that_fails_before_any_rank_began_is_paged(script):
    done = launched(*script("import torch\nimport no_such_module"))

    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert incidents() == [
        ("run_failed", "The command left with exit code 1 before any rank began.")
    ]
    (outcome,) = (home() / "runs").glob("*/outcome.json")
    assert json.loads(outcome.read_text())["exit_code"] == "1"


def test_a_command_that_does_not_exist_is_said_and_nothing_is_begun(tmp_path):
    done = launched("no-such-command", "--flag")

    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith("sentinel run: no-such-command: command not found")
    assert not (tmp_path / "home").exists()


def test_a_file_that_is_no_program_is_said(tmp_path, unserved):
    (tmp_path / "data").write_text("no program")
    done = launched("./data")

    assert done.returncode == 126
    assert "./data" in done.stderr


def test_a_settings_file_that_is_not_there_is_refused():
    command = words("--config", "nowhere.toml", "--", "true")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, "nowhere.toml" in done.stderr) == (2, True)


def test_run_inside_run_is_one_run(script, told, unserved):
    done = launched(*words("--run", "inner", "--", *script(TRAIN)))

    assert done.returncode == 0, done.stderr
    assert {r.run for r in told()[0]} == {unserved}
    assert losses(told()[0]) == truth(done.stdout)[0]


WAITING = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
print("ready", flush=True)
{}
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    time.sleep(0.1)
"""


def begun(line):
    command = subprocess.Popen(words("--", *line), stdout=subprocess.PIPE, text=True)
    assert command.stdout.readline() == "ready\n"
    return command


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 130)])
def test_signals_are_passed_on_and_end_it_as_they_would(script, unserved, number, status):
    command = begun(script(WAITING.format("signal.signal(signal.SIGINT, signal.SIG_DFL)")))
    command.send_signal(signal.SIGUSR1)
    assert command.stdout.readline() == "heard\n"
    command.send_signal(number)

    assert command.wait(PATIENCE) == status


def test_an_interrupt_from_the_terminal_reaches_the_command_once(script, unserved):
    """A terminal of its own, whose interrupt key is pressed."""
    import pty

    said = script("""
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
print("ready", sys.stdin.isatty(), flush=True)
while not heard:
    time.sleep(0.05)
time.sleep(1.5)
print("heard", len(heard), flush=True)
""")
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, words("--", *said))
    text = b""
    while b"ready True" not in text:
        text += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"heard" not in text:
        text += os.read(terminal, 1024)
    _, status = os.waitpid(child, 0)
    os.close(terminal)

    assert b"heard 1" in text
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_interrupted_run_wakes_nobody(script):
    command = begun(script(TRAIN.replace("sys.stdout.write", "0 and ") + WAITING.format("")))
    command.send_signal(signal.SIGINT)
    command.wait(PATIENCE)

    assert command.returncode in {1, 128 + 2}
    assert incidents() == []


def test_a_killed_launcher_takes_its_command_along(script, unserved):
    command = begun(
        script(
            "import os; print('ready', flush=True); print(os.getpid(), flush=True)\n"
            + WAITING.format("").replace('print("ready", flush=True)', "")
        )
    )
    pid = int(command.stdout.readline())
    command.kill()
    command.wait(60)

    until(lambda: not alive(pid), 60.0, "the command ends")


def alive(pid):
    found = Process.of(pid)
    return found is not None and found.alive()
