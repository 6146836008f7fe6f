"""Reports as files in a browser: without a server, on paper, and of several runs."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from support.browsers import still_box
from support.stored_homes import write_run
from typer.testing import CliRunner

from sentinel.cli.main import app

SAME_ZOOM = """() => {
  const chart = (name) => document.querySelector(`[data-chart=${name}] .js-plotly-plot`);
  const range = (name) => chart(name)?.layout.xaxis.range.map(Math.round);
  const [first, other] = [range("loss"), range("reward")];
  return first && other && String(first) === String(other) && first[0] > 20;
}"""
PAPER = """() => ({
  theme: document.documentElement.dataset.theme ?? "",
  closed: document.querySelectorAll("details:not([open])").length,
  unscaled: document.querySelectorAll(".chart .main-svg:not([viewBox])").length,
})"""
HOURS_SHOWN = """() =>
  document.querySelector("[data-signal=Loss] .js-plotly-plot")?.layout.xaxis.range[1] < 0.2"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    write_run(home, run="sick", steps=160, fault_at=100, ranks=2)
    write_run(home, run="well", steps=120, ranks=1, seed=2, metadata={"learning_rate": 5e-7})
    return home


@pytest.fixture(scope="module")
def write_report(home, tmp_path_factory):
    """Returns a function: the address of the report of these runs as a file."""
    folder = tmp_path_factory.mktemp("reports")

    def write(*arguments):
        path = folder / f"{'-'.join(arguments).replace('-', '')}.html"
        environ = {"SENTINEL_HOME": str(home)}
        done = CliRunner().invoke(app, ["report", *arguments, "-o", str(path)], env=environ)
        assert done.exit_code == 0, done.output
        return path.as_uri()

    return write


def test_a_report_shows_everything_without_a_server(write_report, browser_page, page_problems):
    """And its charts zoom together; on paper it is light, and everything is open."""
    url = write_report("sick")
    page = browser_page
    page.emulate_media(color_scheme="dark")
    page.goto(url)

    expect(page.locator("h1")).to_have_text("sick")
    expect(page.locator(".report-verdict")).to_contain_text("Policy collapse")
    expect(page.locator("#section-cases .evidence li").first).to_contain_text("Reward fell")
    expect(page.locator("[data-chart=loss] .js-plotly-plot")).to_have_count(1)
    expect(page.locator("#section-samples .sample").first).to_be_visible()
    expect(page.locator("#section-settings")).to_contain_text("Qwen/Qwen3-8B")
    assert {urlsplit(each).scheme for each in page_problems.requests} <= {"file", "data", "blob"}

    chart = page.locator("[data-chart=loss] .nsewdrag").first
    box = still_box(chart)
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 20, steps=4)
    page.mouse.up()
    page.wait_for_function(SAME_ZOOM)

    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(PAPER) == {"theme": "light", "closed": 0, "unscaled": 0}
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(PAPER)["theme"] == ""


def test_a_report_of_several_runs_compares_them_and_has_the_page_of_each(
    write_report, browser_page
):
    page = browser_page
    page.goto(write_report("sick", "well"))

    expect(page.locator("h1")).to_have_text("Comparison of 2 runs")
    expect(page.locator("#section-problems")).to_contain_text("Policy collapse")
    expect(page.locator("#section-settings")).to_contain_text("learning_rate")
    lines = page.locator("[data-signal=Loss] path.js-line")
    expect(lines).to_have_count(2)

    page.get_by_label("Axis").select_option("hours")
    page.wait_for_function(HOURS_SHOWN)
    page.get_by_label("Runs in the curves").get_by_role("button", name="well").click()
    expect(lines).to_have_count(1)

    page.locator("#section-runs a", has_text="well").click()
    expect(page.locator("h1")).to_have_text("well")
    expect(page.locator(".report-verdict")).to_contain_text("no problem was open")
    expect(page.get_by_text("All runs")).to_have_attribute("href", re.compile("html$"))


def test_without_the_library_curves_are_small_pictures(write_report, browser_page):
    browser_page.goto(write_report("--no-charts", "sick"))

    expect(browser_page.locator("[data-chart=loss] svg.sparkline")).to_have_count(1)
    assert browser_page.evaluate("() => typeof Plotly") == "undefined"
