"""Which samples of a stack and of the CPU time show that a rank computes."""

from unittest.mock import Mock

import pytest

from sentinel.live.stack_sampler import RankSampler
from sentinel.transport.stack_channel import StackAnswer


@pytest.mark.parametrize(
    ("positions", "cpu", "runnable", "expected"),
    [
        ((1, 2, 1), 0.1, 0.1, True),
        ((1, 2, 1), 0.01, 0.5, False),
        ((1, 1, 1), 0.1, 0.5, False),
        # A tight loop: another thread gets the GIL at one instruction only.
        ((1, 1, 1), 1.0, 1.0, True),
        # The same on a machine with 50 times as many busy processes as CPUs.
        ((1, 1, 1), 0.02, 0.99, True),
    ],
)
def test_a_rank_that_computes_moves_or_waits_for_nothing_but_a_cpu(
    positions, cpu, runnable, expected
):
    sampler = RankSampler(Mock())
    for number, position in enumerate(positions):
        answer = StackAnswer(number, (), position)
        sampler.samples.append((answer, cpu * number, runnable * number, float(number)))

    assert sampler.is_computing is expected
