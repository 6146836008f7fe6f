"""A gloo group is destroyed after its threads had the interpreter lock."""

import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from support.training_loops import monitored

from sentinel.integrations import process_groups


@pytest.fixture
def waits(monkeypatch):
    seconds = []
    monkeypatch.setattr(process_groups, "time", SimpleNamespace(sleep=seconds.append))
    return seconds


def test_a_gloo_group_is_destroyed_after_a_wait(waits, tmp_path):
    with monitored:
        dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
        dist.destroy_process_group()

    assert waits == [2.0 * sys.getswitchinterval()]
    assert not dist.is_initialized()


def test_an_error_of_the_training_is_its_own(waits):
    with monitored, pytest.raises((AssertionError, ValueError), match=r"[Pp]rocess group"):
        dist.destroy_process_group()

    assert waits == []
