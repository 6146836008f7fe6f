"""Names that do not resolve, proxies that refuse, addresses that answer nothing, odd receivers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support import webhook_receiver
from support.namespaces import shell, unshared
from support.rank_processes import until
from support.watched_jobs import TIMEOUT_SECONDS, watched_job
from support.webhook_receiver import Handler, Mode, Receiver, deadlines_from_silence

from sentinel.model.delivery import HttpRequest
from sentinel.notify.transports.send import send

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

HOST = "receiver.test"
NAMESERVER = "127.0.0.77"
SILENT, MISSING, KNOWN = "silent", "missing", "known"


class Nameserver:
    """A name server on port 53 of an own loopback address; `mode` is what it answers."""

    def __init__(self, mode: str, addresses: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.mode, self.addresses, self.queries = mode, addresses, 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(0.2)
        self._closing = threading.Event()
        self._socket.bind((NAMESERVER, 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                query, client = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            self.queries += 1
            if self.mode == SILENT:
                continue
            end = query.index(b"\0", 12) + 5
            is_ipv4 = query[end - 4 : end - 2] == b"\0\1"
            addresses = self.addresses if self.mode == KNOWN and is_ipv4 else ()
            flags = 0x8180 if self.mode == KNOWN else 0x8183
            head = query[:2] + struct.pack(">HHHHH", flags, 1, len(addresses), 0, 0)
            answers = b"".join(
                b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(each) for each in addresses
            )
            self._socket.sendto(head + query[12:end] + answers, client)


@contextmanager
def nameserver(folder: Path, mode: str) -> Iterator[tuple[Nameserver, list[str]]]:
    """A name server, and the command prefix of a process that asks it alone."""
    prefix = unshared("--mount", needs_root=True)
    server = Nameserver(mode)
    (folder / "resolv.conf").write_text(f"nameserver {NAMESERVER}\n")
    mount = f"mount --bind {folder}/resolv.conf /etc/resolv.conf"
    try:
        yield server, [*prefix, *shell(mount)]
    finally:
        server.close()


@contextmanager
def unanswering_address(address: str, port: int) -> Iterator[None]:
    """A port of an own loopback address at which connections neither open nor fail.

    The queue of a listening socket is full, so that the kernel drops every packet of a new one.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        while True:
            client = stack.enter_context(socket.socket())
            client.settimeout(0.3)
            try:
                client.connect((address, port))
            except TimeoutError:
                break
        yield


def commands(folder: Path) -> str:
    """Settings of a second sink that appends to `folder / "commands"`."""
    line = f"cat >> {folder}/commands; echo >> {folder}/commands"
    return f'[sinks.command]\narguments = ["/bin/sh", "-c", "{line}"]\n'


def notified_by_command(folder: Path) -> str:
    path = folder / "commands"
    return path.read_text() if path.exists() else ""


@pytest.mark.full
@pytest.mark.fault("D18")
@pytest.mark.parametrize("mode", [SILENT, MISSING])
def test_a_name_server_that_fails_and_recovers(tmp_path, mode):
    """The other sink is served at once, and the alert arrives when the name resolves again."""
    with nameserver(tmp_path, mode) as (server, prefix), Receiver() as receiver:
        url = receiver.url.replace("127.0.0.1", HOST)
        environ = {
            "SENTINEL_SINKS__WEBHOOK__URL": url,
            "SENTINEL_SINKS__WEBHOOK__ALLOW_HTTP": "true",
        }
        with watched_job(
            tmp_path, prefix=prefix, environ=environ, settings=commands(tmp_path)
        ) as job:
            job.until_more_steps()
            job.turn_on("nan")
            until(
                lambda: "nan_or_inf" in notified_by_command(tmp_path),
                TIMEOUT_SECONDS,
                "the other sink",
            )
            until(lambda: server.queries > 1, TIMEOUT_SECONDS, "a query")
            assert receiver.requests == []
            job.until_more_steps()
            server.mode = KNOWN
            until(lambda: receiver.accepted, TIMEOUT_SECONDS, "the notification")
            assert receiver.accepted[0].json["commonLabels"]["detector"] == "nan_or_inf"
            job.turn_on("end")
            assert job.wait() == 0


@pytest.mark.full
@pytest.mark.fault("D19")
def test_a_host_of_which_one_address_is_dead(tmp_path):
    """Of two addresses of a load balancer, that which the resolver puts first drops packets."""
    receiver = Receiver(address="127.0.0.78")
    with nameserver(tmp_path, KNOWN) as (server, prefix), receiver:
        port = int(receiver.url.split(":")[2].split("/")[0])
        server.addresses = ("127.0.0.78", "127.0.0.1")
        environ = {
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url.replace("127.0.0.78", HOST),
            "SENTINEL_SINKS__WEBHOOK__ALLOW_HTTP": "true",
        }
        with (
            unanswering_address("127.0.0.1", port),
            watched_job(tmp_path, prefix=prefix, environ=environ) as job,
        ):
            job.until_more_steps()
            job.turn_on("nan")
            until(lambda: receiver.accepted, TIMEOUT_SECONDS, "the notification")
            job.turn_on("end")
            assert job.wait() == 0


@pytest.mark.fault("D20")
def test_an_address_that_drops_every_packet_delays_no_other_sink(tmp_path):
    with Receiver() as receiver:
        port = int(receiver.url.split(":")[2].split("/")[0])
        environ = {"SENTINEL_SINKS__WEBHOOK__URL": receiver.url.replace("127.0.0.1", "127.0.0.79")}
        with (
            unanswering_address("127.0.0.79", port),
            watched_job(tmp_path, environ=environ, settings=commands(tmp_path)) as job,
        ):
            job.until_more_steps()
            job.turn_on("nan")
            until(
                lambda: "nan_or_inf" in notified_by_command(tmp_path),
                TIMEOUT_SECONDS,
                "the other sink",
            )
            job.until_more_steps()
            assert "firing" in notified_by_command(tmp_path)


