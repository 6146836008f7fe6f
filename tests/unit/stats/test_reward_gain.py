"""The levels of a reward are compared beyond noise and rounding."""

from sentinel.stats.reward_gain import RewardGain


def test_a_constant_reward_is_not_above_its_own_mean():
    gain = RewardGain()
    for _ in range(16):
        gain.add(0.1)

    assert not gain.is_above(sum([0.1 / 8] * 8))


def test_a_best_level_of_zero_is_a_level():
    """Of a reward that is a logarithm of a probability, say."""
    gain = RewardGain()
    for reward in [-10.0] * 64 + [0.0] * 64 + [-4.0] * 64:
        gain.add(reward)

    assert gain.has_lost
