"""A case from its opening to its resolution, at receivers that answer as the vendors document."""

import email
import email.policy
import json
import sys
from dataclasses import replace

import pytest
from support.certificates import make_certificate, server_context
from support.mail_receiver import MailReceiver
from support.notifications import CONTEXT, make_notification, with_diagnosis
from support.the_only import the_only
from support.vendors import PAGERDUTY_KEY, SLACK_TOKEN, FakeDiscord, FakePagerduty, FakeSlack

from sentinel.model.delivery import HttpRequest, Rejection
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.notify.sink_worker import is_accepted, rejection, render
from sentinel.notify.transports.send import send
from sentinel.sinks.command import Command
from sentinel.sinks.discord import Discord
from sentinel.sinks.email import Email
from sentinel.sinks.pagerduty import Pagerduty
from sentinel.sinks.slack_bot import SlackBot

OPENED = replace(make_notification(severity=Severity.WARNING), context=CONTEXT)
UPDATED = replace(with_diagnosis(OPENED), reason=NotificationReason.UPDATED, number=1)
ESCALATED = replace(
    UPDATED,
    reason=NotificationReason.ESCALATED,
    incident=replace(OPENED.incident, severity=Severity.CRITICAL),
)
RESOLVED = replace(with_diagnosis(make_notification(NotificationReason.RESOLVED)), context=CONTEXT)
LIFE = (OPENED, UPDATED, ESCALATED, RESOLVED)


def deliver(sink, *notifications, receipt=None):
    """Deliver each, as a sink worker does; return the receipt of the newest message."""
    for number, notification in enumerate(notifications):
        delivery = render(sink, notification, f"{number:032x}", receipt, 1_700_000_100.0)
        response = send(delivery)
        assert is_accepted(sink, response), (response, response.body)
        if isinstance(delivery, HttpRequest) and delivery.follow_up is not None:
            send(delivery.follow_up)
        receipt = sink.receipt(response) or receipt
    return receipt


def refusal(sink, notification, receipt=None):
    """Why the delivery is not accepted, and the delay that the receiver requests."""
    response = send(render(sink, notification, "0" * 32, receipt, 1_700_000_100.0))
    assert not is_accepted(sink, response)
    return rejection(sink, response), response.retry_after


@pytest.fixture
def slack():
    with FakeSlack() as fake:
        yield fake


@pytest.fixture
def slack_bot(slack):
    return SlackBot(token=SLACK_TOKEN, channel="#training", api_url=slack.api_url)


def titles(messages):
    """Emoji and first words of each message."""
    return [": ".join(each["text"].split(": ")[:2]) for each in messages]


def test_slack_gets_one_message_that_is_kept_up_to_date(slack, slack_bot):
    receipt = deliver(slack_bot, OPENED, UPDATED, RESOLVED)

    (message,) = slack.posts
    assert receipt == f"C1/{message['ts']}"
    assert titles(slack.posts) == [":white_check_mark: Resolved"]
    assert titles(slack.thread(message)) == [
        ":large_orange_circle: Update, warning",
        ":white_check_mark: Resolved",
    ]


def test_a_severity_that_rises_is_a_new_post_in_the_channel_of_slack(slack, slack_bot):
    deliver(slack_bot, OPENED, UPDATED, ESCALATED)

    first, second = slack.posts
    assert second["thread_ts"] == first["ts"]
    assert titles(slack.posts) == [":red_circle: Now critical"] * 2


def test_the_first_message_of_slack_is_the_one_that_is_closed(slack, slack_bot):
    deliver(slack_bot, *LIFE)

    first, _ = slack.posts
    assert titles([first]) == [":white_check_mark: Resolved"]
    assert titles(slack.thread(first))[-1] == ":white_check_mark: Resolved"


def test_a_deleted_message_of_slack_is_sent_anew(slack, slack_bot):
    receipt = deliver(slack_bot, OPENED)
    slack.messages.clear()

    assert refusal(slack_bot, UPDATED, receipt)[0] is Rejection.UNKNOWN_RECEIPT
    deliver(slack_bot, RESOLVED)
    assert titles(slack.posts) == [":white_check_mark: Resolved"]


@pytest.mark.fault("D6")
@pytest.mark.parametrize(
    ("error", "reason", "delay"),
    [
        ("ratelimited", Rejection.TEMPORARY, 2.0),
        ("internal_error", Rejection.TEMPORARY, None),
        ("channel_not_found", Rejection.PERMANENT, None),
        ("not_in_channel", Rejection.PERMANENT, None),
        ("token_revoked", Rejection.PERMANENT, None),
        ("msg_blocks_too_long", Rejection.TOO_LONG, None),
    ],
)
def test_an_error_of_slack_with_status_200_is_no_acceptance(slack, slack_bot, error, reason, delay):
    slack.refusals.append(error)

    assert refusal(slack_bot, OPENED) == (reason, delay)


@pytest.fixture
def discord():
    with FakeDiscord() as fake:
        yield fake


def contents(fake):
    return [each["content"].split(": ")[0] for each in fake.messages.values()]


def test_discord_gets_one_message_that_is_kept_up_to_date(discord):
    receipt = deliver(Discord(url=discord.url), OPENED, UPDATED, RESOLVED)

    assert list(discord.messages) == [receipt]
    assert contents(discord) == ["✅ **Resolved"]


def test_a_severity_that_rises_is_a_new_message_of_discord(discord):
    deliver(Discord(url=f"{discord.url}?thread_id=5"), *LIFE)

    first, second = discord.messages.values()
    assert first["content"].endswith("*Continued in a newer message.*")
    assert second["content"].startswith("✅ **Resolved: ")
    assert [request.method for request in discord.receiver.requests] == [
        *("POST", "PATCH", "POST", "PATCH", "PATCH"),
    ]
    assert all("thread_id=5" in request.path for request in discord.receiver.requests)


