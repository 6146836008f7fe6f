"""No secret leaves but to its receiver: everything else that we write is searched for canaries."""

import logging
import socket
from contextlib import closing
from http.client import HTTPConnection

import pytest
from support import webhook_receiver
from support.notifications import page
from support.rank_processes import until
from support.webhook_receiver import Receiver, deadlines_from_silence

from sentinel.config.settings import ConfigError, build_sinks, load_settings
from sentinel.model.counters import Counters
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.store.database import connect

CANARY = "CANARY-5f2d"
QUICK = DeliveryTiming(
    min_interval_seconds=0.01,
    deadline_seconds=0.3,
    max_sleep_seconds=0.05,
    uniform_random=lambda: 0.01,
)
PATIENCE = 60.0


def dead_end():
    """The address of a receiver that is gone."""
    with Receiver() as there:
        return there.url


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
            },
            "token": CANARY,
        },
        {},
        tmp_path,
    )


TROUBLE = {
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
def everything(caplog, capfd, tmp_path, monkeypatch):
    """All that was logged at the lowest level, printed or stored, as one text."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(HTTPConnection, "debuglevel", 1)

    def everything():
        shown = capfd.readouterr()
        stored = [path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()]
        logged = [f"{record.__dict__}" for record in caplog.records]
        return "\n".join([caplog.text, shown.out, shown.err, *logged, *stored])

    return everything


def deliver_to(url, tmp_path):
    """Let one page for each sink meet its first answer; everything printable about it."""
    built = settings(url, tmp_path)
    sinks, tally, path = build_sinks(built), Counters(), tmp_path / "sentinel.db"
    with closing(connect(path)) as connection:
        outbox.enqueue(connection, page(), sinks)
        courier = Dispatcher(path, sinks, tally, timing=QUICK)
        courier.start()
        until(lambda: sum(tally.values.values()) >= len(sinks), PATIENCE, "both have an outcome")
        assert courier.stop(PATIENCE)
        rows = connection.execute("select * from outbox").fetchall()
    return f"{built!r} {built.model_dump()} {courier.__dict__} {tally} {rows}"


@pytest.mark.parametrize("mode", TROUBLE.values(), ids=TROUBLE)
def test_a_receiver_in_trouble_brings_no_secret_to_light(mode, tmp_path, everything):
    with Receiver(mode) as there, deadlines_from_silence(there):
        told = deliver_to(there.url, tmp_path)
        received = f"{[(r.path, r.headers) for r in there.requests]}"

    assert CANARY in received
    assert CANARY not in told + everything()


@pytest.mark.parametrize(
    "url",
    [dead_end(), "https://receiver.invalid", dead_end().replace("http:", "https:")],
    ids=["refused", "unknown host", "refused with TLS"],
)
def test_a_receiver_that_cannot_be_reached_brings_no_secret_to_light(
    url, tmp_path, everything, monkeypatch
):
    asked = socket.getaddrinfo

    def known(host, *rest, **more):
        """Real name servers may take as long as they like to say that there is no such name."""
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return asked(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    told = deliver_to(url, tmp_path)

    assert CANARY not in told + everything()


def test_a_receiver_without_tls_brings_no_secret_to_light(tmp_path, everything):
    with Receiver() as there:
        told = deliver_to(there.url.replace("http:", "https:"), tmp_path)

    assert CANARY not in told + everything()
    assert there.requests == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"sinks": {"slack": {"url": f"http://example.org/{CANARY}"}}},
        {"sinks": {"slack": {"url": f"https://example.org/{CANARY}", "lnk": CANARY}}},
        {"sinks": {"webhook": {"url": f"https://u:{CANARY}@example.org/"}}},
        {"port": CANARY},
        {"token": [CANARY]},
    ],
    ids=str,
)
def test_a_refused_setting_brings_no_secret_to_light(wrong, tmp_path):
    """Neither its message nor the chain of errors behind it."""
    with pytest.raises(ConfigError) as caught:
        load_settings(wrong, {}, tmp_path)
    error = caught.value
    while error is not None:
        assert CANARY not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
