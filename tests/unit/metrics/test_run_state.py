"""Current state of a run: correct after every record, and bounded in size."""

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


def run_state_after(*results, max_ranks_shown=64):
    run_state = RunState(RUN, max_ranks_shown)
    for result in results:
        run_state.update(result.record)
        for notification in result.notifications:
            run_state.alerts.update_notification(notification)
    return run_state


def stop(outcome):
    return make_result(Event.STOP, attributes={"outcome": outcome})


def test_a_run_is_starting_until_its_first_step():
    assert run_state_after(make_result(Event.START)).state == "starting"
    assert run_state_after(make_result(Event.START), step_result()).state == "running"


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
def test_every_outcome_has_an_inactive_state(outcome, state):
    run_state = run_state_after(make_result(Event.START), step_result(), stop(outcome))

    assert (run_state.state, run_state.is_active) == (state, False)


def test_a_step_read_after_the_end_does_not_make_the_run_active():
    """The last records of a dead run may be read after its end."""
    assert run_state_after(make_result(Event.START), stop("died"), step_result()).state == "died"


def test_a_new_attempt_is_starting_and_has_only_its_own_ranks():
    run_state = run_state_after(
        make_result(Event.START, rank=0),
        make_result(Event.START, rank=1),
        stop("died"),
        make_result(Event.START, rank=0, attempt=1),
    )

    assert (run_state.state, run_state.attempt, list(run_state.shown_ranks)) == ("starting", 1, [0])


def test_a_heartbeat_sets_liveness_and_state():
    alive = {"ranks_running": 0.0, "idle_seconds": 90.0}
    run_state = run_state_after(
        step_result(), make_result(Event.HEARTBEAT, values=alive, attributes={"state": "died"})
    )

    assert (run_state.state, run_state.liveness, run_state.logged) == ("died", alive, {})


def test_an_active_run_is_stalled_while_the_stall_detector_fires():
    """A dead run is dead, not stalled."""
    stall = make_incident(STALL_DETECTOR)
    run_state = run_state_after(
        step_result(),
        incident_result(of=stall),
        make_result(Event.HEARTBEAT, attributes={"state": "running"}),
    )
    assert (run_state.state, run_state.is_active) == ("stalled", True)

    run_state.alerts.update_notification(
        incident_result(NotificationReason.RESOLVED, of=stall).notifications[0]
    )
    assert run_state.state == "running"

    assert run_state_after(step_result(), incident_result(of=stall), stop("died")).state == "died"


def test_the_stall_detector_exists():
    assert STALL_DETECTOR in load_modules("detectors")


def test_an_unknown_state_is_ignored():
    assert (
        run_state_after(
            step_result(), make_result(Event.HEARTBEAT, attributes={"state": "<odd>"})
        ).state
        == "running"
    )


def test_steps_and_checkpoints_are_counted_with_their_times():
    run_state = run_state_after(
        step_result(step=1), step_result(step=2), make_result(Event.SAVE, step=2, time=NOW + 9)
    )

    assert (run_state.step, run_state.step_count, run_state.last_step_time) == (2, 2, NOW + 2)
    assert (run_state.checkpoint_count, run_state.last_checkpoint_time) == (1, NOW + 9)


def test_the_step_is_the_logged_global_step_even_if_it_goes_back():
    assert (
        run_state_after(
            step_result(step=9, global_step=9), step_result(step=10, global_step=4)
        ).step
        == 4
    )


@pytest.mark.parametrize("declared", [nan, inf, -inf])
def test_a_non_finite_global_step_is_ignored(declared):
    """Any code may log that key, and an error would repeat with every read of the record."""
    assert run_state_after(step_result(step=9, global_step=declared)).step == 9


def test_every_rank_has_its_own_step_duration_and_end():
    run_state = run_state_after(
        step_result(step=3, rank=0, step_time=0.5),
        step_result(step=2, rank=1),
        make_result(Event.STOP, step=2, rank=1, attributes={"outcome": "died"}),
    )

    assert (
        run_state.shown_ranks[0].up,
        run_state.shown_ranks[0].step,
        run_state.shown_ranks[0].step_time,
    ) == (True, 3, 0.5)
    assert (run_state.shown_ranks[1].up, run_state.shown_ranks[1].step) == (False, 2)
    assert isnan(run_state.shown_ranks[1].step_time)


def test_beyond_the_limit_the_lowest_ranks_are_shown():
    run_state = run_state_after(
        *(step_result(step=s, rank=r) for s in (1, 2) for r in range(9)), max_ranks_shown=4
    )

    assert sorted(run_state.shown_ranks) == [0, 1, 2, 3]
    assert run_state.shown_ranks[3].step == 2


