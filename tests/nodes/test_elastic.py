"""An elastic job is one run through all its restarts, wherever rank 0 is."""

from __future__ import annotations

import pytest
from agent_results import AgentResults
from expected_values import mean, spread
from hosts import HERE, TIMEOUT_SECONDS
from jobs import Job
from programs import free_port
from support.rank_processes import until

STEPS = 8
RESTART_DETECTORS = {
    "node_lost",
    "run_died",
    "run_failed",
    "run_stalled",
    "rank_desync",
    "step_regression",
}
"""Detectors that a restart might trigger."""


class Elastic:
    """Attempts of one job, with the variables that torchrun sets."""

    def __init__(self, folder):
        self.folder, self.attempts = folder, 0
        folder.mkdir()

    def start_on(self, *hosts):
        """Start the next attempt: two ranks on each host, rank 0 on the first."""
        self.stop = self.folder / f"stop-{self.attempts}"
        self.attempts += 1
        variables = {
            "TORCHELASTIC_RUN_ID": "elastic",
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": free_port(),
            "WORLD_SIZE": 2 * len(hosts),
            "LOCAL_WORLD_SIZE": 2,
        }
        self.ranks = [
            host.python(
                HERE / "restarted_ranks.py", self.stop,
                **variables, RANK=2 * node + local, LOCAL_RANK=local, GROUP_RANK=node,
            )
            for node, host in enumerate(hosts)
            for local in range(2)
        ]  # fmt: skip

    def end(self):
        self.stop.touch()
        assert [rank.wait(TIMEOUT_SECONDS) for rank in self.ranks] == [0] * len(self.ranks)


def max_rank_counts(steps):
    """The maximum number of ranks of a step, for each attempt."""
    counts: dict[int, int] = {}
    for record in steps:
        counts[record.attempt] = max(counts.get(record.attempt, 0), record.spread["loss"].count)
    return [counts[attempt] for attempt in sorted(counts)]


def assert_exact(steps, sizes):
    """Assert that no step of an attempt is missing, and steps with all ranks are exact."""
    for attempt, rank_count in enumerate(sizes):
        own = [record for record in steps if record.attempt == attempt]
        first = own[0].step
        assert [record.step for record in own] == [*range(first, first + len(own))]
        whole = [record for record in own if record.spread["loss"].count == rank_count]
        assert len(whole) >= STEPS
        for record in whole:
            ranks = [*range(rank_count)]
            assert record.values["loss"] == mean(ranks, record.step, weighted=False)
            assert record.spread["loss"].std == spread(ranks, record.step)["std"]


@pytest.mark.fault("T4")
@pytest.mark.parametrize("monitored_by", ["decorator"], indirect=True)
@pytest.mark.parametrize(
    "back", [1, pytest.param(2, marks=pytest.mark.full)], ids=["the same node", "another node"]
)
def test_ranks_that_leave_and_return_are_one_run(loopback, tmp_path, back):
    """Rank 0 returns on a node that was a follower, or on one that never reached the head."""
    hosts = loopback.add_hosts(3)
    for host in hosts:
        # On loopback all hosts are one machine, with one parent process.
        host.settings |= {"SENTINEL_LINGER_SECONDS": "20", "SENTINEL_RUN_ID": host.name}
    job = Elastic(tmp_path / "job")
    job.start_on(*hosts[:2])
    head = AgentResults(hosts[0])

    def reach(*rank_counts):
        def is_reached():
            steps = head.steps()
            newest = [record for record in steps if record.attempt == len(rank_counts) - 1]
            return max_rank_counts(steps) == [*rank_counts] and len(newest) >= STEPS

        until(is_reached, TIMEOUT_SECONDS, head.log)

    reach(4)
    job.end()
    job.start_on(hosts[0])
    reach(4, 2)
    job.end()
    job.start_on(hosts[back], hosts[0])
    reach(4, 2, 4)
    job.end()

    assert_exact(head.wait_until_ended().steps(), (4, 2, 4))
    assert not RESTART_DETECTORS & {each["detector"] for each in head.incidents()}


@pytest.mark.fault("T4")
@pytest.mark.nodes
def test_torchrun_without_a_lost_node_and_after_its_return_is_one_run(
    cluster, add_receiver, tmp_path
):
    hosts = cluster.add_hosts(2)
    receiver = add_receiver(hosts[0])
    for host in hosts:
        # Otherwise a launcher that joins later waits for an address that was published before.
        host.settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    folder = tmp_path / "job"
    job = Job(folder, hosts, 0, ranks=1, kind="elastic", script="elastic_ranks.py").start()
    head = AgentResults(hosts[0])

    def reach(*rank_counts):
        def is_reached():
            steps = head.steps()
            newest = [record for record in steps if record.attempt == len(rank_counts) - 1]
            return max_rank_counts(steps) == [*rank_counts] and len(newest) >= 2 * STEPS

        until(is_reached, TIMEOUT_SECONDS, head.log)

    reach(2)
    hosts[1].kill()
    reach(2, 1)
    job.start_on(hosts[1])
    reach(2, 1, 2)
    (folder / "stop").touch()
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    assert_exact(head.wait_until_ended().steps(), (2, 1, 2))
    assert {each["detector"] for each in head.incidents()} & RESTART_DETECTORS <= {"node_lost"}
    assert len(receiver.accepted) == len(head.notifications())
