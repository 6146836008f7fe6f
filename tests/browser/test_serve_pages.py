"""`sentinel serve` in a browser: the list of runs, a run that is over, comparisons, a link."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect
from support.browsers import (
    TIMEOUT_MS,
    PageProblems,
    accessibility_problems,
    new_context,
    overflow,
    still_box,
)
from support.serve_command import serve_command
from support.stored_homes import BEGIN, write_run

pytestmark = pytest.mark.timeout(1200)
expect.set_options(timeout=TIMEOUT_MS)
PHONE = {"width": 390, "height": 844}
HOUR = 3600.0
FAULTY, HEALTHY = "grpo-7b-01", "grpo-7b-02"
RUNS = [f"{'grpo-7b' if n % 2 or n == 2 else 'sft-8b'}-{n:02}" for n in range(1, 11)]
DRAWN = "(name) => document.querySelectorAll(`[data-chart='${name}'] path.js-line`).length"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with ten runs on two hosts: one collapsed, one has not ended, one has one rank."""
    home = tmp_path_factory.mktemp("serve")
    for number in range(1, 11):
        is_grpo = number % 2 == 1 or number == 2
        write_run(
            home,
            run=f"{'grpo-7b' if is_grpo else 'sft-8b'}-{number:02}",
            kind="grpo" if is_grpo else "sft",
            steps=60 + 10 * number if number > 2 else 200,
            ranks=1 if number == 4 else 2,
            fault_at=140 if number == 1 else None,
            outcome="" if number == 3 else "finished",
            begin=BEGIN - number * HOUR,
            seed=number,
            metadata={"host": f"gpu-{number % 2}", "learning_rate": number * 1e-6},
        )
    return home


@pytest.fixture(scope="module")
def url(home):
    with serve_command(home) as address:
        yield address


@pytest.fixture(scope="module")
def problems():
    return PageProblems()


@pytest.fixture(scope="module")
def page(browser, problems):
    """A page that all tests use, one after another."""
    context = new_context(browser, problems, viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture(autouse=True)
def no_problems(problems):
    yield
    problems.check()


def assert_usable(page):
    """No problem of accessibility, dark and wide or light and on a phone; no sideways scrolling."""
    size = page.viewport_size
    for shown, theme in ((size, "dark"), (PHONE, "light")):
        page.set_viewport_size(shown)
        page.emulate_media(color_scheme=theme)
        assert accessibility_problems(page) == [], theme
        assert overflow(page) == []
    page.set_viewport_size(size)


def test_the_list_is_filtered_sorted_and_grouped(page, url):
    page.goto(url)
    expect(page.locator("#runs a.run")).to_have_count(10)
    expect(page.locator("#runs a.run").first).to_have_text(FAULTY)
    row = page.get_by_role("row").filter(has_text=FAULTY)
    expect(row).to_contain_text("Policy collapse")
    expect(row).to_contain_text("ended badly")
    expect(row.locator("svg")).to_be_visible()
    assert_usable(page)

    page.get_by_label("Filter runs").fill("sft gpu-0")
    expect(page.locator("#runs a.run")).to_have_count(4)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#runs a.run").first).to_have_text("sft-8b-04")
    expect(page).to_have_url(re.compile(re.escape("filter=sft+gpu-0")))
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("Group").select_option("host")
    expect(page.locator(".group-row")).to_have_count(2)
    page.get_by_role("button", name=re.compile("unfinished 1")).click()
    expect(page.locator("#runs a.run")).to_have_text(["grpo-7b-03"])


def test_settings_are_columns_and_a_note_is_written(page, url, home):
    page.goto(f"{url}/?filter=grpo")
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name=re.compile("learning_rate")).check()
    assert accessibility_problems(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="learning_rate").click()
    expect(page.locator("#runs td.setting")).to_have_text(
        ["1e-6", "2e-6", "3e-6", "5e-6", "7e-6", "9e-6"]
    )
    page.get_by_label("Group").select_option("By learning_rate")
    expect(page.locator(".group-row").first).to_have_text("learning_rate 1e-06 1 run")

    edit = page.get_by_role("button", name=f"Add a note about {HEALTHY}")
    edit.focus()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Note").fill("<img src=x onerror=alert(1)>\ngood seed")
    page.get_by_label("Your name").fill("ana")
    assert accessibility_problems(page) == []
    page.get_by_role("button", name="Save", exact=True).click()
    row = page.get_by_role("row").filter(has_text="good seed")
    expect(row).to_contain_text("<img src=x onerror=alert(1)>")
    # The next list may have been read before.
    listed = page.evaluate("performance.now()")
    page.wait_for_function(
        "at => performance.getEntriesByType('resource').some(({ name, startTime }) =>"
        " name.includes('api/runs') && startTime > at)",
        arg=listed,
    )
    expect(row).to_contain_text("<img src=x onerror=alert(1)>")
    assert_usable(page)
    # A link shows the same, and the note is stored.
    page.goto(page.url)
    expect(page.locator("#runs td.setting").last).to_have_text("9e-6")
    expect(row).to_contain_text(HEALTHY)

    page.goto(f"{url}/runs/{HEALTHY}/")
    expect(page.locator(".run-note")).to_contain_text("good seed")
    page.get_by_role("button", name="Edit the note").click()
    page.get_by_role("textbox", name="Note").fill("")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("button", name="Add a note")).to_be_visible()
    assert json.loads((home / "runs" / HEALTHY / "note.json").read_text())["text"] == ""


