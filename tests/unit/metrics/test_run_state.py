"""Standing: tells the present of a run truly, and never grows without bound."""

from math import inf, isnan, nan

import pytest
from support.results import (
    NOW,
    RUN,
    incident_result,
    make_incident,
    make_result,
    make_spread,
    step_result,
)

from sentinel.config.plugins import load_modules
from sentinel.metrics.alert_state import STALL_DETECTOR
from sentinel.metrics.run_state import MAX_LOGGED_KEYS, RunState, worst_rank
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.signals.run_metadata import MAX_METADATA_CHARS, MAX_METADATA_KEYS


def standing(*verdicts, most_ranks=64):
    now = RunState(RUN, most_ranks)
    for verdict in verdicts:
        now.update(verdict.record)
        for page in verdict.notifications:
            now.update_notification(page)
    return now


def stopped(outcome):
    return make_result(Event.STOP, attributes={"outcome": outcome})


def test_a_run_is_starting_until_its_first_step():
    """A start alone is not yet training."""
    assert standing(make_result(Event.START)).state == "starting"
    assert standing(make_result(Event.START), step_result()).state == "running"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("finished", "finished"),
        ("interrupted", "finished"),
        ("exception", "failed"),
        ("exit", "failed"),
        ("died", "died"),
    ],
)
def test_every_outcome_has_its_state_and_is_not_active(outcome, state):
    """An ended run is told apart by how it ended."""
    now = standing(make_result(Event.START), step_result(), stopped(outcome))

    assert (now.state, now.is_active) == (state, False)


def test_a_step_read_after_the_end_does_not_revive_the_run():
    """Draining the last records of a dead run must not show it as running."""
    assert standing(make_result(Event.START), stopped("died"), step_result()).state == "died"


def test_a_new_attempt_starts_again_with_its_own_ranks():
    """A restart leaves the end and the ranks of the last attempt behind."""
    now = standing(
        make_result(Event.START, rank=0),
        make_result(Event.START, rank=1),
        stopped("died"),
        make_result(Event.START, rank=0, attempt=1),
    )

    assert (now.state, now.attempt, list(now.ranks)) == ("starting", 1, [0])


def test_ticks_say_who_lives_and_what_became_of_the_run():
    """The source that watches the processes is believed about them."""
    alive = {"ranks_running": 0.0, "idle_seconds": 90.0}
    now = standing(
        step_result(), make_result(Event.HEARTBEAT, values=alive, attributes={"state": "died"})
    )

    assert (now.state, now.liveness, now.logged) == ("died", alive, {})


def test_a_run_is_stalled_while_the_detector_of_that_says_so():
    """Processes that live but get nowhere are stalled; dead ones are dead."""
    stall = make_incident(STALL_DETECTOR)
    now = standing(
        step_result(),
        incident_result(of=stall),
        make_result(Event.HEARTBEAT, attributes={"state": "running"}),
    )
    assert (now.state, now.is_active) == ("stalled", True)

    now.update_notification(incident_result(NotificationReason.RESOLVED, of=stall).notifications[0])
    assert now.state == "running"

    assert standing(step_result(), incident_result(of=stall), stopped("died")).state == "died"


def test_the_detector_of_stalls_is_there():
    """The name relied on is that of a detector."""
    assert STALL_DETECTOR in load_modules("detectors")


def test_an_unknown_state_changes_nothing():
    """A word that is not a state of ours is not taken over."""
    assert (
        standing(step_result(), make_result(Event.HEARTBEAT, attributes={"state": "<odd>"})).state
        == "running"
    )


def test_counts_steps_and_checkpoints_with_their_times():
    """Steps and saves are counted apart, each with its own time."""
    now = standing(
        step_result(step=1), step_result(step=2), make_result(Event.SAVE, step=2, time=NOW + 9)
    )

    assert (now.step, now.steps, now.last_step_time) == (2, 2, NOW + 2)
    assert (now.saves, now.last_checkpoint_time) == (1, NOW + 9)


def test_the_trainers_own_count_is_believed_even_when_it_goes_back():
    """The step shown is the one the trainer says, right or wrong."""
    assert (
        standing(step_result(step=9, global_step=9), step_result(step=10, global_step=4)).step == 4
    )


@pytest.mark.parametrize("declared", [nan, inf, -inf])
def test_a_declared_step_that_is_no_number_is_passed_over(declared):
    """Anybody may log that key; an agent that stumbled over it would stumble for ever."""
    assert standing(step_result(step=9, global_step=declared)).step == 9


def test_ranks_are_followed_one_by_one():
    """A rank's step, its duration and its end are its own."""
    now = standing(
        step_result(step=3, rank=0, step_time=0.5),
        step_result(step=2, rank=1),
        make_result(Event.STOP, step=2, rank=1, attributes={"outcome": "died"}),
    )

    assert (now.ranks[0].up, now.ranks[0].step, now.ranks[0].step_time) == (True, 3, 0.5)
    assert (now.ranks[1].up, now.ranks[1].step) == (False, 2)
    assert isnan(now.ranks[1].step_time)


