"""Tests of reports that follow the end of a case, at receivers that answer as documented."""

import email
import email.policy
import threading
from contextlib import closing, contextmanager

import pytest
from support.mail_receiver import MailReceiver
from support.notifications import NOW, make_notification
from support.vendors import SLACK_TOKEN, FakeSlack

from sentinel.model.counters import Counters
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.outbox import QueueRules
from sentinel.notify.report_sender import MAX_PENDING, REPORTS_METRIC, ReportSender
from sentinel.notify.sink_worker import SinkWorker
from sentinel.sinks.email import Email
from sentinel.sinks.slack_bot import SlackBot
from sentinel.store.database import connect

REPORT = b"<!doctype html><title>report</title>"
OPENED = make_notification()
RESOLVED = make_notification(NotificationReason.RESOLVED)


@pytest.fixture
def slack():
    with FakeSlack() as fake:
        yield fake


def bot(slack, **settings):
    settings = {"attach_report": True, **settings}
    return SlackBot(token=SLACK_TOKEN, channel="#training", api_url=slack.api_url, **settings)


@contextmanager
def sender(sinks, build=lambda: REPORT):
    """A sender that runs; it sends what is pending before it ends."""
    reports = ReportSender("grpo/7b", sinks, Counters(), build)
    reports.start()
    yield reports
    reports.stop(60.0)


def outcomes(reports):
    counted = reports._counters.values.items()
    return {label: total for (name, label), total in counted if name == REPORTS_METRIC and total}


def post(slack):
    """The receipt of a message in the channel."""
    slack.messages["1.0"] = {"ts": "1.0", "channel": "C1"}
    return "C1/1.0"


def test_slack_gets_the_report_in_the_thread_of_the_case(slack):
    with sender({"slack": bot(slack)}) as reports:
        reports.enqueue("slack", RESOLVED, post(slack))

    (file,) = slack.files.values()
    assert file == {
        "name": "sentinel-grpo-7b.html",
        "length": len(REPORT),
        "content": REPORT,
        "thread_ts": "1.0",
    }
    assert outcomes(reports) == {"slack:sent": 1}


def test_the_end_of_a_case_is_delivered_first_and_its_report_follows(slack, tmp_path):
    sinks = {"slack": bot(slack)}
    with sender(sinks) as reports, closing(connect(tmp_path / "sentinel.db")) as connection:
        worker = SinkWorker(
            "slack",
            sinks["slack"],
            connection,
            Counters(),
            lambda: NOW,
            on_resolved=reports.enqueue,
        )
        for number, notification in enumerate((OPENED, RESOLVED)):
            rules = QueueRules(updatable=["slack"])
            outbox.enqueue(connection, notification, ["slack"], NOW, rules)
            worker.clock = lambda number=number: NOW + 10.0 * number + 5.0
            worker.deliver_next()
            worker.store_pending_outcome()

    (message,) = slack.posts
    (file,) = slack.files.values()
    assert file["thread_ts"] == message["ts"]


@pytest.mark.parametrize("refused_call", [0, 1, 2])
def test_a_refused_upload_is_counted_and_not_tried_again(slack, refused_call):
    class Refusing(FakeSlack):
        """Answers the call of that number with an error."""

        calls = 0

        def _call(self, handler):
            self.calls += 1
            if self.calls == refused_call + 1:
                return {"ok": False, "error": "missing_scope"} if refused_call != 1 else 1 / 0
            return super()._call(handler)

    with Refusing() as refusing:
        with sender({"slack": bot(refusing)}) as reports:
            reports.enqueue("slack", RESOLVED, post(refusing))

        assert refusing.calls == refused_call + 1
    assert outcomes(reports) == {"slack:failed": 1}


def test_a_report_that_cannot_be_built_is_counted(slack):
    with sender({"slack": bot(slack)}, build=lambda: 1 // 0) as reports:
        reports.enqueue("slack", RESOLVED, post(slack))
        reports.enqueue("slack", RESOLVED, post(slack))

    assert outcomes(reports) == {"slack:failed": 2}
    assert slack.files == {}


def test_a_case_without_a_message_gets_no_report(slack):
    with sender({"slack": bot(slack)}) as reports:
        reports.enqueue("slack", RESOLVED, None)

    assert outcomes(reports) == {"slack:failed": 1}


def test_no_report_without_the_setting(slack):
    with sender({"slack": bot(slack, attach_report=False)}) as reports:
        reports.enqueue("slack", RESOLVED, post(slack))

    assert (slack.receiver.requests, outcomes(reports)) == ([], {})


def test_a_slow_report_delays_nothing_and_too_many_are_dropped(slack):
    is_building, may_end = threading.Event(), threading.Event()

    def build():
        is_building.set()
        may_end.wait(240)
        return REPORT

    with sender({"slack": bot(slack)}, build) as reports:
        receipt = post(slack)
        reports.enqueue("slack", RESOLVED, receipt)
        assert is_building.wait(240)
        for _ in range(MAX_PENDING + 2):
            reports.enqueue("slack", RESOLVED, receipt)
        assert outcomes(reports) == {"slack:dropped": 2}
        may_end.set()

    assert outcomes(reports) == {"slack:dropped": 2, "slack:sent": MAX_PENDING + 1}


def test_sinks_of_one_end_share_a_report(slack):
    builds = []

    def build():
        builds.append(1)
        return REPORT

    with sender({"one": bot(slack), "two": bot(slack)}, build) as reports:
        for name in ("one", "two"):
            reports.enqueue(name, RESOLVED, post(slack))

    assert (len(builds), len(slack.files)) == (1, 2)


def test_an_e_mail_with_the_report_follows_in_the_conversation():
    with MailReceiver() as receiver:
        sink = Email(
            host="127.0.0.1",
            port=receiver.port,
            security="none",
            sender="sentinel@example.org",
            recipients=["team@example.org"],
            attach_report=True,
        )
        with sender({"mail": sink}) as reports:
            reports.enqueue("mail", RESOLVED, None)

    assert outcomes(reports) == {"mail:sent": 1}
    mail = email.message_from_string(receiver.mails[0], policy=email.policy.default)
    (attachment,) = mail.iter_attachments()
    assert attachment.get_filename() == "sentinel-grpo-7b.html"
    assert attachment.get_content_type() == "text/html"
    assert attachment.get_payload(decode=True) == REPORT
    assert mail["In-Reply-To"]
    assert mail["In-Reply-To"] != mail["Message-ID"]
