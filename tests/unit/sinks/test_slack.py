"""Tests of the Slack message: its content, its limits, and untrusted text in it."""

import json
import unicodedata
from dataclasses import replace

import pytest
from pydantic import ValidationError
from support.notifications import make_notification, with_diagnosis

from sentinel.model.delivery import Response
from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.sinks.slack import Slack

URL = "https://hooks.slack.com/services/T/B/X"


def message(notification, delivery_id="0123456789abcdef", **settings):
    return json.loads(Slack(url=URL, **settings).render(notification, delivery_id, None).body)


def texts(notification, **settings):
    """Every text of the message in order."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            if isinstance(node.get("text"), str):
                found.append(node["text"])
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(message(notification, **settings))
    return found


def test_a_notification_is_rendered_with_all_its_parts():
    assert message(make_notification(rank=3)) == {
        "text": ":red_circle: Critical: KL is 2 nats (since step 90). Run grpo-7b.",
        "blocks": [
            {
                "type": "header",
                "text": {
                    "type": "plain_text",
                    "text": ":red_circle: Critical: KL is 2 nats (since step 90)",
                },
            },
            {
                "type": "section",
                "fields": [
                    markdown("*Run*\ngrpo-7b"),
                    markdown("*Step*\n120"),
                    markdown("*Since step*\n90"),
                    markdown("*Detector*\nkl_blowup"),
                    markdown("*Signal*\nkl_ref"),
                    markdown("*Severity*\ncritical"),
                    markdown("*Rank*\n3"),
                ],
            },
            section("*Evidence*\nkl = 2\nlimit = 0.4"),
            section("*What to do*\nRaise the KL coefficient."),
            {
                "type": "context",
                "elements": [markdown("grpo-7b/kl_blowup/rank3#1:opened · 01234567")],
            },
        ],
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "link_names": 0,
    }


def test_a_cause_is_shown_with_its_confidence_and_evidence():
    rendered = message(with_diagnosis())
    shown = [block["text"]["text"] for block in rendered["blocks"] if "text" in block]

    assert rendered["text"] == (
        ":red_circle: Critical: policy collapse since step 86 (likely, 83 %). Run grpo-7b."
    )
    assert shown == [
        ":red_circle: Critical: policy collapse since step 86 (likely, 83 %)",
        shown[1],
        "*What to do*\nGo back, and raise \u02cbbeta\u02cb.",
        "*Also in this case*\n• reward_collapse, warning, since step 90",
    ]
    assert shown[1].splitlines() == [
        "*Cause: policy collapse (likely, 83 %)*",
        "• since step 86: KL is 2 nats.",
        "• since step 95: The reward fell.",
        "• The KL coefficient is 0.0001.",
    ]
    assert {"*Since step*\n86", "*Last checkpoint before*\nstep 80"} <= set(texts(with_diagnosis()))


def test_other_incidents_of_a_case_without_a_cause_are_listed():
    notification = replace(make_notification(), others=with_diagnosis().others)

    assert texts(notification)[0] == texts(make_notification())[0]
    assert "*Also in this case*\n• reward_collapse, warning, since step 90" in texts(notification)
    assert "*What to do*\nRaise the KL coefficient." in texts(notification)


def test_a_resolved_case_names_its_cause():
    rendered = message(with_diagnosis(make_notification(NotificationReason.RESOLVED)))

    assert rendered["text"] == (
        ":white_check_mark: Resolved at step 120: policy collapse. Run grpo-7b."
    )
    assert rendered["blocks"][1] == section("It was: KL is 2 nats.")


def section(text):
    return {"type": "section", "text": markdown(text)}


def markdown(text):
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def test_a_resolved_incident_names_its_detector_and_finding():
    resolved = message(make_notification(NotificationReason.RESOLVED))

    assert resolved["text"] == (":white_check_mark: Resolved at step 120: kl_blowup. Run grpo-7b.")
    assert resolved["blocks"][1] == section("It was: KL is 2 nats.")
    assert "What to do" not in json.dumps(resolved)
    assert "*Evidence*" not in json.dumps(resolved)


def test_the_headline_names_an_escalation():
    headline = "Escalated to critical: KL is 2 nats (since step 90)"

    shown = texts(make_notification(NotificationReason.ESCALATED))
    assert shown[0] == f":red_circle: {headline}. Run grpo-7b."


def test_a_summary_that_the_headline_cuts_is_shown_in_full():
    long = f"Loss jumped to 5.2 where 2.1 is usual, {'and ' * 40}stays there."
    shown = texts(make_notification(summary=f"{long} It is not finite."))

    assert shown[1].endswith("… (since step 90)")
    assert shown[2] == f"{long} It is not finite."


def test_a_step_in_the_summary_is_not_repeated():
    shown = texts(make_notification(summary="No step past step 120 for 600 s (limit 300 s)."))

    assert shown[1] == ":red_circle: Critical: No step past step 120 for 600 s (limit 300 s)"


def test_severities_have_different_emoji():
    headlines = [texts(make_notification(severity=severity))[0] for severity in Severity]

    assert len({headline.split()[0] for headline in headlines}) == 3


def test_the_rank_of_a_finding_about_the_run_is_shown():
    notification = make_notification()
    finding = replace(notification.incident.finding, rank=5)
    with_rank = replace(notification, incident=replace(notification.incident, finding=finding))

    assert "*Rank*\n5" in texts(with_rank)
    assert not any("*Rank*" in text for text in texts(make_notification()))


HOSTILE = [
    "<!channel> <!here> <!everyone>",
    "@channel @here @everyone",
    "<@U0123456> <#C0123456> <!subteam^S1>",
    "<http://evil.example|ok>",
    "a & b < c > d",
    "evil\u202egnp.exe \u2066x\u2069",
    "zero\u200bwidth\ufeff\u00ad joiner\u200d",
    "line\nbreak\r\u2028\u2029\x00\x1b[31m",
    "`code` ```block```",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_untrusted_text_has_no_effect(text):
    """Untrusted are names of runs, detectors and evidence, summaries and causes."""
    notification = make_notification(run=text, detector=text, summary=text, evidence={text: text})
    cause = {"title": text, "cause": text, "remedy": text, "evidence": (Evidence(0.5, text, 3),)}
    named = with_diagnosis(notification, others=[text], **cause)
    shown = "\n".join([*texts(notification), *texts(named)])

    assert "<" not in shown
    assert ">" not in shown
    assert "@" not in shown
    assert "`" not in shown
    hidden = [c for c in shown if unicodedata.category(c).startswith("C") and c != "\n"]
    assert hidden == []


def test_every_message_is_within_the_limits_of_slack():
    """Escaping makes some characters five times as long."""
    for filler in ("word ", "&", "\U0001f525"):
        long = filler * 20_000
        notification = make_notification(
            run=long,
            detector=long,
            summary=long,
            evidence={f"{long}{n}": long for n in range(99)},
        )
        incident = replace(notification.incident, remedy=long)
        notification = replace(notification, incident=incident, notes=(long,) * 9)
        evidence = tuple(Evidence(0.5, long, step) for step in range(99))
        named = with_diagnosis(
            notification, others=[long] * 99, title=long, remedy=long, evidence=evidence
        )
        for each in (notification, named, replace(named, reason=NotificationReason.RESOLVED)):
            assert_within_limits(each)


def assert_within_limits(notification):
    blocks = message(notification)["blocks"]

    assert len(blocks[0]["text"]["text"]) <= 150
    assert len(blocks) <= 50
    for block in blocks[1:]:
        assert len(block.get("text", {}).get("text", "")) <= 3000
        assert len(block.get("fields", [])) <= 10
        assert all(len(field["text"]) <= 2000 for field in block.get("fields", []))
    assert sum(len(text) for text in texts(notification)) < 13_000


def test_an_escape_is_never_cut():
    shown = texts(make_notification(summary="&" * 5000))[2]

    assert shown.removesuffix("…").replace("&amp;", "") == ""


def test_the_link_contains_run_and_detector():
    link = "https://grafana.example/d/run?var-run={run}#{detector}"

    assert (
        "<https://grafana.example/d/run?var-run=a%2Fb%3E%7Cc#kl_blowup|Details>"
        in texts(make_notification(run="a/b>|c"), link=link)[-1]
    )


@pytest.mark.parametrize(
    ("status", "body", "is_accepted"),
    [
        (200, "ok", True),
        (200, "ok\n", True),
        (200, "", False),
        (200, "<html>ok</html>", False),
        (200, "okay, but log in first", False),
        (200, '{"ok": true}', False),
        (201, "ok", False),
        (404, "no_service", False),
    ],
)
def test_only_the_response_of_slack_is_accepted(status, body, is_accepted):
    assert Slack(url=URL).is_accepted(Response(status, body)) is is_accepted


@pytest.mark.parametrize("url", ["", "http://hooks.slack.com/services/CANARY", "CANARY", 5])
def test_an_invalid_url_is_refused_and_not_quoted(url):
    with pytest.raises(ValidationError) as caught:
        Slack(url=url)
    assert "CANARY" not in str(caught.value)


def test_recurrences_checkpoint_and_notes_are_shown():
    notification = make_notification(NotificationReason.ESCALATED)
    incident = replace(notification.incident, flaps=2, last_good_step=80)
    notes = ("Acknowledged by <ana>: mine",)
    shown = str(message(replace(notification, incident=incident, notes=notes)))

    assert "*Recurred*\\n2 times" in shown
    assert "*Last checkpoint before*\\nstep 80" in shown
    assert "Acknowledged by &lt;ana&gt;: mine" in shown
