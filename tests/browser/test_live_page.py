"""The page of a run under way, as people use it: values, a case, a restart, the end."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.sync_api import expect
from support.browsers import TIMEOUT_MS, PageProblems, accessibility_problems, new_context
from support.live_runs import STEP_SECONDS, TIMEOUT_SECONDS
from support.rank_processes import until

pytestmark = pytest.mark.timeout(1200)
expect.set_options(timeout=TIMEOUT_MS)

DRAWN_POINTS = 400
MISSED_STEPS = 40
"""More than lie between two points of a run that is as long as this one."""
SET_HIDDEN = """(isHidden) => {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""What a browser does when another tab is chosen."""
DRAWN_STEPS = """(name) => {
  const plot = document.querySelector(`[data-chart="${name}"] .js-plotly-plot`);
  const steps = (plot?.data ?? []).flatMap(({ x }) => [...(x ?? [])]);
  return [...new Set(steps.filter((step) => step !== null).map(Math.round))].sort((a, b) => a - b);
}"""


@pytest.fixture(scope="module")
def problems():
    return PageProblems()


@pytest.fixture(scope="module")
def shown(live_run, browser, problems):
    """The page of the run, which stays open for all tests."""
    live_run.until_step(5)
    context = new_context(browser, problems, viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    page.goto(f"{live_run.url}/")
    yield page
    context.close()


@pytest.fixture(autouse=True)
def no_problems(problems):
    yield
    problems.check()


def drawn_steps(page, name="loss"):
    """The steps in the chart of that signal, in order."""
    return page.evaluate(DRAWN_STEPS, name)


def longest_gap(page):
    """The largest number of steps between two points of the chart."""
    return max(after - before for before, after in pairwise(drawn_steps(page)))


def section(page, name):
    return page.locator(f"#section-{name}")


def test_the_link_of_the_agent_leads_to_the_page_of_its_run(shown, live_run):
    shown.wait_for_url(f"{live_run.url}/runs/{live_run.run}/")

    expect(shown).to_have_title(re.compile(rf"^{live_run.run}: running"))
    expect(shown.get_by_role("heading", level=1)).to_have_text(live_run.run)


def test_the_page_links_to_the_dashboard_of_its_run(shown, live_run):
    """As notifications do, with the setting `dashboard_url`."""
    link = shown.get_by_role("link", name="Dashboard", exact=True)

    expect(link).to_have_attribute(
        "href", f"https://grafana.example/d/health?var-run={live_run.run}"
    )


def test_new_values_appear_without_a_reload(shown, live_run):
    until(lambda: drawn_steps(shown), TIMEOUT_SECONDS, "a curve is drawn")
    first = drawn_steps(shown)[-1]
    until(lambda: drawn_steps(shown)[-1] > first + 20, TIMEOUT_SECONDS, "the curve grows")
    step = int(shown.locator(".tiles dd").first.inner_text().split()[0].replace(",", ""))

    assert step > first
    assert step <= live_run.step()


def test_a_page_that_was_hidden_or_refused_lacks_no_step(shown, live_run, problems):
    """The stream continues where the page was; it ends with an error, too, and is opened again."""
    problems.expect("503")
    shown.evaluate(SET_HIDDEN, True)
    hidden_at = live_run.step()
    live_run.until_step(hidden_at + MISSED_STEPS)
    shown.route("**/api/events*", lambda route: route.fulfill(status=503, json={"error": "busy"}))
    with shown.expect_response("**/api/events*"):
        shown.evaluate(SET_HIDDEN, False)
    refused_at = live_run.step()
    live_run.until_step(refused_at + MISSED_STEPS)
    shown.unroute("**/api/events*")
    newest = refused_at + MISSED_STEPS
    until(lambda: drawn_steps(shown)[-1] > newest, TIMEOUT_SECONDS, "the curve goes on")

    assert any("/api/events?last_event_id=" in each for each in problems.requests)
    assert longest_gap(shown) <= 2 + 4 * drawn_steps(shown)[-1] / DRAWN_POINTS


def test_a_fault_becomes_a_case_on_the_open_page(shown, live_run):
    assert shown.locator(".card.case").count() == 0
    # After the first checkpoint, which is at step 50.
    live_run.until_step(60)
    live_run.turn_on()
    card = shown.locator(".card.case.critical")

    expect(card.get_by_role("heading", name=re.compile("^Policy collapse"))).to_be_visible()
    expect(card).to_contain_text("What to do")
    expect(card).to_contain_text("Last good checkpoint: step")
    expect(shown).to_have_title(re.compile("^‼"))
    expect(shown.locator(".verdict.critical")).to_contain_text("Policy collapse")
    # Cases are before everything else now.
    assert shown.locator("#sections > details").first.get_attribute("id") == "section-cases"
    assert accessibility_problems(shown) == []


def test_the_case_is_acknowledged_on_the_page(shown, live_run):
    live_run.turn_on()
    card = shown.locator(".card.case").first
    card.get_by_role("button", name="Acknowledge").click()
    dialog = shown.get_by_role("dialog")
    dialog.get_by_label("Your name").fill("Ana <b>")
    dialog.get_by_label("Comment").fill("I look at it.")
    dialog.get_by_role("button", name="Acknowledge").click()

    expect(card).to_contain_text("Acknowledged by Ana <b>: I look at it.")
    acknowledged = [each["acknowledged"] for each in live_run.state()["incidents"]]
    assert {each["author"] for each in acknowledged if each} == {"Ana <b>"}
    card.get_by_role("button", name="Revoke acknowledgement").click()
    expect(card.get_by_role("button", name="Acknowledge")).to_be_visible()


def test_the_notification_is_marked_on_the_page(shown, live_run):
    card = shown.locator(".card.case").first
    card.get_by_role("button", name="Feedback").click()
    dialog = shown.get_by_role("dialog")
    dialog.get_by_label("The notification was").select_option("false")
    dialog.get_by_label("Comment").fill("A planned <b>change")
    dialog.get_by_role("button", name="Store").click()

    expect(card).to_contain_text("Marked as a false alarm by Ana <b>: A planned <b>change")
    (case, *_) = live_run.state()["cases"]
    assert case["feedback"]["mark"] == "false"


def test_a_detector_is_silenced_on_the_page(shown, live_run):
    card = shown.locator(".card.case").first
    card.get_by_role("button", name="Silence").click()
    dialog = shown.get_by_role("dialog")
    dialog.get_by_label("Notifications of").select_option("")
    dialog.get_by_label("Comment").fill("Maintenance.")
    dialog.get_by_role("button", name="Silence").click()
    banner = shown.locator(".banner", has_text="Notifications of all detectors are silenced until")

    expect(banner).to_contain_text("by Ana <b>: Maintenance.")
    banner.get_by_role("button", name="End silence").click()
    expect(banner).to_have_count(0)
    assert live_run.state()["silences"] == []


def test_the_notification_is_listed_as_delivered(shown, live_run):
    deliveries = section(shown, "deliveries")
    deliveries.locator("summary").click()

    expect(deliveries.get_by_role("row", name=re.compile("webhook.*delivered"))).not_to_have_count(
        0
    )
    assert live_run.receiver.accepted


def test_the_curves_have_no_gap_after_a_restart_of_the_agent(shown, live_run, problems):
    problems.expect("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET")
    shown.locator("[data-chart=loss]").scroll_into_view_if_needed()
    live_run.kill_agent()
    expect(shown.get_by_text("The agent does not answer.")).to_be_visible()
    live_run.start_agent()
    expect(shown.get_by_text("The agent does not answer.")).to_be_hidden()
    restarted = live_run.step()
    until(lambda: drawn_steps(shown)[-1] > restarted, TIMEOUT_SECONDS, "the curve goes on after it")

    # A long run is drawn with a point for some steps; the agent was away for many more of them.
    assert longest_gap(shown) <= 2 + 4 * drawn_steps(shown)[-1] / DRAWN_POINTS


def test_the_end_of_the_run_is_shown(shown, live_run):
    live_run.end()

    expect(shown).to_have_title(re.compile(f"{live_run.run}: finished"))
    expect(shown.locator(".verdict")).to_contain_text("It lasted until the run finished.")
    expect(shown.locator(".card.case").get_by_role("button", name="Silence")).to_have_count(0)
    assert STEP_SECONDS
