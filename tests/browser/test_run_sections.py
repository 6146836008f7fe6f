"""The page of a run that is over: its sections, samples, keys, themes and widths."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry
from support.browsers import PageProblems, new_context
from support.rank_processes import until
from support.stored_homes import write_run

from sentinel.metrics.stored_state import stored_state
from sentinel.model.incident import Resolution
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store import notification_codec
from sentinel.store.cases import store_case
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.run_reader import RunReader
from sentinel.web.agent_site import AgentSite
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer

pytestmark = pytest.mark.timeout(600)
RUN = "grpo-7b"
CHART_SECTIONS = ("curves", "rank-map", "machine-curves")
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
IS_TOO_WIDE = "() => document.documentElement.scrollWidth > window.innerWidth"
OPEN_ALL = "() => document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def problems():
    return PageProblems()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A run whose policy collapsed until it ended, and whose case was acknowledged later."""
    database = write_run(tmp_path_factory.mktemp("home"), run=RUN, steps=160, fault_at=110)
    with closing(connect(database)) as connection:
        passed = {"check": "weights", "problem": ""}
        report = Record(RUN, WHOLE_RUN, 8, 9.0, Event.CHECK, {"rank": 0.0}, passed)
        History(connection).update(Result(report))
        for (text,) in connection.execute("select notification from case_history").fetchall():
            case = notification_codec.decode(text)
            for incident in case.incidents:
                incident.resolve(Resolution.ACKNOWLEDGED, 160, case.time)
                History(connection).store_incident(incident)
            store_case(connection, replace(case, reason=NotificationReason.RESOLVED))
    view = RunView(RUN, RunReader(database), lambda: stored_state(database, RUN), database)
    server = WebServer(lambda: AgentSite(CollectorRegistry(), view))
    yield f"http://127.0.0.1:{server.start()}/runs/{RUN}/"
    server.stop()


@pytest.fixture(scope="module")
def shown(browser, url, problems):
    """The page, which stays open for all tests; its charts are closed.

    Drawing them takes seconds, and other tests look at them.
    """
    stored = [{"name": f"sentinel.section.{name}", "value": "closed"} for name in CHART_SECTIONS]
    storage = {"origins": [{"origin": url.partition("/runs/")[0], "localStorage": stored}]}
    options = {"viewport": WIDE, "color_scheme": "light", "storage_state": storage}
    context = new_context(browser, problems, **options)
    page = context.new_page()
    page.goto(url)
    yield page
    context.close()


@pytest.fixture
def page(shown, problems):
    yield shown
    problems.check()


def section(page, name):
    return page.locator(f"#section-{name}")


def test_a_case_that_lasted_to_the_end_is_the_verdict(page):
    card = page.locator(".card.case")

    expect(card).to_have_count(1)
    expect(card).to_contain_text("What to do")
    expect(page.locator(".verdict.critical")).to_contain_text("Policy collapse")
    expect(section(page, "cases").locator(".note")).to_have_text("1 open when the run ended")
    assert page.locator("#sections > details").first.get_attribute("id") == "section-cases"
    # Nothing can be changed of it.
    expect(card.get_by_role("button", name="Acknowledge")).to_have_count(0)
    expect(card.get_by_role("button", name="Silence")).to_have_count(0)


def test_a_case_shows_the_curves_of_its_signals(page):
    curve = page.locator(".case-curve").filter(has_text="KL to the reference")
    expect(curve).to_have_text(re.compile(r"0\.0\d+ → \d+(\.\d+)? nats"))
    curve.click()

    expect(page).to_have_url(re.compile(r"[?&]from=\d+&to=160"))
    expect(section(page, "curves")).to_have_attribute("open", "")
    section(page, "curves").locator("summary").click()
    page.get_by_label("Range").select_option("all")


def test_sections_stay_as_the_user_left_them(page, url):
    summary = section(page, "settings").locator("summary")
    expect(section(page, "settings").get_by_text("Qwen/Qwen3-8B")).to_be_hidden()
    summary.click()
    section(page, "samples").locator("summary").click()
    page.goto(url)

    expect(section(page, "settings").get_by_text("Qwen/Qwen3-8B")).to_be_visible()
    expect(section(page, "samples").locator(".sample").first).to_be_hidden()
    section(page, "samples").locator("summary").click()
    section(page, "settings").get_by_label("Filter settings").fill("max_")
    expect(section(page, "settings").get_by_role("row")).to_have_count(2)
    summary.click()


