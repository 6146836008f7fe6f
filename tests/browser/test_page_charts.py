"""The charts of a run page: curves, timeline of detectors, heat map of ranks."""

from __future__ import annotations

import csv
import re

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry
from support.browsers import PageProblems, accessibility_problems, new_context, still_box
from support.rank_processes import until
from support.stored_homes import write_run

from sentinel.metrics.stored_state import stored_state
from sentinel.store.run_reader import RunReader
from sentinel.web.agent_site import AgentSite
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer

pytestmark = pytest.mark.timeout(1200)
TIMEOUT_SECONDS = 240.0
expect.set_options(timeout=1e3 * TIMEOUT_SECONDS)
HOSTILE_NAME = 'my/<b style="color:red">%{y}</b>'
STEPS, FAULT_AT = 480, 320

PLOTS = """() => Object.fromEntries([...document.querySelectorAll("#section-curves [data-chart]")]
  .map((chart) => [chart.dataset.chart, chart.querySelector(".js-plotly-plot")])
  .filter(([, plot]) => plot)
  .map(([name, { layout, data }]) => [name, {
    range: layout.xaxis.range, type: layout.yaxis.type,
    lines: data.filter(({ fill }) => !fill)
      .map(({ x, name, line }) => ({ x, name, dash: line?.dash })),
    labels: (layout.annotations ?? []).map(({ text }) => text),
  }]))"""

PATH = """() => {
  const { data, layout } = document.querySelector("[data-chart=reward] .js-plotly-plot");
  const { x, y } = data.find(({ mode }) => mode === "markers");
  const points = x.map((each, at) => [each, y[at]]).filter(([each]) => each !== null);
  return { points, range: layout.xaxis.range };
}"""
"""The points of the chart of the reward over the values of another signal."""

