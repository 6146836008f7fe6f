"""Tests of the Slack message: its content, its limits, and untrusted text in it."""

import json
import unicodedata
from dataclasses import replace

import pytest
from pydantic import ValidationError
from support.notifications import CONTEXT, NOW, make_notification, with_diagnosis

from sentinel.model.delivery import Response
from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.sinks.slack import Slack

URL = "https://hooks.slack.com/services/T/B/X"


def message(notification, delivery_id="0123456789abcdef"):
    return json.loads(Slack(url=URL).render(notification, delivery_id, None).body)


def texts(notification):
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

    walk(message(notification))
    return found


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Every message is sent four minutes after its incident opened."""
    monkeypatch.setattr("time.time", lambda: NOW + 240)


def test_a_notification_is_rendered_with_all_its_parts():
    assert message(replace(make_notification(rank=3), context=CONTEXT)) == {
        "text": ":red_circle: Critical: KL is 2 nats, run grpo-7b (Qwen/Qwen2.5-7B on gpu-3)",
        "blocks": [
            {
                "type": "header",
                "text": {
                    "type": "plain_text",
                    "text": ":red_circle: Critical: KL is 2 nats, "
                    "run grpo-7b (Qwen/Qwen2.5-7B on gpu-3)",
                },
            },
            section(
                "Since step 90; found at step 100, 4 min ago (2023-11-14 22:13:20 UTC)."
                " Values are of step 120.\n"
                "• Limit: 0.4"
            ),
            section("*What to do*\nRaise the KL coefficient."),
            {
                "type": "context",
                "elements": [
                    markdown(
                        "Run grpo-7b, command train.py, model Qwen/Qwen2.5-7B, host gpu-3, "
                        "rank 3, step 120 · 01234567"
                    ),
                    markdown(
                        "<http://gpu-3:13130|Run page>"
                        " · <https://grafana.example/d/run?var-run=grpo-7b|Dashboard>"
                        " · <http://gpu-3:13130/runbooks/kl_blowup|Runbook>"
                    ),
                ],
            },
        ],
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "link_names": 0,
    }


def test_a_cause_is_shown_with_its_confidence_and_evidence():
    rendered = message(replace(with_diagnosis(), context=CONTEXT))
    shown = [block["text"]["text"] for block in rendered["blocks"] if "text" in block]

    assert shown == [
        (
            ":red_circle: Critical: Policy collapse: KL is 2 nats, "
            "run grpo-7b (Qwen/Qwen2.5-7B on gpu-3)"
        ),
        (
            "Since step 86; found at step 100, 4 min ago (2023-11-14 22:13:20 UTC)."
            " Confidence in the cause: likely, 83 %.\n"
            "• Step 86: KL is 2 nats.\n• Step 95: The reward fell.\n• The KL coefficient is 0.0001."
        ),
        "*What to do*\nGo back, and raise 'beta'.",
        "*Last good checkpoint*\nstep 80, /out/checkpoint-80",
        "*Also in this case*\n• Reward collapse, warning, since step 90",
    ]


def test_other_incidents_of_a_case_without_a_cause_are_listed():
    notification = replace(make_notification(), others=with_diagnosis().others)

    assert texts(notification)[0] == texts(make_notification())[0]
    assert "*Also in this case*\n• Reward collapse, warning, since step 90" in texts(notification)
    assert "*What to do*\nRaise the KL coefficient." in texts(notification)


def section(text):
    return {"type": "section", "text": markdown(text)}


def markdown(text):
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def test_a_resolved_incident_names_its_title_and_how_long_it_lasted():
    notification = make_notification(NotificationReason.RESOLVED)
    incident = replace(notification.incident, opened_summary="KL is 2 nats.", title="KL blow-up")
    resolved = message(replace(notification, incident=incident))

    assert resolved["text"] == ":white_check_mark: Resolved: KL blow-up, run grpo-7b"
    assert resolved["blocks"][1] == section(
        "It lasted from step 90 to step 120, until 2023-11-14 22:14:20 UTC, "
        "1 min after it was found.\n"
        "• At step 100: KL is 2 nats."
    )
    assert "What to do" not in json.dumps(resolved)


def test_a_summary_that_the_headline_cuts_keeps_the_run():
    long = f"Loss jumped to 5.2 where 2.1 is usual, {'and ' * 40}more."
    shown = texts(make_notification(summary=f"{long} It is not finite."))

    assert shown[1].endswith("…, run grpo-7b")
    assert shown[2] == long.rstrip(".")
    assert "It is not finite." in shown[3]


def test_severities_have_different_emoji():
    headlines = [texts(make_notification(severity=severity))[0] for severity in Severity]

    assert len({headline.split()[0] for headline in headlines}) == 3


def test_the_rank_of_a_finding_about_the_run_is_shown():
    notification = make_notification()
    finding = replace(notification.incident.finding, rank=5)
    with_rank = replace(notification, incident=replace(notification.incident, finding=finding))

    assert "Run grpo-7b, rank 5, step 120 · 01234567" in texts(with_rank)
    assert "Run grpo-7b, step 120 · 01234567" in texts(make_notification())


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


@pytest.mark.fault("X8")
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


@pytest.mark.fault("X8")
def test_an_escape_is_never_cut():
    shown = texts(make_notification(summary="&" * 5000))[0]
    escapes = shown.removeprefix(":red_circle: Critical: ").removesuffix("…, run grpo-7b")

    assert escapes.replace("&amp;", "") == ""


def test_a_link_is_quoted_and_an_address_of_another_scheme_left_out():
    context = replace(
        CONTEXT,
        page_url="https://gpu-3/a b|c>d",
        dashboard_url="javascript:alert(1)",
        runbook_url="https://gpu-3/" + "x" * 9000,
    )

    assert texts(replace(make_notification(), context=context))[-1] == (
        "<https://gpu-3/a%20b%7Cc%3Ed|Run page>"
    )


@pytest.mark.fault("D6")
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


def test_notes_are_shown():
    notes = ("Acknowledged by <ana>: mine",)
    shown = str(message(replace(make_notification(NotificationReason.ESCALATED), notes=notes)))

    assert "Now critical: KL is 2 nats" in shown
    assert "Acknowledged by &lt;ana&gt;: mine" in shown
