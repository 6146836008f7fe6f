"""The ranks of one node derive the same run and attempt without communication."""

import fcntl
import json
import os
import subprocess
import sys

import pytest
from support.rank_processes import ranks

from sentinel.transport import paths
from sentinel.transport.launch_environment import first_free_attempt, identify


@pytest.mark.fault("T5")
def test_the_ranks_of_one_node_agree_on_the_run(script, tmp_path):
    """Two children of one parent, which differ only in the variables of a launcher."""
    line = script("""
import json
from sentinel.transport.launch_environment import identify
who = identify("My run")
print(json.dumps([who.run, who.rank, who.local_rank, who.world_size, who.local_world_size]))
""")
    results = []
    for rank in range(2):
        environ = {
            **os.environ,
            "RANK": str(rank + 2),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_PORT": "1234",
        }
        done = subprocess.run(line, env=environ, timeout=240, check=True, capture_output=True)
        results.append(json.loads(done.stdout))

    assert results[0][0] == results[1][0]
    assert results[0][0].startswith("my-run-")
    assert [each[1:] for each in results] == [[2, 0, 4, 2], [3, 1, 4, 2]]


@pytest.mark.fault("T5")
def test_a_run_of_another_parent_has_another_id():
    line = "from sentinel.transport.launch_environment import identify; print(identify('r').run)"
    ids = {subprocess.check_output([sys.executable, "-c", line], timeout=240) for _ in range(2)}

    assert len(ids) == 2


def test_a_single_torchrun_rank_keeps_its_run_after_a_restart():
    """The restarted rank is another process with the same parent."""
    line = "from sentinel.transport.launch_environment import identify; print(identify('r').run)"
    environ = {**os.environ, "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    environ |= {"LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    variables = [sys.executable, "-c", line]
    ids = {subprocess.check_output(variables, env=environ, timeout=240) for _ in range(2)}

    assert len(ids) == 1


@pytest.fixture
def attempt():
    """Starts ranks of one attempt; `end` kills all of them."""
    with ranks() as begin:
        yield Attempt(begin)


class Attempt:
    def __init__(self, begin):
        self.begin, self.running = begin, []

    def of(self, *ranks, number=0, world=4):
        started = [
            self.begin(r, run="elastic", world=world, steps=1, attempt=number) for r in ranks
        ]
        self.running += started
        return started

    def end(self):
        for rank in self.running:
            rank.kill()
            rank.communicate()


def free_attempt(rank, start=0, *, sharers=2, world=4):
    return first_free_attempt("elastic", rank, start, local_world_size=sharers, world_size=world)


def test_the_first_attempt_is_the_launchers_restart_count():
    assert (free_attempt(0), free_attempt(0, 3)) == (0, 3)


def test_ranks_that_start_together_share_an_attempt(attempt):
    attempt.of(0)

    assert free_attempt(1) == 0


def test_a_rank_with_a_ring_is_in_the_next_attempt(attempt):
    attempt.of(0)

    assert free_attempt(0) == 1


def test_a_rank_joins_the_new_attempt_of_its_node(attempt):
    attempt.of(0, 1)
    attempt.end()
    attempt.of(0, number=1)

    assert free_attempt(1) == 1


def test_other_ranks_of_a_node_are_in_the_next_attempt(attempt):
    """An elastic restart gave this node other ranks."""
    attempt.of(0, 1)
    assert free_attempt(2) == 0, "they are there still"
    attempt.end()

    assert (free_attempt(2), free_attempt(3)) == (1, 1)


def test_an_incomplete_attempt_is_joined_though_its_first_rank_is_gone(attempt):
    attempt.of(0)
    attempt.end()

    assert free_attempt(1) == 0


@pytest.mark.fault("T4")
def test_another_world_size_is_another_attempt(attempt):
    """From four nodes to two, and back."""
    attempt.of(0, world=8)
    attempt.end()
    assert free_attempt(1, world=4) == 1
    attempt.of(1, number=1, world=4)
    attempt.end()

    assert free_attempt(2, world=8) == 2


def test_more_ranks_on_a_node_are_another_attempt(attempt):
    attempt.of(0, 1, world=2)
    attempt.end()

    assert [free_attempt(rank, sharers=4, world=4) for rank in (3, 2, 1, 0)] == [1, 1, 1, 1]


def test_the_attempt_of_removed_rings_is_not_reused():
    for rank in (0, 1):
        paths.mark_ring_removed("elastic", paths.ring_path("elastic", 0, rank))

    assert (free_attempt(0), free_attempt(2)) == (1, 1)


def test_an_incomplete_ring_has_a_live_writer():
    path = paths.ring_path("elastic", 0, 0)
    path.write_bytes(b"")

    assert free_attempt(1, sharers=1) == 0


def test_a_node_keeps_its_run_id_when_rank_0_moves(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    variables = {"SENTINEL_RUN_ID": "mine", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}

    def run_of(node):
        number = str(2 * node)
        return identify(environ={**variables, "RANK": number, "GROUP_RANK": str(node)}).run

    elsewhere = run_of(1)
    assert run_of(0) == "mine"
    assert elsewhere.startswith("mine.")
    paths.write_owner_host("mine", os.uname().nodename)
    assert run_of(1) == "mine"
    paths.write_owner_host("mine", "another")
    assert run_of(1) == elsewhere
    assert run_of(0) == "mine"
    with (paths.run_dir("mine") / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_of(0) == elsewhere