SIGNALS = "() => fetch('api/signals').then((answer) => answer.json())"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The page of a run of which nothing is left but its database."""
    extra = {f"my/metric-{number}": number + 0.5 for number in range(30)} | {HOSTILE_NAME: 2.0}
    path = write_run(
        tmp_path_factory.mktemp("charts") / "home",
        run="grpo",
        steps=STEPS,
        ranks=3,
        fault_at=FAULT_AT,
        sample_every=0,
        extra_values=extra,
    )
    view = RunView("grpo", RunReader(path), lambda: stored_state(path), path.parent, None)
    server = WebServer(lambda: AgentSite(CollectorRegistry(), view))
    yield f"http://127.0.0.1:{server.start()}/runs/grpo/"
    server.stop()


@pytest.fixture(scope="module")
def problems():
    return PageProblems()


@pytest.fixture(scope="module")
def shown(url, browser, problems):
    """The page, which all tests share."""
    context = new_context(browser, problems, viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    page.goto(url)
    yield page
    context.close()


@pytest.fixture(autouse=True)
def fresh_view(shown, problems):
    """Without a zoom before each test, and without problems after it."""
    if has_zoom(shown):
        # What is typed into a field is no shortcut.
        shown.evaluate("() => document.activeElement.blur()")
        shown.keyboard.press("0")
        until(lambda: not has_zoom(shown), TIMEOUT_SECONDS, "the whole run is shown")
    yield
    problems.check()


def has_zoom(page):
    # `page.url` changes only while Playwright executes a call.
    return "from=" in page.evaluate("() => location.search")


def chart(page, name):
    return page.locator(f"#section-curves [data-chart='{name}']")


def plots(page):
    return page.evaluate(PLOTS)


def show_curves(page, *names):
    """Bring these charts into view, and wait until they are drawn."""

    def are_drawn():
        # What is above them can grow while the page loads.
        chart(page, names[0]).evaluate("(node) => node.scrollIntoView({ block: 'center' })")
        return plots(page).keys() >= {*names}

    until(are_drawn, TIMEOUT_SECONDS, "curves are drawn")


def drag(page, name, start, end):
    """Select a part of the plot of that chart, as shares of its width."""
    box = still_box(chart(page, name).locator(".nsewdrag"))
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + (start + end) / 2 * box["width"], middle)
    page.mouse.move(box["x"] + end * box["width"], middle)
    page.mouse.up()


def test_charts_are_drawn_when_they_come_into_view(shown):
    show_curves(shown, "loss", "kl_ref", "reward")
    last = "my/metric-20"

    assert last not in plots(shown)
    chart(shown, last).evaluate("(node) => node.scrollIntoView()")
    until(lambda: last in plots(shown), TIMEOUT_SECONDS, "the chart is drawn")


def test_a_chart_has_a_text_for_those_who_do_not_see_it(shown):
    show_curves(shown, "kl_ref")
    label = chart(shown, "kl_ref").locator(".plot[role=img]").get_attribute("aria-label")

    assert re.fullmatch(
        r"KL to the reference: latest [\d.]+ nats at step 480, minimum [\d.]+ nats, "
        r"maximum [\d.]+ nats",
        label,
    )
    # The value itself, not the mean of the last point.
    (signal,) = [each for each in shown.evaluate(SIGNALS) if each["name"] == "kl_ref"]
    latest = chart(shown, "kl_ref").locator(".latest").inner_text()
    assert float(latest) == pytest.approx(signal["latest"], rel=1e-3)
    menu = chart(shown, "kl_ref").get_by_role("button", name="Save KL to the reference as a file")
    menu.press("Enter")
    expect(shown.get_by_role("menuitem").first).to_be_focused()
    assert accessibility_problems(shown) == []
    shown.keyboard.press("Escape")
    expect(menu).to_be_focused()


def test_a_chart_shows_thresholds_and_incidents(shown):
    show_curves(shown, "kl_ref", "reward")
    kl = plots(shown)["kl_ref"]

    assert {line["name"] for line in kl["lines"] if line["dash"] == "dash"} == {
        "threshold of kl_blowup"
    }
    assert "kl_blowup, critical" in kl["labels"]
    assert "reward_collapse, critical" in plots(shown)["reward"]["labels"]


def test_a_zoom_is_of_all_charts_and_brings_detail(shown):
    show_curves(shown, "loss", "reward")
    assert len(plots(shown)["loss"]["lines"][0]["x"]) < STEPS
    drag(shown, "loss", 0.5, 0.75)
    until(lambda: has_zoom(shown), TIMEOUT_SECONDS, "the zoom is in the address")

    def is_detailed(plot):
        steps = [step for step in plot["lines"][0]["x"] if 260 <= step <= 340]
        return steps == [*range(260, 341)]

    until(
        lambda: all(is_detailed(plots(shown)[name]) for name in ("loss", "reward")),
        TIMEOUT_SECONDS,
        "every step is shown",
    )
    assert plots(shown)["loss"]["range"] == plots(shown)["reward"]["range"]


def test_the_hover_names_the_worst_rank(shown):
    show_curves(shown, "step_time")
    chart(shown, "step_time").locator(".nsewdrag").hover()

    expect(shown.locator(".tooltip")).to_contain_text("worst rank")
    # The position in the other charts.
    expect(chart(shown, "loss").locator(".cursor")).to_be_attached()


def test_smoothing_and_the_logarithmic_scale_are_of_all_charts(shown):
    show_curves(shown, "loss", "grad_norm")
    shown.keyboard.press("s")
    shown.keyboard.press("l")
    until(lambda: plots(shown)["loss"]["type"] == "log", TIMEOUT_SECONDS, "the scale changes")

    assert len(plots(shown)["loss"]["lines"]) == len(("raw", "smoothed"))
    # Both values are named, beside the curve.
    chart(shown, "loss").locator(".nsewdrag").hover()
    tooltip = shown.locator(".tooltip")
    expect(tooltip).to_contain_text(
        re.compile(r"step \d+.*smoothed\s*[\d.]+.*(mean|value)\s*[\d.]+")
    )
    box, plot = tooltip.bounding_box(), chart(shown, "loss").locator(".plot").bounding_box()
    assert box["y"] >= plot["y"] + plot["height"] or box["y"] + box["height"] <= plot["y"]
    # It has values that are not positive.
    assert plots(shown)["learning_rate"]["type"] in ("log", "linear")
    for key in ("s", "s", "l"):
        shown.keyboard.press(key)
    until(lambda: len(plots(shown)["loss"]["lines"]) == 1, TIMEOUT_SECONDS, "it is as before")


def test_charts_are_filtered_and_pinned(shown):
    shown.get_by_label("Filter charts by name").fill("metric-7")
    charts = shown.locator("#section-curves [data-chart]")
    expect(charts).to_have_count(1)
    charts.first.hover()
    charts.first.get_by_role("button", name="Pin").click()
    shown.get_by_label("Filter charts by name").fill("")
    pinned = shown.locator("#section-curves section").first

    expect(pinned.locator("h3.group")).to_contain_text("Pinned")
    expect(pinned.locator("[data-chart]")).to_have_attribute("data-chart", "my/metric-7")
    pinned.get_by_role("button", name="Pin my/metric-7").click()


def test_the_filter_takes_words_and_regular_expressions(shown):
    field = shown.get_by_label("Filter charts by name")
    names = "(nodes) => nodes.map(({ dataset }) => dataset.chart)"

    def found(text):
        field.fill(text)
        return {*shown.locator("#section-curves [data-chart]").evaluate_all(names)}

    assert found("rew|kl") == {"reward", "reward_std", "kl_ref"}
    assert found("^loss$") == {"loss"}
    assert found("my metric-2$") == {"my/metric-2"}
    assert found("metric-(2") == set()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(shown.locator(".chart-filter")).to_contain_text(
        re.compile(r"“metric-\(2” is not a regular expression \(.*\), and is searched as it is.")
    )
    found("")
    expect(field).not_to_have_attribute("aria-invalid", "true")


def test_names_with_a_prefix_are_a_group_that_can_be_folded(shown):
    group = shown.locator("#section-curves section").filter(
        has=shown.get_by_role("heading", name="my 31")
    )
    toggle = group.get_by_role("button", name="my 31")
    charts = group.locator("[data-chart]")
    order = [
        int(name) for name in re.findall(r"my/metric-(\d+)", " ".join(charts.all_inner_texts()))
    ]
    assert order == sorted(order)
    assert order[:3] == [0, 1, 2]
    toggle.press("Enter")
    expect(charts).to_have_count(0)
    expect(toggle).to_have_attribute("aria-expanded", "false")
    assert "folded=my" in shown.evaluate("() => location.search")

    # The search finds what is folded, and unfolds it.
    shown.keyboard.press("/")
    shown.keyboard.type("my/metric-7")
    shown.keyboard.press("Enter")
    expect(chart(shown, "my/metric-7")).to_be_focused()
    expect(toggle).to_have_attribute("aria-expanded", "true")
    assert "folded" not in shown.evaluate("() => location.search")


def test_a_zoom_is_undone_by_back_and_done_again_by_forward(shown):
    show_curves(shown, "loss")
    whole = plots(shown)["loss"]["range"]
    length = shown.evaluate("() => history.length")
    drag(shown, "loss", 0.3, 0.6)
    until(lambda: has_zoom(shown), TIMEOUT_SECONDS, "the zoom is in the address")
    assert shown.evaluate("() => history.length") == length + 1
    zoomed = shown.evaluate("() => location.search")

    shown.evaluate("() => history.back()")
    until(lambda: plots(shown)["loss"]["range"] == whole, TIMEOUT_SECONDS, "the whole run is shown")
    expect(shown.get_by_label("Range")).to_have_value("all")
    shown.evaluate("() => history.forward()")
    until(lambda: plots(shown)["loss"]["range"] != whole, TIMEOUT_SECONDS, "the zoom is shown")
    assert shown.evaluate("() => location.search") == zoomed


def series_of(page, *names, **query):
    """The curves of `api/series`, all of their records."""
    asked = {"points": 5000, "exact": 1} | query
    text = "&".join(
        [*(f"signals={name}" for name in names), *(f"{k}={v}" for k, v in asked.items())]
    )
    answer = page.evaluate("(text) => fetch(`api/series?${text}`).then((it) => it.json())", text)
    return answer["series"]


def test_a_signal_is_the_axis_of_the_others(shown):
    """The values of both are joined by step, also those of a zoom."""
    shown.get_by_label("Axis: values of a signal").select_option("kl_ref")
    chart(shown, "reward").scroll_into_view_if_needed()
    until(
        lambda: axis_title(shown, "reward") == "kl_ref (nats)", TIMEOUT_SECONDS, "the axis changes"
    )
    assert "axis=signal%3Akl_ref" in shown.evaluate("() => location.search")
    curves = series_of(shown, "reward", "kl_ref", points=320, exact=0)
    both = zip(curves["kl_ref"]["mean"], curves["reward"]["mean"], strict=True)
    assert shown.evaluate(PATH)["points"] == [[*each] for each in both]

    # The records in the part of the axis that is selected.
    drag(shown, "reward", 0.5, 0.9)
    until(lambda: has_zoom(shown), TIMEOUT_SECONDS, "the zoom is in the address")
    raw = series_of(shown, "reward", "kl_ref", exact=0)
    pairs = dict(zip(raw["kl_ref"]["mean"], raw["reward"]["mean"], strict=True))

    def is_detailed():
        start, end = shown.evaluate(PATH)["range"]
        drawn = {each: y for each, y in shown.evaluate(PATH)["points"] if start <= each <= end}
        return drawn == {each: y for each, y in pairs.items() if start <= each <= end}

    until(is_detailed, TIMEOUT_SECONDS, "every record is shown")
    with shown.expect_download() as download:
        save(shown, "reward", "CSV")
    head, *rows = download.value.path().read_text().splitlines()
    assert head.split(",")[:3] == ["step", "kl_ref [nats]", "reward"]
    assert len(rows) > 5
    shown.get_by_role("button", name="Step", exact=True).click()
    until(lambda: axis_title(shown, "reward") is None, TIMEOUT_SECONDS, "the axis changes")


def axis_title(page, name):
    return page.evaluate(
        """(name) => document.querySelector(`#section-curves [data-chart=${name}] .js-plotly-plot`)
          ?.layout.annotations.find(({ name }) => name === "axis title")?.text ?? null""",
        name,
    )


def save(page, name, kind):
    """Choose an entry of the menu of a chart, by keys."""
    chart(page, name).get_by_role("button", name=re.compile("^Save .* as a file")).press(
        "ArrowDown"
    )
    page.get_by_role("menuitem", name=re.compile(f"^{kind}")).press("Enter")


def test_a_chart_is_saved_as_points_and_pictures(shown):
    show_curves(shown, "kl_ref")
    drag(shown, "kl_ref", 0.5, 0.75)
    until(lambda: has_zoom(shown), TIMEOUT_SECONDS, "the zoom is in the address")
    start, end = (
        shown.evaluate("() => [...new URLSearchParams(location.search)]")[at][1] for at in (0, 1)
    )
    saved = {}
    for kind in ("CSV", "SVG", "PNG"):
        with shown.expect_download() as download:
            save(shown, "kl_ref", kind)
        assert download.value.suggested_filename == f"grpo-kl_ref.{kind.lower()}"
        saved[kind] = download.value.path().read_bytes()
    head, *rows = csv.reader(saved["CSV"].decode().splitlines())
    assert head == [
        "step",
        "kl_ref [nats]",
        "lowest rank [nats]",
        "highest rank [nats]",
        "worst rank",
    ]
    curve = series_of(shown, "kl_ref")["kl_ref"]
    steps = [step for step in curve["x"] if float(start) <= step <= float(end)]
    assert [[float(cell) for cell in row[:2]] for row in rows] == [
        [step, curve["mean"][curve["x"].index(step)]] for step in steps
    ]
    texts = {*re.findall(r"<text[^>]*>([^<]*)</text>", saved["SVG"].decode())}
    assert texts >= {"KL to the reference", "KL to the reference (nats)", "step", "grpo"}
    assert "threshold of kl_blowup" in texts
    assert saved["PNG"].startswith(b"\x89PNG")
    assert len(saved["PNG"]) > 20_000


def test_a_chart_is_a_table_on_request(shown):
    show_curves(shown, "loss")
    loss = chart(shown, "loss")
    loss.get_by_role("button", name="Show Loss as a table").click()
    cells = loss.locator("tbody tr").first.locator("td")

    expect(cells.first).to_have_text("480")
    loss.get_by_role("button", name="Show Loss as a table").click()
    expect(loss.locator("table")).to_have_count(0)


def test_keys_jump_between_incidents(shown):
    show_curves(shown, "loss")
    shown.keyboard.press("]")
    until(lambda: has_zoom(shown), TIMEOUT_SECONDS, "the incident is shown")
    start, end = plots(shown)["loss"]["range"]

    assert start < FAULT_AT < end
    shown.keyboard.press("+")
    shown.keyboard.press(">")
    until(
        lambda: plots(shown)["loss"]["range"][0] > start, TIMEOUT_SECONDS, "another part is shown"
    )


def test_the_timeline_has_a_row_for_each_detector(shown):
    timeline = shown.locator("#section-timeline")
    interval = timeline.get_by_role("button", name=re.compile("kl_blowup: critical, firing, step"))
    expect(timeline.get_by_role("rowheader", name="reward_collapse")).to_be_visible()
    interval.click()

    until(lambda: has_zoom(shown), TIMEOUT_SECONDS, "the incident is shown")


def test_a_checkpoint_whose_step_is_unknown_has_no_mark(browser, problems, url):
    context = new_context(browser, problems)
    page = context.new_page()

    def answer(route):
        timeline = route.fetch().json()
        events = [("start", 0), ("save", None), ("save", 40)]
        timeline["events"] = [{"event": name, "step": step, "time": None} for name, step in events]
        route.fulfill(json=timeline)

    page.route("**/api/timeline", answer)
    page.goto(url)
    marks = page.locator("#section-timeline .lane.axis .event.save")

    expect(marks).to_have_count(1)
    context.close()


def test_the_heat_map_names_the_ranks(shown):
    heat_map = shown.locator("#section-rank-map")
    heat_map.evaluate("(node) => node.scrollIntoView()")

    expect(heat_map.get_by_text(re.compile(r"Rank \d differs most"))).to_be_visible()
    heat_map.locator(".nsewdrag").hover()
    expect(heat_map.locator(".hoverlayer")).to_contain_text(re.compile(r"rank \d"))
    heat_map.get_by_label("Signal of the ranks").select_option("loss")
    picture = heat_map.get_by_role("img", name=re.compile("Heat map of loss of 3 ranks"))
    expect(picture).to_be_visible()


def test_a_name_with_markup_is_only_text(shown):
    shown.get_by_label("Filter charts by name").fill("color:red")
    hostile = shown.locator("#section-curves [data-chart]")
    expect(hostile.locator("h3")).to_have_text(HOSTILE_NAME)
    hostile.locator(".nsewdrag").hover()

    expect(shown.locator(".tooltip")).to_contain_text("2")
    shown.get_by_label("Filter charts by name").fill("")


def test_without_plotly_curves_are_small(url, browser):
    problems = PageProblems()
    problems.expect("404.*plotly")
    context = new_context(browser, problems, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.route("**/plotly.min.js", lambda route: route.fulfill(status=404))
    page.goto(f"{url}?folded=my")
    group = page.get_by_role("button", name="my 31", exact=True)
    expect(group).to_have_attribute("aria-expanded", "false")
    line = chart(page, "loss").locator("svg.sparkline path")

    def is_drawn():
        # What is above it grows while the page loads.
        chart(page, "loss").evaluate("(node) => node.scrollIntoView({ block: 'center' })")
        return line.is_visible()

    until(is_drawn, TIMEOUT_SECONDS, "the curve is drawn")
    expect(chart(page, "loss").locator(".ends")).to_contain_text("step 480")
    context.close()
    problems.check()


def test_a_finger_scrolls_over_charts_and_a_tap_shows_values(url, browser):
    problems = PageProblems()
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    context = new_context(browser, problems, **phone)
    page = context.new_page()
    page.goto(url)
    show_curves(page, "step_time")
    page.evaluate("() => addEventListener('touchstart', (it) => { window.last = it; })")
    chart(page, "step_time").locator(".plot").tap()

    expect(page.locator(".tooltip")).to_contain_text("worst rank")
    assert page.evaluate("() => !window.last.defaultPrevented")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    context.close()
    problems.check()
