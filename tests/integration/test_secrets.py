"""Tests that secrets reach their receiver only: all other output is searched for canaries."""

import logging
import socket
from contextlib import closing
from http.client import HTTPConnection

import pytest
from support import webhook_receiver
from support.notifications import make_notification
from support.rank_processes import until
from support.webhook_receiver import Receiver, deadlines_from_silence

from sentinel.config.settings import ConfigError, build_sinks, load_settings
from sentinel.model.counters import Counters
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.store.database import connect

CANARY = "CANARY-5f2d"
FAST = DeliveryTiming(
    min_interval_seconds=0.01,
    deadline_seconds=0.3,
    max_sleep_seconds=0.05,
    uniform_random=lambda: 0.01,
)
TIMEOUT_SECONDS = 240.0


def unused_url():
    """The URL of a receiver that has stopped."""
    with Receiver() as receiver:
        return receiver.url


def settings(url, tmp_path):
    return load_settings(
        {
            "sinks": {
                "slack": {"url": f"{url}/{CANARY}"},
                "webhook": {
                    "url": f"{url}/{CANARY}?token={CANARY}",
                    "secret": CANARY,
                    "authorization": f"Bearer {CANARY}",
                    "allow_http": True,
                },
                "slack_bot": {
                    "token": f"xoxb-{CANARY}",
                    "app_token": f"xapp-{CANARY}",
                    "channel": "training",
                    "api_url": url,
                },
                "pagerduty": {"routing_key": CANARY.ljust(32, "0"), "url": url},
                "discord": {"url": f"{url}/{CANARY}"},
                "alertmanager": {"url": url, "authorization": f"Bearer {CANARY}"},
            },
            "token": CANARY,
        },
        {},
        tmp_path,
    )


MODES = {
    "ok": webhook_receiver.ok(),
    "500": webhook_receiver.status(500),
    "404": webhook_receiver.status(404),
    "429": webhook_receiver.status(429, Retry_After="1"),
    "redirect": webhook_receiver.redirect(f"http://127.0.0.1:9/{CANARY}"),
    "hang": webhook_receiver.hang(),
    "drip": webhook_receiver.drip_header(),
    "not http": webhook_receiver.not_http(),
    "hang up": webhook_receiver.hang_up(),
    "captive portal": webhook_receiver.garbage(),
}


@pytest.fixture
def read_output(caplog, capfd, tmp_path, monkeypatch):
    """Returns a function that gives everything logged, printed or stored as one text."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(HTTPConnection, "debuglevel", 1)

    def read():
        shown = capfd.readouterr()
        stored = [path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()]
        logged = [f"{record.__dict__}" for record in caplog.records]
        return "\n".join([caplog.text, shown.out, shown.err, *logged, *stored])

    return read


def deliver_to(url, tmp_path):
    """Try one notification per sink; return all that can be printed about it."""
    loaded = settings(url, tmp_path)
    sinks, counters, path = build_sinks(loaded), Counters(), tmp_path / "sentinel.db"
    with closing(connect(path)) as connection:
        outbox.enqueue(connection, make_notification(), sinks)
        dispatcher = Dispatcher(path, sinks, counters, timing=FAST)
        dispatcher.start()
        until(
            lambda: sum(counters.values.values()) >= len(sinks),
            TIMEOUT_SECONDS,
            "each sink has an outcome",
        )
        assert dispatcher.stop(TIMEOUT_SECONDS)
        rows = connection.execute("select * from outbox").fetchall()
    return f"{loaded!r} {loaded.model_dump()} {dispatcher.__dict__} {counters} {rows}"


@pytest.mark.fault("X1")
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_failing_receiver_exposes_no_secret(mode, tmp_path, read_output):
    with Receiver(mode) as receiver, deadlines_from_silence(receiver):
        printed = deliver_to(receiver.url, tmp_path)
        received = f"{[(each.path, each.headers) for each in receiver.requests]}"

    assert CANARY in received
    assert CANARY not in printed + read_output()


@pytest.mark.fault("X1")
@pytest.mark.parametrize(
    "url",
    [unused_url(), "https://receiver.invalid", unused_url().replace("http:", "https:")],
    ids=["refused", "unknown host", "refused with TLS"],
)
def test_an_unreachable_receiver_exposes_no_secret(url, tmp_path, read_output, monkeypatch):
    getaddrinfo = socket.getaddrinfo

    def resolve(host, *args, **kwargs):
        """Fails at once for an unknown name, for which a real name server may take long."""
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return getaddrinfo(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    printed = deliver_to(url, tmp_path)

    assert CANARY not in printed + read_output()


@pytest.mark.fault("X1")
def test_a_receiver_without_tls_exposes_no_secret(tmp_path, read_output):
    with Receiver() as receiver:
        printed = deliver_to(receiver.url.replace("http:", "https:"), tmp_path)

    assert CANARY not in printed + read_output()
    assert receiver.requests == []


@pytest.mark.fault("X1")
@pytest.mark.parametrize(
    "invalid",
    [
        {"sinks": {"slack": {"url": f"http://example.org/{CANARY}"}}},
        {"sinks": {"slack": {"url": f"https://example.org/{CANARY}", "lnk": CANARY}}},
        {"sinks": {"webhook": {"url": f"https://u:{CANARY}@example.org/"}}},
        {"port": CANARY},
        {"token": [CANARY]},
    ],
    ids=str,
)
def test_a_refused_setting_exposes_no_secret(invalid, tmp_path):
    """Neither the message nor the chain of errors contains it."""
    with pytest.raises(ConfigError) as caught:
        load_settings(invalid, {}, tmp_path)
    error = caught.value
    while error is not None:
        assert CANARY not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
