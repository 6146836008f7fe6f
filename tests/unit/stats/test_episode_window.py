"""Tests of the means of the last episodes that are new enough."""

from sentinel.stats.episode_window import EpisodeWindow, is_episode_mean


def accepted(count, steps_between, key="rollout/ep_rew_mean", **values):
    window = EpisodeWindow()
    steps = [at * steps_between for at in range(1, count + 1)]
    return [step for step in steps if not is_episode_mean(key) or window.update(values, step)]


def test_a_mean_with_enough_new_episodes_is_compared():
    found = accepted(100, 400, **{"rollout/ep_len_mean": 100.0})

    assert found == list(range(800, 40_001, 800))
    assert accepted(200, 400, **{"rollout/ep_len_mean": 100.0})[50:52] == [41_600, 43_200]


def test_the_number_of_all_steps_is_preferred_to_that_of_the_record():
    window = EpisodeWindow()
    values = [{"ep_len_mean": 10.0, "time/total_timesteps": 20.0 * at} for at in range(1, 7)]

    assert [window.update(each, step) for step, each in enumerate(values)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip


def test_other_rewards_and_means_of_unknown_length_are_all_compared():
    assert len(accepted(10, 1, key="objective/scores", ep_len_mean=100.0)) == 10
    assert len(accepted(10, 1)) == 10
    assert len(accepted(10, 1, ep_len_mean=0.0)) == 10


def test_steps_that_count_iterations_do_not_count_episodes():
    window = EpisodeWindow()
    values = {"ep_len_mean": 200.0}
    assert all(window.update(values, step) for step in range(1, 50))