def test_logged_keys_are_bounded_and_the_rest_is_counted():
    """Signals of the catalogue are always stored."""
    many = {f"key{i}": 1.0 for i in range(MAX_LOGGED_KEYS + 5)}
    run_state = run_state_after(step_result(**many, loss=2.0, weight=3.0))

    assert (len(run_state.logged), run_state.hidden_value_count, run_state.signals) == (
        MAX_LOGGED_KEYS,
        5,
        {"loss": 2.0},
    )


def test_notifications_open_and_close_incidents_and_count_an_alert_once():
    """An escalation is no further alert."""
    run_state = run_state_after(incident_result(), incident_result(NotificationReason.ESCALATED))
    assert [*run_state.alerts.open_incidents] == [make_incident().name]
    assert run_state.alerts.alert_counts.total() == 1

    run_state.alerts.update_notification(
        incident_result(NotificationReason.RESOLVED).notifications[0]
    )
    assert not run_state.alerts.open_incidents


def test_the_worst_rank_is_the_first_non_finite_one():
    assert worst_rank(make_spread(1.0, 2.0)) == 1
    assert worst_rank(make_spread(nan, nan, bad_ranks=(5, 6))) == 5


def test_a_copy_does_not_change():
    run_state = run_state_after(
        step_result(loss=1.0, mine=1.0), step_result(rank=0), incident_result()
    )
    before = run_state.copy()
    run_state.update(step_result(step=7, loss=2.0, mine=2.0).record)
    run_state.update(step_result(step=7, rank=1).record)
    run_state.alerts.update_notification(
        incident_result(NotificationReason.RESOLVED).notifications[0]
    )

    assert (before.step, before.signals, before.logged) == (100, {"loss": 1.0}, {"mine": 1.0})
    assert (len(before.shown_ranks), len(before.alerts.open_incidents)) == (1, 1)


def metadata(rank=WHOLE_RUN, values=None, **attributes):
    return make_result(Event.METADATA, rank=rank, attributes=attributes, values=values or {})


def test_later_metadata_replaces_earlier():
    """Numbers are settings."""
    run_state = run_state_after(
        make_result(
            Event.START, rank=0, attributes={"framework": "torch"}, values={"world_size": 2.0}
        ),
        metadata(rank=0, framework="trl", values={"beta": 0.1, "global_step": 4.0}),
    )

    assert run_state.reported.texts == {"framework": "trl"}
    assert run_state.reported.settings == {"world_size": 2.0, "beta": 0.1}


def test_the_start_of_a_late_rank_does_not_replace_metadata():
    """Its start record has the framework torch, before it knows better."""
    start = {"framework": "torch", "host": "node1"}
    run_state = run_state_after(
        make_result(Event.START, rank=0, attributes={"framework": "torch"}),
        metadata(rank=0, framework="trl"),
        make_result(Event.START, rank=1, attributes=start),
    )

    assert run_state.reported.texts == {"framework": "trl", "host": "node1"}


def test_patches_are_stored_per_rank_and_cleared_by_a_new_attempt():
    run_state = run_state_after(
        make_result(Event.START, rank=0),
        metadata(rank=0, **{"patch/trl": "on"}),
        metadata(rank=1, **{"patch/trl": "off: KeyError in on_log"}),
        metadata(**{"patch/trl": "on"}),
    )
    assert run_state.reported.patches == {("trl", 0): "on", ("trl", 1): "off: KeyError in on_log"}
    assert run_state.reported.texts == {}

    run_state.update(make_result(Event.START, rank=0, attempt=1).record)
    assert run_state.reported.patches == {}


def test_metadata_is_bounded():
    many = {f"key{i}": "x" * 5000 for i in range(MAX_METADATA_KEYS + 9)}
    run_state = run_state_after(metadata(values=dict.fromkeys(many, 1.0), **many))

    assert (len(run_state.reported.texts), len(run_state.reported.settings)) == (
        MAX_METADATA_KEYS,
        MAX_METADATA_KEYS,
    )
    assert len(run_state.reported.texts["key0"]) == MAX_METADATA_CHARS


def test_node_measurements_are_no_liveness():
    run_state = run_state_after(
        make_result(Event.HEARTBEAT, values={"ranks_running": 1.0, "host_cpu": 0.4})
    )

    assert run_state.liveness == {"ranks_running": 1.0}


def test_metadata_alone_does_not_show_a_rank():
    """A restarted agent reads the stored metadata of ranks that may be gone."""
    assert run_state_after(metadata(rank=3, **{"patch/trl": "on"})).shown_ranks == {}