def test_samples_are_found_compared_and_sorted(page):
    samples = section(page, "samples")
    shown = samples.locator(".sample")
    # After the fault, all of a text is one phrase.
    expect(shown.first.locator("mark")).to_contain_text("the fox the fox")
    expect(shown.first).to_contain_text("100 % repeated")
    samples.get_by_label("Search samples").fill("step 100, rank 2")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("Name a prime above 100.")
    samples.get_by_label("Search samples").fill("no such words")
    expect(samples).to_contain_text("No sample contains these words.")

    samples.get_by_label("Search samples").fill("")
    samples.get_by_label("Step", exact=True).select_option("100")
    expect(shown).to_have_count(4)
    samples.get_by_label("Sort").select_option("highest")

    def rewards():
        return [float(re.search(r"reward ([\d.]+)", each)[1]) for each in shown.all_inner_texts()]

    until(
        lambda: rewards() == sorted(rewards(), reverse=True), 240.0, "the highest reward is first"
    )

    samples.get_by_label("Compare with step").select_option("80")
    side = shown.first.locator(".sides > div")
    expect(side.nth(0)).to_contain_text("Step 80")
    expect(side.nth(0).locator("del")).not_to_have_count(0)
    expect(side.nth(1)).to_contain_text("Step 100")
    expect(side.nth(1).locator("ins").last).to_have_text("100")


def test_the_set_up_lists_each_check(page):
    assert section(page, "set-up").locator(".note").inner_text().startswith("1 passed, ")
    section(page, "set-up").locator("summary").click()
    row = section(page, "set-up").get_by_role("row").nth(1)
    expect(row).to_contain_text("Reported at step 8 by rank 0.")
    expect(row.get_by_role("link")).to_have_attribute("href", re.compile("weights_not_updated$"))
    expect(section(page, "set-up")).to_contain_text("two or more ranks")


def test_deliveries_and_coverage_are_listed(page):
    section(page, "deliveries").locator("summary").click()
    row = section(page, "deliveries").get_by_role("row").nth(1)
    expect(row).to_contain_text("webhook")
    expect(row).to_contain_text("delivered")
    expect(section(page, "coverage").locator(".note")).to_contain_text("loss, grad_norm")


def test_the_page_works_by_keys(page, url):
    page.goto(url)
    # Sections take the focus once the run is shown.
    expect(section(page, "coverage").locator("summary")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the sections")).to_be_focused()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)

    page.keyboard.press("/")
    search = page.get_by_role("dialog", name="Search")
    page.keyboard.type("what is mon")
    expect(search.get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(section(page, "coverage").locator("summary")).to_be_focused()
    expect(section(page, "coverage").get_by_text("Monitored outcomes")).to_be_visible()
    # The focus is on a title, so Enter closes it.
    page.keyboard.press("Enter")
    expect(section(page, "coverage").get_by_text("Monitored outcomes")).to_be_hidden()

    page.keyboard.press("n")
    expect(page.locator(".card.case")).to_be_focused()
    for key in ("l", "a", "s", "2"):
        page.keyboard.press(key)
    expect(page.get_by_role("button", name="Log")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Time (UTC)", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    for part in ("axis=time", "smoothing=0.6", "log=1", "from=", "to="):
        expect(page).to_have_url(re.compile(re.escape(part)))
    page.keyboard.press("0")
    expect(page.get_by_label("Range")).to_have_value("all")
    # What is typed is no shortcut.
    page.get_by_label("Search samples").press_sequentially("la?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label("Search samples")).to_have_value("la?")


def test_a_link_leads_to_a_case(page, url):
    page.goto("about:blank")
    page.goto(f"{url}#case-{RUN}%2Freward_collapse%231")

    expect(page.locator("[id='case-grpo-7b/reward_collapse#1']")).to_be_focused()


def test_the_theme_is_remembered(page, url):
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_label("Theme").select_option("dark")
    page.goto(url)

    assert page.evaluate(background) != light
    page.get_by_label("Theme").select_option("auto")
    assert page.evaluate(background) == light


def test_a_phone_shows_everything(page):
    page.set_viewport_size(PHONE)
    page.evaluate(OPEN_ALL)
    expect(section(page, "incidents").get_by_role("row")).not_to_have_count(1)
    expect(page.get_by_label("Smoothing")).to_be_hidden()
    page.get_by_role("button", name="View").click()
    expect(page.get_by_label("Smoothing")).to_be_visible()

    assert not page.evaluate(IS_TOO_WIDE)