@pytest.mark.full
@pytest.mark.fault("D21")
def test_a_proxy_that_refuses_for_a_while_loses_no_alert(tmp_path):
    """Without a login (407), as a gateway that is down (502), with a hang-up, then it works."""
    modes = [
        webhook_receiver.status(407, Proxy_Authenticate="Basic"),
        webhook_receiver.status(502),
        webhook_receiver.hang_up(),
        webhook_receiver.status(511),
    ]
    with Receiver(script=modes) as proxy:
        address = proxy.url.removesuffix("/services/T/B/X")
        environ = {
            "HTTP_PROXY": address,
            "http_proxy": address,
            "no_proxy": "",
            "SENTINEL_SINKS__WEBHOOK__URL": f"http://{HOST}/hook",
            "SENTINEL_SINKS__WEBHOOK__ALLOW_HTTP": "true",
        }
        with watched_job(tmp_path, environ=environ) as job:
            job.until_more_steps()
            job.turn_on("nan")
            until(lambda: proxy.accepted, TIMEOUT_SECONDS, "a notification")
            assert proxy.accepted[0].path == f"http://{HOST}/hook"
            assert len({request.headers["webhook-id"] for request in proxy.requests}) == 1
            assert len(proxy.requests) == 5
            job.turn_on("end")
            assert job.wait() == 0


def reset_after_body() -> Mode:
    """Reads the request and resets the connection."""

    def respond(handler: Handler) -> None:
        linger = struct.pack("ii", 1, 0)
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        handler.connection.close()

    return Mode(respond, answers=False)


def continue_for_ever() -> Mode:
    """Sends the interim answer 100 again and again."""
    return Mode(lambda h: h.drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), answers=False)


def chunked_without_end() -> Mode:
    """A chunked body whose trailers never end."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
    return Mode(lambda h: h.drip(head, b"X-Trailer: a\r\n"))


def http_1_0() -> Mode:
    """An answer of HTTP/1.0 without a length, which the end of the connection ends."""
    return Mode(
        lambda h: h.send_raw(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nok"), accepts=True
    )


def continue_once() -> Mode:
    """The interim answer 100, then the final one."""

    def respond(handler: Handler) -> None:
        handler.send_raw(b"HTTP/1.1 100 Continue\r\n\r\n")
        handler.send(200, b"ok")

    return Mode(respond, accepts=True)


def late(seconds: float = 1.5) -> Mode:
    """Accepts the request after the deadline."""

    def respond(handler: Handler) -> None:
        handler.server.receiver.silences.release()
        handler.server.receiver.closing.wait(seconds)
        handler.send(200, b"ok")

    return Mode(respond, accepts=True)


@pytest.mark.fault("D22")
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (reset_after_body, (0, "ConnectionResetError", True)),
        (continue_for_ever, (0, "DeadlineExceededError", True)),
        (chunked_without_end, (0, "DeadlineExceededError", True)),
        (late, (0, "DeadlineExceededError", True)),
        (http_1_0, (200, "", True)),
        (continue_once, (200, "", True)),
    ],
)
def test_unusual_answers_end_by_the_deadline_and_are_no_false_acceptance(mode, expected):
    began = time.monotonic()
    with Receiver(mode()) as receiver, deadlines_from_silence(receiver):
        request = HttpRequest(receiver.url, b"{}", {"Content-Type": "application/json"})
        response = send(request, deadline=0.4)

    assert (response.status, response.error, response.is_sent) == expected
    assert time.monotonic() - began < 60.0


@pytest.mark.full
@pytest.mark.fault("D23")
def test_a_container_without_a_writable_directory_for_temporary_files(tmp_path):
    """As a pod with a read-only root file system: a program is a sink all the same."""
    prefix = [
        *unshared("--mount"),
        *shell(
            f"mount --bind {tmp_path} /mnt; "
            "for each in /tmp /var/tmp; do mount --bind $each $each; "
            "mount -o remount,bind,ro $each; done; "
            f"mount --move /mnt {tmp_path}; ! touch /tmp/file 2>&-"
        ),
    ]
    before = "os.chdir('/proc')"
    environ = {"SENTINEL_CONFIG": str(tmp_path / "job" / "sentinel.toml")}
    with watched_job(
        tmp_path, prefix=prefix, environ=environ, before=before, settings=commands(tmp_path)
    ) as job:
        job.until_more_steps()
        job.check_nan()
        until(
            lambda: "resolved" in notified_by_command(tmp_path),
            TIMEOUT_SECONDS,
            f"the command; {job.text()}",
        )
        job.end()


@pytest.mark.full
@pytest.mark.fault("H10")
def test_a_machine_without_any_network(tmp_path):
    """Not even the loopback interface is up: there is no page, but a command is notified."""
    prefix = unshared("--net")
    with watched_job(tmp_path, prefix=prefix, settings=commands(tmp_path)) as job:
        job.mark("begun")
        job.turn_on("nan")
        until(
            lambda: "nan_or_inf" in notified_by_command(tmp_path),
            TIMEOUT_SECONDS,
            f"the command; {job.text()}",
        )
        job.turn_on("end")
        assert job.launcher.wait(TIMEOUT_SECONDS) == 0
        assert job.output.read_text() == ""
