"""Series of the cases of a run: their alert, values and sentences."""

from dataclasses import replace

from support.expositions import make_exposition, samples
from support.results import (
    DIAGNOSIS,
    NOW,
    RUN,
    case_result,
    make_incident,
    step_result,
)

from sentinel.metrics.case_families import CAUSE_HOLD_SECONDS, MAX_CASES, MAX_TEXT_BYTES
from sentinel.metrics.collector import MAX_ENDED_ALERTS
from sentinel.metrics.run_state import RunState
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import IncidentState, RunTier
from sentinel.model.message import build_message
from sentinel.model.notification import NotificationReason, RunContext
from sentinel.store.silences import Silence, Suppression

CASE = "kl_blowup#1"


def of_metric(shown, name):
    """Values of one metric by its label values, which are in the order of the label names."""
    return {key[1:]: value for key, value in shown.items() if key[0] == f"sentinel_case_{name}"}


def firing(exposition):
    """The alerts (case, cause, severity) that fire, and those that have ended."""
    values = of_metric(samples(exposition), "firing")
    alerts = {(case, cause, severity): n for (case, cause, _, severity), n in values.items()}
    return [[alert for alert, n in alerts.items() if n == value] for value in (1, 0)]


def case(reason=NotificationReason.OPENED, seconds=0.0, **changes):
    """A result with the case of a KL blow-up, some seconds after it opened."""
    fields = {"diagnosis": None} | changes
    result = case_result(reason, of=[make_incident()])
    (notification,) = result.case_notifications
    changed = replace(notification, time=NOW + seconds, **fields)
    return replace(result, case_notifications=(changed,))


def replace_time(result, time):
    return replace(result, record=replace(result.record, time=time))


def severe(severity):
    return {"incident": replace(make_incident(), severity=severity)}


def test_a_case_has_its_values_and_its_detectors():
    shown = samples(make_exposition(case_result()))

    assert of_metric(shown, "firing") == {(CASE, "policy_collapse", "kl_blowup", "critical"): 1}
    assert of_metric(shown, "onset_step") == {(CASE,): 86}
    assert of_metric(shown, "last_good_step") == {(CASE,): 80}
    assert of_metric(shown, "confidence") == {(CASE,): 0.826}
    assert of_metric(shown, "opened_timestamp_seconds") == {(CASE,): NOW}
    assert of_metric(shown, "incident") == {(CASE, "kl_blowup"): 1, (CASE, "reward_collapse"): 1}


def test_the_info_series_names_cause_detector_rank_title_and_place():
    of_rank = replace(make_incident(), finding=Finding("KL is 2 nats.", rank=3))
    result = case_result(of=[of_rank])
    title = build_message(*result.case_notifications, None).title
    labels = CASE, "policy_collapse", "kl_blowup", f"run {RUN}", "3", "critical", title

    assert of_metric(samples(make_exposition(result)), "info") == {labels: 1}


def test_every_sentence_of_the_notification_is_a_label():
    context = RunContext(
        host="gpu-1",
        checkpoint_path="/runs/80",
        page_url="http://gpu-1:13130",
        runbook_url="http://gpu-1:13130/runbooks/policy_collapse",
    )
    result = case_result()
    (notification,) = result.case_notifications
    described = replace(notification, context=context)
    shown = samples(make_exposition(replace(result, case_notifications=(described,))))
    texts = of_metric(shown, "text_timestamp_seconds")
    message = build_message(described, None)

    assert set(texts.values()) == {NOW}
    assert " ago" not in message.since
    assert {(part, line): text for _, line, part, text in texts} == {
        ("title", "1"): message.subject,
        ("name", "1"): "Policy collapse",
        ("place", "1"): f"run {RUN} (on gpu-1)",
        ("cause", "1"): "policy_collapse",
        ("since", "1"): message.since,
        ("fact", "1"): "Step 86: KL is 2 nats.",
        ("fact", "2"): "The KL coefficient is 0.0001.",
        ("remedy", "1"): "Go back.",
        ("checkpoint", "1"): "step 80, /runs/80",
        ("link", "1"): "Run page: http://gpu-1:13130",
        ("runbook", "1"): "http://gpu-1:13130/runbooks/policy_collapse",
    } | {("also", str(line)): text for line, text in enumerate(message.also, start=1)}


def test_a_resolved_case_leaves_only_its_alert_with_the_value_0():
    """The rules use the last values of a killed agent."""
    shown = make_exposition(case())
    assert firing(shown) == [[(CASE, "none", "critical")], []]

    shown.update(case(NotificationReason.RESOLVED))
    assert firing(shown) == [[], [(CASE, "none", "critical")]]
    assert not of_metric(samples(shown), "info")
    assert not of_metric(samples(shown), "incident")


def test_a_case_whose_incidents_are_clear_fires_until_it_is_resolved():
    """An alert that followed every flap would be sent each time."""
    clear = replace(make_incident(), state=IncidentState.RESOLVED)
    shown = make_exposition(case(), replace(step_result(), changed_incidents=(clear,)))

    assert firing(shown)[0] == [(CASE, "none", "critical")]
    assert not of_metric(samples(shown), "incident")


def test_a_cause_that_is_named_before_the_first_scrape_is_part_of_the_alert():
    shown = make_exposition(case())
    shown.update(case(NotificationReason.UPDATED, diagnosis=DIAGNOSIS))

    assert firing(shown) == [[(CASE, "policy_collapse", "critical")], []]


