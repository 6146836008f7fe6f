"""Every message is within the limits of its receiver, whatever a run, a model or a person wrote."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile_notifications import hostile_notifications
from support.vendors import PAGERDUTY_KEY, discord_refusal, pagerduty_refusal, slack_refusal

from sentinel.sinks.discord import Discord
from sentinel.sinks.pagerduty import Pagerduty
from sentinel.sinks.slack import Slack
from sentinel.sinks.slack_bot import SlackBot
from sentinel.testing import MENTIONS

URL = "https://receiver.example/hook"
SLACK = Slack(url=URL)
SLACK_BOT = SlackBot(token="xoxb-1", channel="training", app_token="xapp-1")
DISCORD = Discord(url=URL)
PAGERDUTY = Pagerduty(routing_key=PAGERDUTY_KEY)
HALF_ESCAPE = re.compile(r"&(?!amp;|lt;|gt;)")


def contents(delivery):
    """The JSON of a delivery and of what follows it."""
    while delivery is not None:
        yield json.loads(delivery.body)
        delivery = delivery.follow_up


@settings(max_examples=40)
@given(hostile_notifications(), st.sampled_from([None, "C1/1700000000.000001"]))
def test_no_vendor_refuses_a_message(hostile, receipt):
    notification = hostile.notification
    for sink in (SLACK, SLACK_BOT):
        for content in contents(sink.render(notification, "0" * 32, receipt)):
            assert slack_refusal(content) == ""
            shown = json.dumps(content["blocks"], ensure_ascii=False)
            assert HALF_ESCAPE.search(shown) is None, "an escape was cut"
            assert [each for each in MENTIONS if each in shown] == []
    for content in contents(DISCORD.render(notification, "0" * 32, receipt and "900")):
        assert discord_refusal(content) == []
        assert content["allowed_mentions"] == {"parse": []}
    event = PAGERDUTY.render(notification, "0" * 32, None).body
    assert pagerduty_refusal(json.loads(event), len(event)) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[ok](https://evil.example)", r"\[ok\](https\://evil.example)"),
        ("@everyone <@1> <#2>", "\uff20everyone \\<\uff201\\> \\<\\#2\\>"),
        ("**a** _b_ ~~c~~ ||d||", r"\*\*a\*\* \_b\_ \~\~c\~\~ \|\|d\|\|"),
        ("> # - `x`", r"\> \# - \`x\`"),
    ],
)
def test_markup_of_discord_is_escaped(text, shown):
    from support.notifications import make_notification

    content = json.loads(DISCORD.render(make_notification(summary=text), "0" * 32, None).body)

    assert shown in content["content"]
