"""Which samples of a stack and of the CPU time show that a rank computes."""

from unittest.mock import Mock

import pytest

from sentinel.live.stack_sampler import RankSampler
from sentinel.transport.stack_channel import StackAnswer


@pytest.mark.parametrize(
    ("positions", "share", "expected"),
    [
        ((1, 2, 1), 0.1, True),
        ((1, 2, 1), 0.01, False),
        ((1, 1, 1), 0.1, False),
        # A tight loop: another thread gets the GIL at one instruction only.
        ((1, 1, 1), 0.9, True),
    ],
)
def test_a_rank_that_computes_moves_or_uses_much_of_a_cpu(positions, share, expected):
    sampler = RankSampler(Mock())
    for number, position in enumerate(positions):
        sampler.samples.append((StackAnswer(number, (), position), share * number, float(number)))

    assert sampler.is_computing is expected
