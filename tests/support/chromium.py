"""A Chromium that is controlled over the DevTools protocol: what it shows, asks and requests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

TIMEOUT_SECONDS = 120.0
FOREIGN_HOSTS = ("evil.example", "rebound.example")
"""Names that the browser resolves to 127.0.0.1."""


def find_chromium() -> str:
    """Path of Chromium; skips the test if there is none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not on PATH (Debian: chromium)")
    return browser


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in `folder`; yields its page."""
    rules = ", ".join(f"MAP {host} 127.0.0.1" for host in FOREIGN_HOSTS)
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *(f"--user-data-dir={folder}/profile", f"--host-resolver-rules={rules}"),
    ]
    environ = os.environ | {"HOME": str(folder)}
    with subprocess.Popen(
        [find_chromium(), *options, "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
    ) as process:
        try:
            with connect(_debugger_url(folder / "profile"), max_size=None) as connection:
                yield Page(connection)
        finally:
            process.terminate()


def _debugger_url(profile: Path) -> str:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            port, path = (profile / "DevToolsActivePort").read_text().split()
        except (OSError, ValueError):
            time.sleep(0.05)
        else:
            return f"ws://127.0.0.1:{port}{path}"
    pytest.fail("chromium does not answer")


class Page:
    """The page of a browser, and the events since it was opened."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._number, self._session = connection, 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command; dialogs are recorded and dismissed meanwhile."""
        self._number += 1
        number = self._number
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._connection.send(json.dumps(command))
        while True:
            message = json.loads(self._connection.recv(timeout=TIMEOUT_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            if "method" in message:
                self.events.append(message)
                if message["method"] == "Page.javascriptDialogOpening":
                    self._dismiss_dialog()

    def _dismiss_dialog(self) -> None:
        self._number += 1
        command = {"id": self._number, "method": "Page.handleJavaScriptDialog"}
        command |= {"params": {"accept": False}, "sessionId": self._session}
        self._connection.send(json.dumps(command))

    def open(self, url: str) -> None:
        """Load the page of a URL, and forget the events of the last one."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)

    def named(self, method: str) -> list[dict[str, Any]]:
        """The parameters of the events of that name."""
        return [each["params"] for each in self.events if each["method"] == method]

    def requested_urls(self) -> list[str]:
        """The URLs that the page requested, in order."""
        return [each["request"]["url"] for each in self.named("Network.requestWillBeSent")]