def test_no_more_ranks_are_followed_than_allowed():
    """The lowest ranks are shown, so that it is always the same ones."""
    now = standing(*(step_result(step=s, rank=r) for s in (1, 2) for r in range(9)), most_ranks=4)

    assert sorted(now.ranks) == [0, 1, 2, 3]
    assert now.ranks[3].step == 2


def test_logged_keys_are_capped_and_the_rest_is_counted():
    """Too many keys are counted, not kept; the catalogue's own signals always are."""
    flood = {f"key{i}": 1.0 for i in range(MAX_LOGGED_KEYS + 5)}
    now = standing(step_result(**flood, loss=2.0, weight=3.0))

    assert (len(now.logged), now.hidden_value_count, now.signals) == (
        MAX_LOGGED_KEYS,
        5,
        {"loss": 2.0},
    )


def test_pages_open_and_close_incidents_and_count_once_each():
    """Only an opening counts as an alert; a worsening is still the same one."""
    now = standing(incident_result(), incident_result(NotificationReason.ESCALATED))
    assert [*now.open_incidents] == [make_incident().name]
    assert now.alert_counts.total() == 1

    now.update_notification(incident_result(NotificationReason.RESOLVED).notifications[0])
    assert not now.open_incidents


def test_the_worst_rank_is_one_that_is_not_finite_if_there_is_any():
    """A NaN is worse than any number."""
    assert worst_rank(make_spread(1.0, 2.0)) == 1
    assert worst_rank(make_spread(nan, nan, bad_ranks=(5, 6))) == 5


def test_a_copy_stays_as_it_was():
    """What is being rendered does not change under the renderer's hands."""
    now = standing(step_result(loss=1.0, mine=1.0), step_result(rank=0), incident_result())
    before = now.copy()
    now.update(step_result(step=7, loss=2.0, mine=2.0).record)
    now.update(step_result(step=7, rank=1).record)
    now.update_notification(incident_result(NotificationReason.RESOLVED).notifications[0])

    assert (before.step, before.signals, before.logged) == (100, {"loss": 1.0}, {"mine": 1.0})
    assert (len(before.ranks), len(before.open_incidents)) == (1, 1)


def facts(rank=WHOLE_RUN, values=None, **told):
    return make_result(Event.METADATA, rank=rank, attributes=told, values=values or {})


def test_what_becomes_known_later_is_taken_up():
    """Numbers are settings, texts are what it is."""
    now = standing(
        make_result(
            Event.START, rank=0, attributes={"framework": "torch"}, values={"world_size": 2.0}
        ),
        facts(rank=0, framework="trl", values={"beta": 0.1, "global_step": 4.0}),
    )

    assert now.metadata == {"framework": "trl"}
    assert now.settings == {"world_size": 2.0, "beta": 0.1}


def test_a_rank_that_starts_late_does_not_unlearn_what_is_known():
    """It starts by saying torch, too, long after another has found out better."""
    start = {"framework": "torch", "host": "node1"}
    now = standing(
        make_result(Event.START, rank=0, attributes={"framework": "torch"}),
        facts(rank=0, framework="trl"),
        make_result(Event.START, rank=1, attributes=start),
    )

    assert now.metadata == {"framework": "trl", "host": "node1"}


def test_each_ranks_taps_are_its_own_and_new_with_each_attempt():
    now = standing(
        make_result(Event.START, rank=0),
        facts(rank=0, **{"patch/trl": "on"}),
        facts(rank=1, **{"patch/trl": "off: KeyError in on_log"}),
        facts(**{"patch/trl": "on"}),
    )
    assert now.patches == {("trl", 0): "on", ("trl", 1): "off: KeyError in on_log"}
    assert now.metadata == {}

    now.update(make_result(Event.START, rank=0, attempt=1).record)
    assert now.patches == {}


def test_what_a_run_says_of_itself_is_capped():
    many = {f"key{i}": "x" * 5000 for i in range(MAX_METADATA_KEYS + 9)}
    now = standing(facts(values=dict.fromkeys(many, 1.0), **many))

    assert (len(now.metadata), len(now.settings)) == (MAX_METADATA_KEYS, MAX_METADATA_KEYS)
    assert len(now.metadata["key0"]) == MAX_METADATA_CHARS


def test_the_machine_is_not_taken_for_the_state_of_ranks():
    now = standing(make_result(Event.HEARTBEAT, values={"ranks_running": 1.0, "host_cpu": 0.4}))

    assert now.liveness == {"ranks_running": 1.0}


def test_facts_that_are_told_again_are_no_sign_of_life():
    """A restarted agent shows what was known of ranks that may be gone by now."""
    assert standing(facts(rank=3, **{"patch/trl": "on"})).ranks == {}
