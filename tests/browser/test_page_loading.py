"""The page of a run while its data are under way, and while they cannot be read."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry
from support.browsers import TIMEOUT_MS, PageProblems, accessibility_problems, new_context
from support.stored_homes import write_run

from sentinel.metrics.run_state import MAX_LOGGED_KEYS
from sentinel.metrics.stored_state import stored_state
from sentinel.store.run_reader import RunReader
from sentinel.web.agent_site import AgentSite
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer

pytestmark = pytest.mark.timeout(600)
expect.set_options(timeout=TIMEOUT_MS)
RUN = "finished"
MANY = MAX_LOGGED_KEYS + 5
UNTRUE = re.compile(
    r"logged no value|No value yet|No detector has fired|No values of ranks|"
    r"No notification was due|None\.|No text yet|not measured|Connecting|the agent",
    re.IGNORECASE,
)
"""What no page states of a run of which it does not know it."""
VISIBLE_TEXT = "() => document.getElementById('page').innerText"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = write_run(
        tmp_path_factory.mktemp("loading"),
        run=RUN,
        steps=40,
        ranks=2,
        sample_every=10,
        extra_values={f"many.key_{number}": float(number) for number in range(MANY)},
    )
    view = RunView(RUN, RunReader(path), lambda: stored_state(path, RUN), path)
    server = WebServer(lambda: AgentSite(CollectorRegistry(), view))
    yield f"http://127.0.0.1:{server.start()}/runs/{RUN}/"
    server.stop()


class Answers:
    """Holds, refuses or passes on the requests of a page, by the last part of their path."""

    def __init__(self, page):
        self.held, self.modes, self.default = [], {}, "hold"
        page.route("**/api/**", self._answer)

    def _answer(self, route):
        name = urlsplit(route.request.url).path.rpartition("/api/")[2]
        mode = self.modes.get(name, self.default)
        if mode == "hold":
            self.held.append(route)
        elif mode == "refuse":
            route.fulfill(status=503, json={"error": "The storage of this run does not answer."})
        else:
            route.continue_()

    def change(self, default, **modes):
        """Answer in this way from now on, and what was held, too."""
        self.default, self.modes = default, modes
        held, self.held = self.held, []
        for route in held:
            self._answer(route)


@pytest.fixture
def page(browser):
    problems = PageProblems()
    # Without the library, charts are small drawings, which take less time.
    problems.expect("503|404.*plotly")
    context = new_context(browser, problems, viewport={"width": 1280, "height": 1600})
    context.route("**/plotly.min.js", lambda route: route.fulfill(status=404))
    yield context.new_page()
    context.close()
    problems.check()


def test_the_page_states_what_is_loading_and_what_failed_and_nothing_untrue(page, url):
    answers = Answers(page)
    page.goto(url)
    curves, timeline = page.locator("#section-curves"), page.locator("#section-timeline")
    loss = curves.locator("[data-chart=loss]")
    reason = "could not be loaded: The storage of this run does not answer."

    expect(page.get_by_text("Loading the run.")).to_be_visible()
    expect(page.get_by_role("heading", name="Machine curves")).to_be_hidden()
    assert not UNTRUE.search(page.evaluate(VISIBLE_TEXT))
    answers.change("hold", run="refuse", events="refuse")
    expect(page.get_by_text(f"The run {reason}")).to_be_visible()

    # Tried again without a click.
    answers.change("hold", run="pass", events="refuse")
    expect(page.get_by_role("heading", level=1)).to_have_text(RUN)
    expect(curves.get_by_text("Loading the signals.")).to_be_visible()
    expect(timeline.get_by_text("Loading the timeline.")).to_be_visible()
    page.evaluate("() => document.querySelectorAll('details').forEach((it) => { it.open = true; })")
    assert not UNTRUE.search(page.evaluate(VISIBLE_TEXT))
    # Sections that this run has not.
    for absent in ("Nodes", "Images and histograms", "Loss surface", "Insight", "Machine curves"):
        expect(page.get_by_role("heading", name=absent, exact=True)).to_be_hidden()

    answers.change("refuse", run="pass")
    for what in (
        "The signals",
        "The timeline",
        "The incidents",
        "The notifications",
        "The samples",
    ):
        expect(page.get_by_text(f"{what} {reason}").filter(visible=True).first).to_be_visible()
    assert not UNTRUE.search(page.evaluate(VISIBLE_TEXT))
    assert accessibility_problems(page) == []

    answers.change("pass", series="hold")
    # Unless the page was faster.
    again = curves.locator("button[aria-label='Load the signals again']")
    again.dispatch_event("click")
    loss.scroll_into_view_if_needed()
    expect(loss.get_by_text("Loading Loss.")).to_be_visible()
    answers.change("pass", series="refuse")
    expect(loss.get_by_text(f"Loss {reason}")).to_be_visible()
    answers.change("pass")
    expect(loss.locator("svg.sparkline")).to_be_visible()
    # Empty, and known to be: it takes no room.
    expect(timeline).not_to_have_attribute("open", "")
    expect(page.locator("#section-incidents").get_by_text("None.")).to_be_visible()
    for over in ("could not be loaded", re.compile("^Loading")):
        expect(page.get_by_text(over).filter(visible=True)).to_have_count(0)

    # The state has fewer keys than were logged; the section has all of them.
    latest = page.locator("#section-signals")
    row = latest.get_by_role("row", name=f"many.key_{MANY - 1}")
    expect(row.locator("td").nth(1)).to_have_text(str(MANY - 1))
    assert int(latest.locator(".note").inner_text().split()[0]) > MANY