def test_a_deleted_message_of_discord_is_told_from_a_deleted_webhook(discord):
    sink = Discord(url=discord.url)
    receipt = deliver(sink, OPENED)
    discord.messages.clear()

    assert refusal(sink, UPDATED, receipt)[0] is Rejection.UNKNOWN_RECEIPT
    assert refusal(Discord(url=discord.url + "X"), OPENED)[0] is Rejection.PERMANENT


def test_pagerduty_gets_one_alert_that_is_triggered_and_resolved():
    with FakePagerduty() as fake:
        deliver(Pagerduty(routing_key=PAGERDUTY_KEY, url=fake.url), *LIFE)

    events = the_only(fake.alerts.values())
    assert [each["event_action"] for each in events] == ["trigger"] * 3 + ["resolve"]
    assert [each["payload"]["severity"] for each in events[:3]] == [
        *("warning", "warning", "critical"),
    ]
    assert events[2]["payload"]["summary"].startswith("Now critical: ")
    assert events[2]["payload"]["source"] == "gpu-3"
    assert {each["text"]: each["href"] for each in events[2]["links"]} == {
        "Run page": "http://gpu-3:13130",
        "Dashboard": "https://grafana.example/d/run?var-run=grpo-7b",
        "Runbook": "http://gpu-3:13130/runbooks/kl_blowup",
    }


def test_a_wrong_key_of_pagerduty_is_refused_for_good():
    with FakePagerduty() as fake:
        sink = Pagerduty(routing_key=PAGERDUTY_KEY, url=fake.url)
        fake.receiver.script.append(_invalid_key())

        assert refusal(sink, OPENED)[0] is Rejection.PERMANENT


def _invalid_key():
    from support import webhook_receiver

    return webhook_receiver.status(400, b'{"status": "invalid key", "message": "Invalid key"}')


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_the_mails_of_a_case_are_one_thread(security, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with MailReceiver(tls=server_context(certificate), implicit_tls=security == "tls") as receiver:
        sink = Email(
            host="127.0.0.1",
            port=receiver.port,
            security=security,
            username="me",
            password="CANARY",
            sender="sentinel@example.org",
            recipients=["team@example.org", "ana@example.org"],
        )
        deliver(sink, OPENED, ESCALATED, RESOLVED)

    mails = [
        email.message_from_string(each, policy=email.policy.default) for each in receiver.mails
    ]
    assert [mail["Subject"].split(": ")[0] for mail in mails] == [
        *("Warning", "Now critical", "Resolved"),
    ]
    assert all("run grpo-7b (Qwen/Qwen2.5-7B on gpu-3)" in mail["Subject"] for mail in mails)
    first = mails[0]["Message-ID"]
    assert [mail["References"] for mail in mails] == [None, first, first]
    assert len({mail["Message-ID"] for mail in mails}) == 3
    assert mails[0]["To"] == "team@example.org, ana@example.org"
    assert mails[0]["Auto-Submitted"] == "auto-generated"
    assert "What to do:\nRaise the KL coefficient." in mails[0].get_content().replace("\r\n", "\n")


@pytest.mark.fault("X8")
def test_a_hostile_name_adds_no_recipient():
    from support.notifications import RUN

    hostile = f"{RUN}\r\nBcc: evil@example.org\r\n\r\n"
    with MailReceiver() as receiver:
        sink = Email(
            host="127.0.0.1",
            port=receiver.port,
            security="none",
            sender="sentinel@example.org",
            recipients=["team@example.org"],
        )
        deliver(sink, make_notification(run=hostile, summary=hostile))

    (mail,) = receiver.mails
    assert email.message_from_string(mail, policy=email.policy.default)["Bcc"] is None
    assert [line for line in receiver.commands if line.upper().startswith("RCPT")] == [
        "rcpt TO:<team@example.org>"
    ]


def test_a_command_reads_each_notification_as_json(tmp_path):
    script = "import json, sys; print(json.load(sys.stdin)['status'], file=open(sys.argv[1], 'a'))"
    path = tmp_path / "out; rm -rf $HOME `x`"
    deliver(Command(arguments=[sys.executable, "-c", script, str(path)]), OPENED, RESOLVED)

    assert path.read_text().split() == ["firing", "resolved"]


@pytest.mark.parametrize(
    ("status", "reason"), [(1, Rejection.TEMPORARY), (65, Rejection.PERMANENT)]
)
def test_the_exit_status_of_a_command_decides(status, reason):
    sink = Command(arguments=[sys.executable, "-c", f"raise SystemExit({status})"])

    assert refusal(sink, OPENED)[0] is reason


@pytest.mark.fault("D16")
def test_a_command_that_cannot_be_executed_is_rejected_for_good(tmp_path):
    (tmp_path / "data").write_text("no program")
    for program in (tmp_path / "missing", tmp_path / "data"):
        assert refusal(Command(arguments=[str(program)]), OPENED)[0] is Rejection.PERMANENT
    slow = Command(arguments=[sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.1)
    assert refusal(slow, OPENED)[0] is Rejection.TEMPORARY


def test_the_body_of_a_command_is_that_of_the_webhook():
    content = json.loads(Command(arguments=["x"]).render(OPENED, "0" * 32, None).stdin)

    assert content["commonLabels"]["alertname"] == "kl_blowup"
    assert content["sentinel"]["context"]["host"] == "gpu-3"
