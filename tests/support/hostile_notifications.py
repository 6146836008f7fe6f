"""Notifications with hostile, long and odd texts, for property tests of sinks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from support.notifications import CONTEXT, make_notification, with_diagnosis

from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.testing import HOSTILE_TEXTS

FRAGMENTS = [
    *("<!channel>", "<@U1>", "@everyone", "](https://evil.example)", "&", "`", "\\", "*", "@", "<"),
    *(
        "\u202e",
        "\u200b",
        "\x00",
        "\x1b[31m",
        "\ud83d",
        "\r\n",
        "\n",
        "\u2028",
        "\U0001f525",
        "\u0301",
    ),
]


def texts(max_repeats: int = 9000):
    """Any text, a hostile one, or a fragment that is repeated up to a great length."""
    repeated = st.builds(
        lambda fragment, count: fragment * count,
        st.sampled_from(FRAGMENTS),
        st.integers(1, max_repeats),
    )
    mixed = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=30).map("".join)
    return st.one_of(st.sampled_from(HOSTILE_TEXTS), repeated, mixed)


class Hostile:
    """A notification that prints briefly, since its texts are long and many."""

    def __init__(self, notification: Notification) -> None:
        self.notification = notification

    def __repr__(self) -> str:
        incident = self.notification.incident
        texts = (incident.finding.summary[:200], incident.remedy[:200], incident.key.run[:200])
        return f"Hostile({self.notification.name[:200]!r}, {texts!r})"


@st.composite
def hostile_notifications(draw):
    """A notification of any reason whose texts are hostile, with a cause or without one."""
    text, other = draw(texts()), draw(texts())
    notification = make_notification(
        draw(st.sampled_from(NotificationReason)),
        detector=draw(st.sampled_from(["kl_blowup", text])),
        severity=draw(st.sampled_from(Severity)),
        rank=draw(st.sampled_from([-1, 7])),
        run=draw(st.sampled_from(["grpo-7b", text])),
        summary=text,
        evidence={f"{number}{other[:99]}": text for number in range(draw(st.integers(0, 99)))},
    )
    fields = ("host", "command", "model", "page_url", "dashboard_url", "runbook_url")
    changes = {name: text if "url" not in name else f"https://host/{text}" for name in fields}
    incident = replace(notification.incident, remedy=other, title=text)
    notification = replace(
        notification,
        incident=incident,
        notes=(other,) * draw(st.integers(0, 9)),
        context=replace(CONTEXT, checkpoint_path=other, **changes),
    )
    if draw(st.booleans()):
        return Hostile(notification)
    evidence = tuple(Evidence(0.5, text, step) for step in range(draw(st.integers(0, 40))))
    named = with_diagnosis(
        notification, others=[other] * 20, title=other, remedy=text, evidence=evidence
    )
    return Hostile(named)
