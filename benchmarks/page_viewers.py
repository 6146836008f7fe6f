"""CPU time and memory of an agent whose page is open in many browsers.

    python benchmarks/page_viewers.py [--viewers 50] [--interval 1.0] [--seconds 30]

A training of one process logs 18 values every `--interval` seconds. The agent is measured for
`--seconds` without viewers, then with `--viewers` streams of live events, which read all they get.
Each viewer first loads what a page loads: signals, series, timeline, cases and incidents.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

SCRIPT = """
import pathlib, random, sys, time
import sentinel

stop, interval = pathlib.Path(sys.argv[1]), float(sys.argv[2])


@sentinel.monitor(run="viewed")
def train():
    step = 0
    while not stop.exists():
        step += 1
        values = {f"my/metric_{at}": random.random() for at in range(12)}
        values |= {"loss": 2.0 + random.random(), "reward": random.random(), "kl": 0.01}
        values |= {"entropy": 1.0, "grad_norm": 1.0, "learning_rate": 1e-5}
        sentinel.log(values, step=step)
        time.sleep(interval)


train()
"""
START_TIMEOUT_SECONDS = 60.0
SETTLE_SECONDS = 8.0
LOADED = ("signals", "series?signals=loss,reward,kl_ref,entropy", "timeline", "cases", "incidents")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    # An agent that ends may still write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        stop, home = Path(folder, "stop"), Path(folder, "home")
        runtime = Path(folder, "runtime")
        runtime.mkdir()
        environment = os.environ | {
            "SENTINEL_HOME": str(home),
            "SENTINEL_RUNTIME_DIR": str(runtime),
        }
        command = [sys.executable, "-c", SCRIPT, str(stop), str(args.interval)]
        training = subprocess.Popen(command, env=environment)
        try:
            measure(find_agent(home), args)
        finally:
            stop.touch()
            training.wait(30)


def find_agent(home: Path) -> dict[str, str]:
    """What the agent says of itself, once it serves."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for path in home.glob("runs/*/agent.json"):
            with suppress(ValueError):
                found: dict[str, str] = json.loads(path.read_text())
                return found
        time.sleep(0.1)
    raise SystemExit("No agent started.")


def measure(agent: dict[str, str], args: argparse.Namespace) -> None:
    process, address = psutil.Process(int(agent["pid"])), urlsplit(agent["url"])
    host, port = str(address.hostname), int(address.port or 80)
    streams = Streams()
    try:
        streams.read_for(SETTLE_SECONDS)
        report("no viewer", process, streams, args.seconds)
        for _ in range(args.viewers):
            load_page(host, port)
            streams.add(host, port)
        streams.read_for(3.0)
        streams.bytes_read = streams.rows = 0
        report(f"{args.viewers} viewers", process, streams, args.seconds)
        per_second = streams.bytes_read / args.seconds / args.viewers
        events = streams.rows / args.seconds / args.viewers
        print(f"each viewer: {per_second:,.0f} bytes/s, {events:.2f} events with rows per second")
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(psutil.TimeoutExpired):
            process.wait(30.0)


def load_page(host: str, port: int) -> None:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    for path in LOADED:
        connection.request("GET", f"/api/{path}")
        connection.getresponse().read()
    connection.close()


def report(title: str, process: psutil.Process, streams: Streams, seconds: float) -> None:
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    streams.read_for(seconds)
    used = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    memory = process.memory_info().rss / 2**20
    print(f"{title:<12} {100 * used:.2f} % of a core, {memory:.0f} MB", flush=True)


class Streams:
    """Streams of live events, of which everything is read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.bytes_read = self.rows = 0

    def add(self, host: str, port: int) -> None:
        """Open one more."""
        connection = socket.create_connection((host, port))
        request = f"GET /api/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
        connection.sendall(request.encode())
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)

    def read_for(self, seconds: float) -> None:
        """Read whatever comes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left, 0.2)):
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 20)
                if not data:
                    self._selector.unregister(key.fileobj)
                self.bytes_read += len(data)
                self.rows += data.count(b"event: rows")


if __name__ == "__main__":
    main()
