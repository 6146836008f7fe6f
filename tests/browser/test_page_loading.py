"""The page of a run while its data are under way, and while they cannot be read."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry
from support.browsers import TIMEOUT_MS, PageProblems, accessibility_problems, new_context
from support.stored_homes import write_run

from sentinel.metrics.stored_state import stored_state
from sentinel.store.run_reader import RunReader
from sentinel.web.agent_site import AgentSite
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer

pytestmark = pytest.mark.timeout(600)
expect.set_options(timeout=TIMEOUT_MS)
RUN = "finished"
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
        tmp_path_factory.mktemp("loading"), run=RUN, steps=40, ranks=2, sample_every=10
    )
    view = RunView(RUN, RunReader(path), lambda: stored_state(path, RUN), path)
    server = WebServer(AgentSite(CollectorRegistry(), view))
    yield f"http://127.0.0.1:{server.start()}/runs/{RUN}/"
    server.stop()


class Answers:
    """Holds or refuses the requests of a page, by the last part of their path."""

    def __init__(self, page):
        self.held, self.is_held, self.refused = [], lambda _: False, frozenset()
        page.route("**/api/**", self._answer)

    def _answer(self, route):
        name = urlsplit(route.request.url).path.rpartition("/api/")[2]
        if name in self.refused:
            route.fulfill(status=503, json={"error": "The storage of this run does not answer."})
        elif self.is_held(name):
            self.held.append(route)
        else:
            route.continue_()

    def release(self):
        self.is_held = lambda _: False
        for route in self.held:
            route.continue_()
        self.held.clear()


@pytest.fixture
def page(browser):
    problems = PageProblems()
    problems.expect("503")
    context = new_context(browser, problems, viewport={"width": 1280, "height": 1600})
    yield context.new_page()
    context.close()
    problems.check()


def test_nothing_untrue_is_stated_while_answers_are_slow(page, url):
    answers = Answers(page)
    answers.is_held = lambda _: True
    page.goto(url)
    expect(page.get_by_text("Loading the run.")).to_be_visible()
    expect(page.get_by_role("heading", name="Machine curves")).to_be_hidden()
    assert not UNTRUE.search(page.evaluate(VISIBLE_TEXT))

    answers.is_held = lambda name: name not in ("run", "events")
    for route in [each for each in answers.held if each.request.url.endswith("/api/run")]:
        answers.held.remove(route)
        route.continue_()
    expect(page.get_by_text("Loading the run.")).to_be_hidden()
    expect(page.locator("#section-curves").get_by_text("Loading the signals.")).to_be_visible()
    expect(page.locator("#section-timeline").get_by_text("Loading the timeline.")).to_be_visible()
    for summary in page.locator("#sections > details:not([open]) > summary").all():
        if summary.is_visible():
            summary.click()
    assert not UNTRUE.search(page.evaluate(VISIBLE_TEXT))
    # Sections that this run has not.
    for absent in ("Nodes", "Images and histograms", "Loss surface", "Insight", "Machine curves"):
        expect(page.get_by_role("heading", name=absent, exact=True)).to_be_hidden()
    assert accessibility_problems(page) == []

    answers.is_held = lambda name: name == "series"
    answers.held, held = [], answers.held
    for route in held:
        route.continue_()
    loss = page.locator("#section-curves [data-chart=loss]")
    loss.scroll_into_view_if_needed()
    expect(loss.get_by_text("Loading Loss.")).to_be_visible()
    answers.release()
    expect(loss.locator(".main-svg").first).to_be_visible()
    expect(page.get_by_text(re.compile("^Loading")).filter(visible=True)).to_have_count(0)


def test_what_cannot_be_loaded_is_stated_and_loaded_again(page, url):
    answers = Answers(page)
    answers.refused = {"run", "signals", "timeline", "incidents", "series", "deliveries", "cases"}
    page.goto(url)
    reason = "could not be loaded: The storage of this run does not answer."
    expect(page.get_by_text(f"The run {reason}")).to_be_visible()

    # Tried again without a click.
    answers.refused = answers.refused - {"run"}
    expect(page.get_by_role("heading", level=1)).to_have_text(RUN)
    curves, timeline = page.locator("#section-curves"), page.locator("#section-timeline")
    expect(curves.get_by_text(f"The signals {reason}")).to_be_visible()
    expect(timeline.get_by_text(f"The timeline {reason}")).to_be_visible()
    page.locator("#section-incidents summary").click()
    expect(page.get_by_text(f"The incidents {reason}")).to_be_visible()
    assert not UNTRUE.search(page.evaluate(VISIBLE_TEXT))
    assert accessibility_problems(page) == []

    answers.refused = {"series"}
    curves.get_by_role("button", name="Load the signals again").click()
    loss = curves.locator("[data-chart=loss]")
    loss.scroll_into_view_if_needed()
    expect(loss.get_by_text(f"Loss {reason}")).to_be_visible()
    answers.refused = frozenset()
    expect(loss.locator(".main-svg").first).to_be_visible()
    # Empty, and known to be.
    expect(timeline).not_to_have_attribute("open", "")
    expect(page.locator("#section-incidents").get_by_text("None.")).to_be_visible()
    expect(page.get_by_text("could not be loaded").filter(visible=True)).to_have_count(0)
