"""Pages in a browser, whose problems fail the test at its end."""

from __future__ import annotations

from functools import partial

import pytest
from playwright.sync_api import expect
from support.browsers import TIMEOUT_MS, PageProblems, chromium, new_context
from support.live_runs import live_run as start_live_run
from support.stored_homes import write_run
from support.web_servers import servers

# A busy machine takes longer than the 5 seconds of Playwright.
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests of a file, and for no others.

    Playwright runs an event loop in this thread, so no test could start its own meanwhile.
    """
    with chromium() as started:
        yield started


@pytest.fixture
def page_problems():
    """What the pages of the test did that no page does; `expect` allows it."""
    problems = PageProblems()
    yield problems
    problems.check()


@pytest.fixture
def open_context(browser, page_problems):
    """Returns a function: a context of its own, with Playwright's options such as `viewport`."""
    contexts = []

    def start(**options):
        contexts.append(new_context(browser, page_problems, **options))
        return contexts[-1]

    yield start
    for context in contexts:
        context.close()


@pytest.fixture
def browser_page(open_context):
    """A page in a context of its own."""
    return open_context().new_page()


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.fixture
def stored_home(tmp_path):
    """Returns a function that writes a run into one home, as `write_run`; returns its database."""
    return partial(write_run, tmp_path / "home")


@pytest.fixture(scope="module")
def live_run(tmp_path_factory):
    """A real run under way, with its agent, for all tests of a file."""
    with start_live_run(tmp_path_factory.mktemp("live")) as live:
        yield live


@pytest.fixture
def show(serve, browser_page):
    """Returns a function: the page of the run in a browser, for a state of `/api/run`.

    `answers` are those of the reader, such as `incidents`.
    """

    def show_state(state, **answers):
        url = serve(state=lambda: state, **answers)
        browser_page.goto(f"{url}/")
        expect(browser_page.locator("h1")).to_have_text(state["run"])
        return browser_page

    return show_state
