"""Slack: a message says what, where and what to do, and what others wrote can do nothing in it."""

import json
import unicodedata
from dataclasses import replace

import pytest
from pydantic import ValidationError
from support.notifications import diagnosed, page

from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.sinks.slack import Slack

URL = "https://hooks.slack.com/services/T/B/X"


def message(told, identity="0123456789abcdef", **settings):
    return json.loads(Slack(url=URL, **settings).render(told, identity).body)


def texts(told, **settings):
    """Every piece of text that Slack would show, in order."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            if isinstance(node.get("text"), str):
                found.append(node["text"])
            for inner in node.values():
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk(message(told, **settings))
    return found


def test_words_the_whole_page():
    told = page(rank=3)

    assert message(told) == {
        "text": ":red_circle: CRITICAL: kl_blowup on grpo-7b. KL is 2 nats.",
        "blocks": [
            {
                "type": "header",
                "text": {
                    "type": "plain_text",
                    "text": ":red_circle: CRITICAL: kl_blowup on grpo-7b",
                },
            },
            section("KL is 2 nats."),
            {
                "type": "section",
                "fields": [
                    markdown("*Run*\ngrpo-7b"),
                    markdown("*Step*\n120"),
                    markdown("*Began at step*\n90"),
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


def test_a_cause_is_told_with_how_far_it_is_believed_in_and_why():
    worded = message(diagnosed())
    shown = [block["text"]["text"] for block in worded["blocks"] if "text" in block]

    assert worded["text"] == (
        ":red_circle: CRITICAL: policy collapse on grpo-7b. Likely, 83 %. KL is 2 nats."
    )
    assert shown == [
        ":red_circle: CRITICAL: policy collapse on grpo-7b",
        shown[1],
        "*What to do*\nGo back, and raise \u02cbbeta\u02cb.",
        "*Told of here as well*\n• reward_collapse, warning, since step 90",
    ]
    assert shown[1].splitlines() == [
        "*Likely, 83 %*",
        "• since step 86: KL is 2 nats.",
        "• since step 95: The reward fell.",
        "• The KL coefficient is 0.0001.",
    ]
    assert {"*Began at step*\n86", "*Last checkpoint before*\nstep 80"} <= set(texts(diagnosed()))


def test_incidents_without_a_cause_are_named_beside_the_first():
    told = replace(page(), others=diagnosed().others)

    assert texts(told)[0] == texts(page())[0]
    assert "*Told of here as well*\n• reward_collapse, warning, since step 90" in texts(told)
    assert "*What to do*\nRaise the KL coefficient." in texts(told)


def test_the_end_of_a_case_names_its_cause():
    worded = message(diagnosed(page(NotificationReason.RESOLVED)))

    assert worded["text"] == (
        ":white_check_mark: RESOLVED: policy collapse on grpo-7b. "
        "Over since step 120. It was: KL is 2 nats."
    )


def section(text):
    return {"type": "section", "text": markdown(text)}


def markdown(text):
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def test_a_page_that_resolves_looks_like_one():
    resolved = message(page(NotificationReason.RESOLVED))

    assert resolved["text"] == (
        ":white_check_mark: RESOLVED: kl_blowup on grpo-7b. "
        "Over since step 120. It was: KL is 2 nats."
    )
    assert "What to do" not in json.dumps(resolved)


def test_a_page_that_worsened_says_so():
    assert texts(page(NotificationReason.ESCALATED))[0].startswith(
        ":red_circle: WORSE, now CRITICAL: "
    )


def test_severities_look_different():
    assert len({texts(page(severity=severity))[0].split()[0] for severity in Severity}) == 3


def test_the_culprit_of_a_finding_about_the_whole_run_is_named():
    told = page()
    finding = replace(told.incident.finding, rank=5)
    told = replace(told, incident=replace(told.incident, finding=finding))

    assert "*Rank*\n5" in texts(told)
    assert not any("*Rank*" in text for text in texts(page()))


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
def test_what_others_wrote_can_do_nothing(text):
    """In a run's name, a metric's name, a summary or evidence alike."""
    told = page(run=text, detector=text, summary=text, evidence={text: text})
    of_cause = {"title": text, "cause": text, "remedy": text, "evidence": (Evidence(0.5, text, 3),)}
    named = diagnosed(told, others=[text], **of_cause)
    shown = "\n".join([*texts(told), *texts(named)])

    assert "<" not in shown
    assert ">" not in shown
    assert "@" not in shown
    assert "`" not in shown
    hidden = [c for c in shown if unicodedata.category(c).startswith("C") and c != "\n"]
    assert hidden == []


def test_everything_stays_within_the_limits_of_slack():
    """Also when escaping makes every character five times as long."""
    for filler in ("word ", "&", "\U0001f525"):
        long = filler * 20_000
        told = page(
            run=long,
            detector=long,
            summary=long,
            evidence={f"{long}{n}": long for n in range(99)},
        )
        told = replace(told, incident=replace(told.incident, remedy=long), notes=(long,) * 9)
        clues = tuple(Evidence(0.5, long, step) for step in range(99))
        named = diagnosed(told, others=[long] * 99, title=long, remedy=long, evidence=clues)
        for each in (told, named, replace(named, reason=NotificationReason.RESOLVED)):
            hold(each)


def hold(told):
    """Every limit of Slack, where something new is told and where it is over."""
    blocks = message(told)["blocks"]

    assert len(blocks[0]["text"]["text"]) <= 150
    assert len(blocks) <= 50
    for block in blocks[1:]:
        assert len(block.get("text", {}).get("text", "")) <= 3000
        assert len(block.get("fields", [])) <= 10
        assert all(len(field["text"]) <= 2000 for field in block.get("fields", []))
    assert sum(len(text) for text in texts(told)) < 13_000


def test_never_cuts_an_escape_in_two():
    shown = texts(page(summary="&" * 5000))[2]

    assert shown.removesuffix("…").replace("&amp;", "") == ""


def test_a_link_leads_to_the_run_and_the_detector():
    link = "https://grafana.example/d/run?var-run={run}#{detector}"

    assert (
        "<https://grafana.example/d/run?var-run=a%2Fb%3E%7Cc#kl_blowup|Look closer>"
        in texts(page(run="a/b>|c"), link=link)[-1]
    )


@pytest.mark.parametrize(
    ("status", "body", "taken"),
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
def test_only_slacks_own_yes_counts(status, body, taken):
    assert Slack(url=URL).accepted(status, body) is taken


@pytest.mark.parametrize("url", ["", "http://hooks.slack.com/services/CANARY", "CANARY", 5])
def test_a_wrong_address_is_refused_and_not_repeated(url):
    with pytest.raises(ValidationError) as caught:
        Slack(url=url)
    assert "CANARY" not in str(caught.value)


def test_what_came_of_it_and_who_has_it_in_hand_are_told():
    worse = page(NotificationReason.ESCALATED)
    known = replace(worse.incident, flaps=2, last_good_step=80)
    told = str(message(replace(worse, incident=known, notes=("Acknowledged by <ana>: mine",))))

    assert "*Came back*\\n2 times" in told
    assert "*Last checkpoint before*\\nstep 80" in told
    assert "Acknowledged by &lt;ana&gt;: mine" in told
