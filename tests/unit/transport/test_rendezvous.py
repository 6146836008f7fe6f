"""The rendezvous of a job from the environment of each launcher."""

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


def detect(environ, **variables):
    return detect_rendezvous({**environ, **variables})


def test_an_empty_environment_has_no_rendezvous():
    assert detect_rendezvous({}) == NO_RENDEZVOUS == Rendezvous("", "", "", -1)


def test_torchrun_sets_the_whole_rendezvous():
    assert detect(TORCHRUN) == Rendezvous("gpu-a", "29500", "my-job", 1)


def test_a_named_torchrun_job_keeps_its_id_when_its_port_changes():
    assert detect(TORCHRUN).job_id == detect(TORCHRUN, MASTER_PORT="31000").job_id


@pytest.mark.parametrize("name", ["none", ""])
def test_unnamed_torchrun_jobs_differ_by_port(name):
    first = detect(TORCHRUN, TORCHELASTIC_RUN_ID=name)

    assert first.job_id == "29500"
    assert detect(TORCHRUN, TORCHELASTIC_RUN_ID=name, MASTER_PORT="31000").job_id != first.job_id


def test_slurm_alone_gives_the_first_node_of_its_list():
    assert detect(SLURM) == Rendezvous("gpu003", "", "77", 2)


def test_steps_of_one_allocation_differ_by_port():
    assert detect(SLURM, MASTER_PORT="1").job_id != detect(SLURM, MASTER_PORT="2").job_id


def test_an_explicit_address_precedes_the_list_of_slurm():
    assert detect(SLURM, MASTER_ADDR="gpu-z", MASTER_PORT="1").host == "gpu-z"


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
def test_the_host_of_rank_0_is_known_from_each_launcher(environ, host):
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
def test_the_node_rank_is_that_of_the_innermost_launcher(environ, node):
    assert detect_rendezvous(environ).node_rank == node


_NAMES = [*TORCHRUN, *SLURM, "RAY_ADDRESS", "LWS_LEADER_ADDRESS", "RAY_HEAD_SERVICE_HOST"]


@given(st.dictionaries(st.sampled_from(_NAMES), st.text()))
def test_no_environment_raises_an_error(environ):
    assert detect_rendezvous(environ).node_rank >= -1
