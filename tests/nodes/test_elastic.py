"""An elastic run goes on with the ranks that it has, wherever rank 0 is: it is one run."""

from __future__ import annotations

import pytest
from agent_results import Judged
from expected_values import mean, spread
from hosts import HERE, PATIENCE
from jobs import Job, free_port
from support.rank_processes import until

STEPS = 8
OF_NODES = {"node_lost", "run_died", "run_failed", "run_stalled", "rank_desync", "step_regression"}
"""Detectors that a restart might wake."""


class Elastic:
    """Attempts of one job, by the words that torchrun has for its workers."""

    def __init__(self, folder):
        self.folder, self.attempts = folder, 0
        folder.mkdir()

    def begin(self, *hosts):
        """The next attempt, two ranks on each of these hosts, the first of them with rank 0."""
        self.stop = self.folder / f"stop-{self.attempts}"
        self.attempts += 1
        words = {
            "TORCHELASTIC_RUN_ID": "elastic",
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": free_port(),
            "WORLD_SIZE": 2 * len(hosts),
            "LOCAL_WORLD_SIZE": 2,
        }
        self.ranks = [
            host.python(
                HERE / "restarted_ranks.py", self.stop,
                **words, RANK=2 * node + local, LOCAL_RANK=local, GROUP_RANK=node,
            )
            for node, host in enumerate(hosts)
            for local in range(2)
        ]  # fmt: skip

    def end(self):
        self.stop.touch()
        assert [rank.wait(PATIENCE) for rank in self.ranks] == [0] * len(self.ranks)


def sizes(steps):
    """Of each attempt, how many ranks its steps had, where all spoke."""
    most: dict[int, int] = {}
    for record in steps:
        most[record.attempt] = max(most.get(record.attempt, 0), record.spread["loss"].count)
    return [most[attempt] for attempt in sorted(most)]


def exact(steps, sizes):
    """Each attempt takes step after step; those that all its ranks told of are right to the bit."""
    for attempt, every in enumerate(sizes):
        own = [record for record in steps if record.attempt == attempt]
        first = own[0].step
        assert [record.step for record in own] == [*range(first, first + len(own))]
        whole = [record for record in own if record.spread["loss"].count == every]
        assert len(whole) >= STEPS
        for record in whole:
            heard = [*range(every)]
            assert record.values["loss"] == mean(heard, record.step, weighted=False)
            assert record.spread["loss"].std == spread(heard, record.step)["std"]


@pytest.mark.parametrize("back", [1, 2], ids=["the same node", "another node"])
def test_ranks_that_leave_and_come_back_are_one_run(loopback, tmp_path, back):
    """Rank 0 comes back on a node that was a post, or on one that never heard of the head."""
    hosts = loopback.of(3)
    for host in hosts:
        # On loopback all are one machine, and children of one process.
        host.settings |= {"SENTINEL_LINGER_SECONDS": "20", "SENTINEL_RUN_ID": host.name}
    job = Elastic(tmp_path / "job")
    job.begin(*hosts[:2])
    head = Judged(hosts[0])

    def reach(*wanted):
        def reached():
            steps = head.steps()
            newest = [record for record in steps if record.attempt == len(wanted) - 1]
            return sizes(steps) == [*wanted] and len(newest) >= STEPS

        until(reached, PATIENCE, head.log)

    reach(4)
    job.end()
    job.begin(hosts[0])
    reach(4, 2)
    job.end()
    job.begin(hosts[back], hosts[0])
    reach(4, 2, 4)
    job.end()

    exact(head.over().steps(), (4, 2, 4))
    assert not OF_NODES & {each["detector"] for each in head.incidents()}


@pytest.mark.nodes
def test_torchrun_goes_on_without_a_node_that_is_lost_and_takes_it_back_as_one_run(
    cluster, people, tmp_path
):
    hosts = cluster.of(2)
    told = people(hosts[0])
    for host in hosts:
        # Else a launcher that is new to a job waits in vain for what was said before it came.
        host.settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    folder = tmp_path / "job"
    job = Job(folder, hosts, 0, ranks=1, kind="elastic", script="elastic_ranks.py").start()
    head = Judged(hosts[0])

    def reach(*wanted):
        def reached():
            steps = head.steps()
            newest = [record for record in steps if record.attempt == len(wanted) - 1]
            return sizes(steps) == [*wanted] and len(newest) >= 2 * STEPS

        until(reached, PATIENCE, head.log)

    reach(2)
    hosts[1].kill()
    reach(2, 1)
    job.begin(hosts[1])
    reach(2, 1, 2)
    (folder / "stop").touch()
    assert job.codes() == [0, 0], [host.said for host in hosts]
    exact(head.over().steps(), (2, 1, 2))
    assert {each["detector"] for each in head.incidents()} & OF_NODES <= {"node_lost"}
    assert len(told.accepted) == len(head.pages())
