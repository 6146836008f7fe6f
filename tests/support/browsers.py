"""Debian's Chromium, driven by Playwright, and what a page of sentinel must never do in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from axe_core_python.base import AXE_SCRIPT
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    sync_playwright,
)
from programs import find

from sentinel.cli._browser_picture import PROGRAMS

TIMEOUT_MS = 120_000
"""Timeout of what takes milliseconds on an idle machine."""
FOREIGN_HOSTS = ("evil.example", "rebound.example")
"""Names that the browser resolves to 127.0.0.1."""
OWN_SCHEMES = ("data", "blob", "file", "about", "chrome-error")
"""Schemes of requests that leave no machine."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without windows; skips the test if Chromium is missing."""
    program = find(*PROGRAMS)
    rules = ", ".join(f"MAP {host} 127.0.0.1" for host in FOREIGN_HOSTS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            chromium_sandbox=False,
            args=["--disable-gpu", f"--host-resolver-rules={rules}"],
            timeout=TIMEOUT_MS,
        )
        try:
            yield browser
        finally:
            browser.close()


class PageProblems:
    """What pages did that no page of sentinel does; `check` fails if there is anything.

    That is an error on the console, among them what the content security policy refuses, an
    exception, a dialog, and a request to another host. `requests` are the URLs of all requests.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self.requests: list[str] = []
        self._expected: list[re.Pattern[str]] = []

    def expect(self, pattern: str) -> None:
        """Accept problems in whose text that pattern occurs."""
        self._expected.append(re.compile(pattern))

    def watch(self, context: BrowserContext) -> None:
        """Record the problems of every page of that context."""
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.found.append(f"exception: {error.error}"))
        context.on("dialog", self._on_dialog)
        context.on("request", lambda request: self._on_request(request.url))

    def unexpected(self) -> list[str]:
        """The problems that no expected pattern covers."""
        return [
            each for each in self.found if not any(known.search(each) for known in self._expected)
        ]

    def check(self) -> None:
        """Fail if there is a problem that is not expected."""
        problems = self.unexpected()
        assert not problems, "\n".join(problems)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.found.append(f"console: {message.text} ({message.location['url']})")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, url: str) -> None:
        self.requests.append(url)
        address = urlsplit(url)
        if address.scheme not in OWN_SCHEMES and address.hostname not in ("127.0.0.1", "localhost"):
            self.found.append(f"request to another host: {url}")


def new_context(browser: Browser, problems: PageProblems, **options: Any) -> BrowserContext:
    """A context without cookies or storage, whose problems are recorded; `options` of Playwright.

    Animations are reduced, so that what a page shows does not depend on the time.
    """
    context = browser.new_context(**{"reduced_motion": "reduce"} | options)
    context.set_default_timeout(TIMEOUT_MS)
    problems.watch(context)
    return context


AXE_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


def accessibility_problems(page: Page) -> list[str]:
    """What axe finds on the page as it is now: the rule, the help, and the first elements."""
    options = {"runOnly": {"type": "tag", "values": [*AXE_RULES]}, "resultTypes": ["violations"]}
    page.evaluate(AXE_SCRIPT)
    # The many elements of a drawn chart are one image, with a text of its own.
    scope = {"exclude": [".js-plotly-plot > *", "script"]}
    run = "([scope, options]) => axe.run(scope, options)"
    found = page.evaluate(run, [scope, options])["violations"]
    return [
        f"{each['id']}: {each['help']}: "
        + "; ".join(node["html"][:160] for node in each["nodes"][:3])
        for each in found
    ]


def overflow(page: Page) -> list[str]:
    """The elements that make the page wider than its window; empty if it does not scroll aside."""
    return page.evaluate("""() => {
      const root = document.documentElement;
      if (root.scrollWidth <= root.clientWidth) return [];
      return [...document.querySelectorAll("body *")]
        .filter((each) => each.getBoundingClientRect().right > root.clientWidth + 1)
        .slice(0, 5).map((each) => each.outerHTML.slice(0, 120));
    }""")


def still_box(plot: Any) -> dict[str, float]:
    """Where that element is, in view and once its place no longer changes."""
    plot.scroll_into_view_if_needed()
    # Waits for that, without a click.
    plot.click(trial=True)
    return plot.bounding_box()