def test_a_run_that_is_over_has_everything(page, url):
    page.goto(f"{url}/?filter={FAULTY}")
    # The list and the page name the same problem.
    subject = page.locator("#runs .subject").inner_text()
    assert subject.startswith("Policy collapse")
    page.get_by_role("link", name=FAULTY).click()
    page.wait_for_url(f"{url}/runs/{FAULTY}/")
    expect(page.locator(".badge").first).to_have_text("finished")
    expect(page.locator(".verdict strong")).to_have_text(subject)
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)
    page.locator("[data-chart=loss]").scroll_into_view_if_needed()
    page.wait_for_function(f"name => ({DRAWN})(name) > 0", arg="loss")
    for section, text in {
        "samples": "Write a story about a fox.",
        "deliveries": "webhook",
        "settings": "Qwen/Qwen3-8B",
        "incidents": "kl_blowup",
    }.items():
        details = page.locator(f"#section-{section}")
        details.evaluate("(each) => { each.open = true; }")
        expect(details).to_contain_text(text)
    assert_usable(page)


def test_a_zoom_stays_in_the_link(page, url):
    page.goto(f"{url}/runs/{FAULTY}/?from=100&to=160")
    page.locator("[data-chart=loss]").scroll_into_view_if_needed()
    page.wait_for_function(f"name => ({DRAWN})(name) > 0", arg="loss")
    shown = page.evaluate(
        "() => document.querySelector('[data-chart=loss] .js-plotly-plot').layout.xaxis.range"
    )

    assert shown == [100, 160]


def test_two_runs_are_chosen_and_compared(page, url):
    page.goto(url)
    for run in (FAULTY, HEALTHY):
        page.get_by_label(f"Choose {run}").check()
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("2 runs")
    settings = page.locator("details", has=page.get_by_role("heading", name="Settings that differ"))
    expect(settings).to_contain_text("learning_rate")
    changed = page.locator("details", has=page.get_by_role("heading", name="What changed"))
    expect(changed).to_contain_text(f"{HEALTHY} leaves the band of {FAULTY} at step")
    expect(changed.get_by_role("table").nth(1)).to_contain_text("learning_rate")
    # They have the same model.
    assert "Qwen3" not in settings.inner_text()
    expect(page.locator("details", has_text="Problems").first).to_contain_text("Policy collapse")
    page.locator("[data-chart='0:loss']").scroll_into_view_if_needed()
    page.wait_for_function(f"name => ({DRAWN})(name) >= 2", arg="0:loss")
    assert_usable(page)

    # A file has all records, not the points of the picture; an unknown axis is that of steps.
    page.goto(f"{page.url}&axis=signal%3Anothing")
    expect(page.get_by_label("Axis")).to_have_value("step")
    chart = page.locator("[data-chart='0:loss']")
    chart.scroll_into_view_if_needed()
    chart.get_by_role("button", name=re.compile("^Save")).click()
    with page.expect_download() as download, page.expect_request(re.compile("points=5000")):
        page.get_by_role("menuitem", name=re.compile("^CSV")).click()
    rows = download.value.path().read_text().splitlines()
    assert len(rows) == 1 + 2 * 200


