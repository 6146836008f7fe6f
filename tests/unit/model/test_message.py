"""Tests of the message: its dates, facts, headline and links."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from support.notifications import CONTEXT, NOW, make_notification, with_diagnosis

from sentinel.model.diagnosis import Evidence
from sentinel.model.incident import Resolution
from sentinel.model.message import DRILL_NOTE, Link, build_message
from sentinel.model.notification import NotificationReason, RunContext


def test_the_headline_names_the_finding_and_the_run():
    notification = replace(make_notification(), context=CONTEXT)

    assert build_message(notification, NOW).headline == (
        "Critical: KL is 2 nats, run grpo-7b (Qwen/Qwen2.5-7B on gpu-3)"
    )


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"model": ""}, "run grpo-7b (train.py on gpu-3)"),
        ({"model": "", "command": ""}, "run grpo-7b (on gpu-3)"),
        ({"host": ""}, "run grpo-7b (Qwen/Qwen2.5-7B)"),
    ],
)
def test_the_place_names_what_is_known_of_the_run(changes, place):
    notification = replace(make_notification(), context=replace(CONTEXT, **changes))

    assert build_message(notification, NOW).place == place


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        (NotificationReason.OPENED, "Critical"),
        (NotificationReason.ESCALATED, "Now critical"),
        (NotificationReason.UPDATED, "Update, critical"),
        (NotificationReason.RESOLVED, "Resolved"),
    ],
)
def test_the_label_is_the_severity_or_the_reason(reason, label):
    assert build_message(make_notification(reason), NOW).label == label


def test_only_the_start_of_a_long_finding_is_in_the_headline():
    message = build_message(
        make_notification(summary="Rank 1 was killed; rank 0 failed after it. See below."), NOW
    )

    assert message.subject == "Rank 1 was killed"
    assert message.facts[:2] == ("Rank 0 failed after it.", "See below.")


def test_the_age_and_the_time_of_the_finding_are_stated():
    since = build_message(make_notification(), NOW + 240).since

    assert since == (
        "Since step 90; found at step 100, 4 min ago (2023-11-14 22:13:20 UTC)."
        " Values are of step 120."
    )


def test_the_step_of_the_values_is_stated_only_where_they_changed():
    notification = make_notification(summary="NaN or infinite: loss.", evidence={"loss": "nan"})
    incident = replace(notification.incident, opened_summary="NaN or infinite: loss.")
    later = replace(incident, opened_summary="KL is 1 nat.", finding_step=117)

    assert "Values" not in build_message(replace(notification, incident=incident), NOW).since
    assert build_message(replace(notification, incident=later), NOW).since.endswith(
        " Values are of step 117."
    )


@pytest.mark.parametrize(
    ("summary", "subject"),
    [
        ("KL is 2 nats.", "As of step 117: KL is 2 nats"),
        # It has no value that could be another one now.
        ("NaN or infinite: loss.", "NaN or infinite: loss"),
    ],
)
def test_where_it_is_shown_later_a_finding_has_its_step(summary, subject):
    notification = make_notification(summary=summary)
    found = replace(notification, incident=replace(notification.incident, finding_step=117))

    assert build_message(found, NOW, is_dated=True).subject == subject


def test_where_it_is_shown_later_a_cause_has_the_step_of_its_finding():
    notification = make_notification()
    found = replace(notification, incident=replace(notification.incident, finding_step=117))
    message = build_message(with_diagnosis(found), NOW, is_dated=True)

    assert message.subject == "Policy collapse, as of step 117: KL is 2 nats"


def test_without_the_time_of_sending_there_is_no_age():
    assert "ago" not in build_message(make_notification(), None).since


def test_a_time_that_is_none_is_left_out():
    notification = make_notification()
    broken = replace(notification, incident=replace(notification.incident, opened_time=nan))

    assert build_message(broken, NOW).since.startswith("Since step 90; found at step 100.")


def test_a_cause_is_named_with_its_strongest_evidence_and_dated_facts():
    message = build_message(with_diagnosis(), NOW)

    assert message.subject == "Policy collapse: KL is 2 nats"
    assert message.title == "Policy collapse"
    assert message.facts == (
        "Step 86: KL is 2 nats.",
        "Step 95: The reward fell.",
        "The KL coefficient is 0.0001.",
    )
    assert message.also == ("Reward collapse, warning, since step 90",)


def test_the_headline_of_a_cause_names_the_rank_though_its_evidence_is_long():
    rank = "Rank 1 is slower in computing, before its backward pass, than the other ranks"
    text = f"{rank}: by 80% of the step time (median of the last 32 records)."
    notification = with_diagnosis()
    diagnosis = replace(
        notification.diagnosis, title="Slow rank", evidence=(Evidence(9.0, text, 86),)
    )
    message = build_message(replace(notification, diagnosis=diagnosis), NOW)

    assert message.subject == f"Slow rank: {rank}"
    assert message.facts == (f"Step 86: {text}",)


def test_what_the_finding_states_is_not_repeated():
    evidence = {"kl_nats": 2.0, "limit_nats": 0.4}
    message = build_message(make_notification(summary="KL is 2 nats.", evidence=evidence), NOW)

    assert message.facts == ("Limit: 0.4 nats",)


def test_a_number_that_the_finding_states_rounded_is_not_repeated():
    evidence = {"kl_level_nats": 0.2377, "kl_expected_nats": 0.02106, "rank_count": 5.0}
    summary = "KL is 0.238 nats (median of the last 8); its trend predicts 0.0211."
    message = build_message(make_notification(summary=summary, evidence=evidence), NOW)

    assert message.facts == ("Its trend predicts 0.0211.", "Rank count: 5")


def test_a_resolution_states_what_it_was_and_how_long_it_lasted():
    notification = make_notification(NotificationReason.RESOLVED)
    incident = replace(
        notification.incident, title="KL blow-up", opened_summary="KL was 2 nats.", flaps=2
    )
    message = build_message(replace(notification, incident=incident), NOW + 400)

    assert message.status == "resolved"
    assert message.subject == "KL blow-up"
    assert message.since == (
        "It lasted from step 90 to step 120, until 2023-11-14 22:14:20 UTC, "
        "1 min after it was found."
    )
    assert message.facts == ("At step 100: KL was 2 nats.", "It recurred 2 times.")
    assert (message.remedy, message.checkpoint) == ("", "")


@pytest.mark.parametrize(
    ("resolution", "subject"),
    [
        (Resolution.CLEARED, "KL blow-up"),
        (Resolution.RUN_FINISHED, "KL blow-up lasted until the run finished"),
        (Resolution.RUN_FAILED, "KL blow-up lasted until the run failed"),
        (Resolution.TRAINING_FINISHED, "KL blow-up lasted until the training finished"),
        (Resolution.STAGE_FINISHED, "KL blow-up lasted until another stage began"),
        (Resolution.RESTARTED, "KL blow-up"),
    ],
)
def test_the_headline_of_a_resolution_says_that_only_the_run_ended(resolution, subject):
    notification = make_notification(NotificationReason.RESOLVED)
    incident = replace(notification.incident, title="KL blow-up", resolution=resolution)

    assert build_message(replace(notification, incident=incident), NOW).subject == subject


def test_links_that_are_not_known_are_left_out():
    notification = replace(make_notification(), context=replace(CONTEXT, dashboard_url=""))

    assert build_message(notification, NOW).links == (
        Link("Run page", "http://gpu-3:13130"),
        Link("Runbook", "http://gpu-3:13130/runbooks/kl_blowup"),
    )


def test_the_checkpoint_has_its_path_if_that_exists():
    notification = replace(with_diagnosis(), context=CONTEXT)

    assert build_message(notification, NOW).checkpoint == "step 80, /out/checkpoint-80"
    assert build_message(with_diagnosis(), NOW).checkpoint == "step 80"


def test_the_headline_is_cut_within_the_finding():
    long = make_notification(summary="Loss " * 100)

    cut = build_message(long, NOW).cut_headline(60)

    assert cut.endswith("Loss…, run grpo-7b")
    assert len(cut) <= 60


@pytest.mark.parametrize(
    ("max_chars", "rest"),
    [
        (150, " 39 (a.py:8 in main): bad sample, run grpo-7b (Qwen/Qwen2.5-7B on gpu-3)"),
        (100, " 39 (a.py:8 in main): bad sample, run grpo-7b"),
        (75, " 39: bad sample, run grpo-7b"),
        (60, "…, run grpo-7b"),
    ],
)
def test_the_headline_loses_what_is_in_parentheses_before_names(max_chars, rest):
    raised = "Rank 1 raised ValueError at step 39 (a.py:8 in main): bad sample."
    notification = replace(make_notification(summary=raised), context=CONTEXT)

    cut = build_message(notification, NOW).cut_headline(max_chars)

    assert cut == f"Critical: Rank 1 raised ValueError at step{rest}"


def test_a_drill_is_marked_in_headline_and_notes():
    drill = replace(make_notification(), context=RunContext(is_drill=True), notes=("Late.",))
    message = build_message(drill, None)

    assert message.headline.startswith("DRILL, critical: ")
    assert message.notes == (DRILL_NOTE, "Late.")
    assert DRILL_NOTE not in build_message(make_notification(), None).notes