def test_a_cause_that_is_named_later_does_not_send_the_alert_again():
    """Its texts have the cause."""
    shown = make_exposition(case())
    firing(shown)
    shown.update(case(NotificationReason.UPDATED, diagnosis=DIAGNOSIS))

    assert firing(shown) == [[(CASE, "none", "critical")], []]
    parts = {key[2]: key[3] for key in of_metric(samples(shown), "text_timestamp_seconds")}
    assert parts["cause"] == "policy_collapse"


def test_a_warning_without_a_cause_is_held_back_for_some_seconds():
    """A critical case, and one with a cause, are not."""
    now = NOW + CAUSE_HOLD_SECONDS - 0.1
    shown = make_exposition(case(**severe(Severity.WARNING)), clock=lambda: now)
    assert firing(shown)[0] == []

    shown.clock = lambda: NOW + CAUSE_HOLD_SECONDS
    assert firing(shown)[0] == [(CASE, "none", "warning")]
    assert firing(make_exposition(case(), clock=lambda: now))[0]
    explained = case(**severe(Severity.WARNING), diagnosis=DIAGNOSIS)
    assert firing(make_exposition(explained, clock=lambda: now))[0]


def test_a_case_that_gets_worse_is_another_alert():
    shown = make_exposition(case(**severe(Severity.WARNING)))
    assert firing(shown) == [[(CASE, "none", "warning")], []]

    shown.update(case(NotificationReason.ESCALATED, 600, diagnosis=DIAGNOSIS))
    assert firing(shown) == [[(CASE, "policy_collapse", "critical")], [(CASE, "none", "warning")]]


def test_the_tier_limits_the_severity_of_the_alert():
    shown = make_exposition(case())
    shown.set_suppression(Suppression(RunTier.NOTIFY))

    assert firing(shown)[0] == [(CASE, "none", "warning")]


def test_the_alert_of_a_silenced_case_does_not_fire():
    """A case with one incident that is not silenced does."""
    shown = make_exposition(case_result())
    both = tuple(Silence(name, NOW, NOW + 60) for name in ("kl_blowup", "reward_collapse"))
    shown.set_suppression(Suppression(silences=both[:1]))
    assert firing(shown)[0] == [(CASE, "policy_collapse", "critical")]

    shown.set_suppression(Suppression(silences=both))
    assert firing(shown) == [[], [(CASE, "policy_collapse", "critical")]]


def test_the_number_of_series_and_the_size_of_a_text_are_bounded():
    causes = [replace(DIAGNOSIS, title=f"{n:04}" + "x" * 9999) for n in range(MAX_CASES + 50)]
    shown = make_exposition(
        *(case_result(of=[make_incident(episode=n)], diagnosis=c) for n, c in enumerate(causes))
    )
    titles = [key[-1] for key in of_metric(samples(shown), "info")]

    assert len(titles) == MAX_CASES
    assert {len(title) for title in titles} == {MAX_TEXT_BYTES}


def test_the_number_of_ended_alerts_is_bounded():
    shown = make_exposition()
    for n in range(MAX_ENDED_ALERTS + 5):
        shown.update(case_result(of=[make_incident(episode=n)]))
        samples(shown)
        shown.update(case_result(NotificationReason.RESOLVED, of=[make_incident(episode=n)]))

    ended = firing(shown)[1]
    assert len(ended) == MAX_ENDED_ALERTS
    assert ended[-1][0] == f"kl_blowup#{MAX_ENDED_ALERTS + 4}"


def test_the_time_to_detect_is_from_the_onset_to_the_first_alert_of_the_case():
    """Its incidents fired at step 100; the onset is step 86."""
    steps = [
        replace_time(step_result(step=step), NOW - 2.0 * (100 - step)) for step in (80, 90, 100)
    ]
    exposition = make_exposition(*steps, case(seconds=500.0, diagnosis=DIAGNOSIS))

    assert of_metric(samples(exposition), "time_to_detect_seconds") == {(CASE,): 28.0}


def test_the_time_of_a_step_in_a_long_run_is_not_that_of_one_long_before_it():
    state = RunState(RUN)
    for step in range(1, 5001):
        state.update(replace_time(step_result(step=step), NOW + 2.0 * step).record)

    assert state.time_of_step(4999) == NOW + 2.0 * 4999
    assert state.time_of_step(5001) == state.step_times.values[-1]


def test_an_onset_before_the_first_step_that_the_agent_saw_has_no_time_to_detect():
    exposition = make_exposition(replace_time(step_result(step=95), NOW), case(diagnosis=DIAGNOSIS))

    assert of_metric(samples(exposition), "time_to_detect_seconds") == {}


def test_the_time_of_an_onset_is_that_of_the_newest_course_of_the_run():
    """From step 85 on, the run took its steps again after a restart."""
    times = {80: 0.0, 90: 10.0, 100: 20.0, 85: 100.0, 95: 110.0}
    steps = [replace_time(step_result(step=step), NOW - 200 + time) for step, time in times.items()]
    exposition = make_exposition(*steps, case(diagnosis=replace(DIAGNOSIS, onset_step=90)))

    assert of_metric(samples(exposition), "time_to_detect_seconds") == {(CASE,): 95.0}