def test_many_runs_are_told_apart(page, url):
    """Ten runs in one page load: their lines, the one that is looked at, filter, and best run."""
    page.goto(f"{url}/compare?{'&'.join(f'run={name}' for name in RUNS)}")
    legend = page.get_by_label("Runs in the curves").get_by_role("button")
    expect(legend).to_have_text(RUNS)
    page.locator("#section-curves").evaluate("(each) => each.scrollIntoView()")
    page.wait_for_function(f"name => ({DRAWN})(name) === 10", arg="0:loss")
    looks = page.evaluate(
        """() => [...document.querySelectorAll("[data-chart='0:loss'] .trace path.js-line")]
            .map(({ style }) => `${style.stroke} ${style.strokeDasharray}`)"""
    )
    assert len({*looks}) == 10
    assert (
        page.evaluate(
            """() => new Set([...document.querySelectorAll(".run-legend line")]
            .map((each) => `${each.style.stroke} ${each.getAttribute("stroke-dasharray")}`)).size"""
        )
        == 10
    )

    # The focus in the legend, or in a table, shows the run in all charts.
    faded = page.locator("[data-chart='0:loss'] .trace.faded")
    legend.nth(2).focus()
    expect(faded).to_have_count(9)
    page.locator("#section-settings a", has_text=RUNS[9]).hover()
    expect(page.locator("[data-chart='0:loss'] .trace.highlighted")).to_have_count(1)
    legend.nth(2).blur()
    page.mouse.move(1, 1)
    expect(faded).to_have_count(0)
    legend.nth(3).click()
    page.wait_for_function(f"name => ({DRAWN})(name) === 9", arg="0:loss")
    # The pointer is at a run that is hidden.
    expect(faded).to_have_count(0)
    page.get_by_label("Filter charts by name").fill("^rew|kl")
    expect(page.locator("#section-curves .chart:visible")).to_have_count(3)

    # Any metric is the axis: the reward against the KL, with the runs closest to the pointer.
    page.get_by_label("Axis").select_option(label="KL to the reference")
    expect(page).to_have_url(re.compile("axis=signal%3Akl_ref"))
    reward = page.locator(f"[data-chart='{RUNS.index(FAULTY)}:reward']")
    expect(reward.locator("path.point").first).to_be_attached()
    expect(reward).to_contain_text("kl_ref (nats)")
    box = still_box(reward.locator(".plot"))
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.7)
    expect(page.locator(".tooltip strong")).to_contain_text("kl_ref")
    expect(page.locator(".tooltip tr.nearest, .tooltip tr:only-child")).to_have_count(1)
    page.mouse.move(1, 1)
    page.get_by_label("Axis").select_option("step")

    # The best reward stands at the number by which it is the best.
    row = page.locator("#section-metrics tr").filter(has=page.get_by_text("Reward", exact=True))
    expect(row.locator(".best", has_text="best")).to_contain_text("last tenth")
    assert_usable(page)


def test_what_matters_over_the_runs_is_worked_out_and_shown(page, url):
    page.goto(url)
    page.get_by_role("searchbox").fill("7b")
    expect(page.locator("tbody a.run")).to_have_count(6)
    link = page.get_by_role("link", name="What matters")
    expect(link).to_have_attribute("href", "importance?filter=7b")

    page.goto(f"{url}/importance?outcome=loss")
    expect(page.locator(".importance .summary")).to_contain_text("10 runs. ")
    expect(page.get_by_role("status")).to_be_hidden()
    expect(page.locator(".importance-curve .scatterlayer path").first).to_be_attached()
    expect(page.get_by_role("region", name="Settings").locator("tbody tr")).not_to_have_count(0)
    assert_usable(page)

    lines = page.locator(".importance-lines .plot")
    lines.scroll_into_view_if_needed()
    expect(lines.locator(".scatterlayer path.js-line").first).to_be_attached()
    box = still_box(lines)
    top, bottom = (box["y"] + share * box["height"] for share in (0.05, 0.4))
    page.mouse.move(box["x"] + box["width"] - 20, top)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 90, bottom, steps=5)
    page.mouse.up()
    expect(page.locator(".importance")).to_contain_text("stand out.")
    page.get_by_role("button", name="Show all runs").click()
    expect(page.locator(".importance")).to_contain_text("Draw a box")


def test_a_run_is_found_opened_and_read_by_keys(page, url):
    page.goto(url)
    expect(page.locator("#runs a.run")).to_have_count(10)
    page.keyboard.press("/")
    page.keyboard.type(FAULTY)
    expect(page.locator("#runs a.run")).to_have_count(1)
    page.keyboard.press("Tab")
    for _ in range(20):
        if page.evaluate("() => document.activeElement.classList.contains('run')"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/runs/{FAULTY}/")
    expect(page.locator(".verdict")).to_contain_text("Policy collapse")
    page.keyboard.press("n")
    focused = page.evaluate("() => document.activeElement.id")

    assert focused.startswith("case-")


def test_the_report_of_the_page_is_readable_without_the_server(page, url, tmp_path):
    page.goto(f"{url}/runs/{FAULTY}/")
    with page.expect_download() as download:
        page.get_by_role("link", name="Report").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    page.goto(path.as_uri())

    assert path.suffix == ".html"
    expect(page.get_by_role("heading", level=1)).to_contain_text(FAULTY)
    expect(page.locator("main")).to_contain_text("Policy collapse")
    assert accessibility_problems(page) == []
    page.set_viewport_size(PHONE)
    assert overflow(page) == []
