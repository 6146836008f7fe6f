"""Meeting: what the launchers' variables say of where the nodes of a job meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.transport.rendezvous import NO_RENDEZVOUS, Rendezvous, detect_rendezvous

TORCHRUN = {
    "MASTER_ADDR": "gpu-a",
    "MASTER_PORT": "29500",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "my-job",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "gpu[003-006,9],login",
    "SLURM_NODEID": "2",
}


def told(environ, **more):
    return detect_rendezvous({**environ, **more})


def test_who_was_told_nothing_meets_nobody():
    assert detect_rendezvous({}) == NO_RENDEZVOUS == Rendezvous("", "", "", -1)


def test_torchrun_tells_all_of_it():
    assert told(TORCHRUN) == Rendezvous("gpu-a", "29500", "my-job", 1)


def test_a_named_job_of_torchrun_stays_itself_though_its_port_changes():
    assert told(TORCHRUN).job_id == told(TORCHRUN, MASTER_PORT="31000").job_id


@pytest.mark.parametrize("name", ["none", ""])
def test_jobs_of_torchrun_without_a_name_are_told_apart_by_their_port(name):
    first = told(TORCHRUN, TORCHELASTIC_RUN_ID=name)

    assert first.job_id == "29500"
    assert told(TORCHRUN, TORCHELASTIC_RUN_ID=name, MASTER_PORT="31000").job_id != first.job_id


def test_slurm_alone_tells_the_first_node_of_its_list():
    assert told(SLURM) == Rendezvous("gpu003", "", "77", 2)


def test_steps_of_one_allocation_are_told_apart_by_their_port():
    assert told(SLURM, MASTER_PORT="1").job_id != told(SLURM, MASTER_PORT="2").job_id


def test_an_address_that_was_set_comes_before_the_list_of_slurm():
    assert told(SLURM, MASTER_ADDR="gpu-z", MASTER_PORT="1").host == "gpu-z"


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({"LWS_LEADER_ADDRESS": "leader-0.svc"}, "leader-0.svc"),
        ({"RAY_HEAD_SERVICE_HOST": "10.1.2.3"}, "10.1.2.3"),
        ({"RAY_ADDRESS": "10.0.0.7:6379"}, "10.0.0.7"),
        ({"RAY_ADDRESS": "ray://head:10001"}, "head"),
        ({"RAY_ADDRESS": "auto"}, ""),
        ({"RAY_ADDRESS": ""}, ""),
        ({"SLURM_JOB_NODELIST": "rack[1-2]n[07,9],x"}, "rack1n07"),
        ({"SLURM_JOB_NODELIST": "a"}, "a"),
        ({"MASTER_ADDR": "", "LWS_LEADER_ADDRESS": "b"}, "b"),
    ],
)
def test_every_launcher_tells_the_host_of_rank_0_in_its_own_way(environ, host):
    assert detect_rendezvous(environ).host == host


@pytest.mark.parametrize(
    ("environ", "node"),
    [
        ({"GROUP_RANK": "0", "SLURM_NODEID": "3"}, 0),
        ({"SLURM_NODEID": "3"}, 3),
        ({"NODE_RANK": "4"}, 4),
        ({"LWS_WORKER_INDEX": "5"}, 5),
        ({"GROUP_RANK": "", "NODE_RANK": "4"}, 4),
        ({"GROUP_RANK": "-1"}, -1),
        ({"GROUP_RANK": "first"}, -1),
    ],
)
def test_the_number_of_a_node_is_what_the_innermost_launcher_says(environ, node):
    assert detect_rendezvous(environ).node_rank == node


_NAMES = [*TORCHRUN, *SLURM, "RAY_ADDRESS", "LWS_LEADER_ADDRESS", "RAY_HEAD_SERVICE_HOST"]


@given(st.dictionaries(st.sampled_from(_NAMES), st.text()))
def test_whatever_stands_in_the_environment_is_no_reason_to_fail(environ):
    assert detect_rendezvous(environ).node_rank >= -1
