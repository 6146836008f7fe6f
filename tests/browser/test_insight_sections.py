"""Results of insight on the page of a run, in comparisons, and in files of their own."""

from __future__ import annotations

import math
import time

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry
from support.browsers import PageProblems, accessibility_problems, new_context, overflow
from support.insight_results import LAYERS, line, save_all, surface, trajectory
from support.layer_records import layer_record
from support.run_databases import write_records
from support.stored_homes import write_run

from sentinel.metrics.stored_state import stored_state
from sentinel.store.artifact import save_artifact
from sentinel.store.run_reader import RunReader
from sentinel.web.agent_site import AgentSite
from sentinel.web.home.home_site import HomeSite
from sentinel.web.report_page import write_insight_page
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer

pytestmark = pytest.mark.timeout(600)
RUN = "grpo-7b"
WIDE, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
OTHER_SECTIONS = ("cases", "timeline", "curves", "rank-map", "machine-curves", "samples")
DRAWN = "selector => Boolean(document.querySelector(`${selector} .js-plotly-plot .main-svg`))"
LAYOUT = "selector => document.querySelector(`${selector} .js-plotly-plot`).layout"
KINDS = """selector =>
  document.querySelector(`${selector} .js-plotly-plot`).data.map(({ type }) => type)"""
PARTS = """selector => document.querySelector(`${selector} .js-plotly-plot`).data
  .filter(({ type }) => type === "surface")
  .map(({ x, z }) => ({ x: [...x], holes: z.flat().filter(each => each === null).length }))"""
LIMITS = """() => [...document.querySelectorAll("#section-loss-surface .js-plotly-plot")]
  .map(({ data }) => data.find(({ type }) => type === "contour"))
  .map(({ zmin, zmax }) => [zmin, zmax])"""
NO_WEBGL = """
const getContext = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
  return kind.startsWith("webgl") ? null : getContext.call(this, kind, ...rest);
};
"""


def layer_records(steps):
    """Measurements in which a layer is dead and another one becomes infinite."""
    for step in steps:
        norms = {name: 10.0 ** (index - 6) for index, name in enumerate(LAYERS)}
        norms |= {LAYERS[2]: 0.0, LAYERS[-1]: 1.0 if step < 40 else math.inf}
        cosines = {name: math.sin(step / 9 + index) for index, name in enumerate(LAYERS)}
        yield layer_record(
            step,
            layer_grad_norm=norms,
            layer_grad_cosine=cosines,
            histogram={name: [-12, 1, 5, 9, 4] for name in LAYERS},
        )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with two runs that have results, and one that has none."""
    home = tmp_path_factory.mktemp("home")
    plain = {"sample_every": 0, "node_every": 0, "save_every": 0}
    first = write_run(home, run=RUN, steps=80, ranks=1, **plain)
    save_all(first.parent)
    write_records(first, layer_records(range(1, 81, 2)))
    second = write_run(home, run="other", steps=60, ranks=1, seed=2, **plain)
    save_artifact(second.parent, surface(180, offset=0.5))
    save_artifact(second.parent, trajectory("other", 0.6))
    write_run(home, run="plain", steps=5, ranks=1, **plain)
    return home


class Runs:
    """The runs of a home, as `HomeSite` reads them."""

    def __init__(self, home):
        self.views = {}
        for database in home.glob("runs/*/sentinel.db"):
            run = database.parent.name
            state = stored_state(database, run)
            view = RunView(run, RunReader(database), lambda state=state: state, database)
            self.views[run] = view

    def view(self, run):
        return self.views.get(run)


@pytest.fixture(scope="module")
def url(home):
    server = WebServer(lambda: HomeSite(Runs(home)))
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


@pytest.fixture(scope="module")
def problems():
    return PageProblems()


def open_page(browser, problems, address, **options):
    """The page, whose other sections are closed: drawing them takes seconds."""
    stored = [{"name": f"sentinel.section.{each}", "value": "closed"} for each in OTHER_SECTIONS]
    origin = "/".join(address.split("/")[:3])
    state = {"origins": [{"origin": origin, "localStorage": stored}]}
    context = new_context(browser, problems, storage_state=state, viewport=WIDE, **options)
    page = context.new_page()
    page.goto(address)
    return page


@pytest.fixture(scope="module")
def shown(browser, url, problems):
    page = open_page(browser, problems, f"{url}/runs/{RUN}/", color_scheme="light")
    yield page
    page.context.close()


@pytest.fixture
def page(shown, problems):
    yield shown
    problems.check()


def drawn(page, section):
    """The section, in view, once its first chart is drawn."""
    found = page.locator(f"#section-{section}")
    found.scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, arg=f"#section-{section}")
    return found


def test_a_surface_is_a_contour_with_its_step_and_its_marks(page):
    section = drawn(page, "loss-surface")

    expect(section.locator(".note")).to_have_text("step 200, 1040 evaluations")
    expect(section.locator(".summary")).to_contain_text("The loss at the weights of step 200 is")
    expect(section.locator("dl")).to_contain_text("Hessian eigenvector (eigenvalue 38.4)")
    expect(section.locator("dl")).to_contain_text("38.4, limit of stability 40 at a learning rate")
    image = section.get_by_role("img", name="Loss in a plane through the weights")
    expect(image).to_have_attribute(
        "aria-label", "Loss in a plane through the weights: from 1.538 to 4.009, lowest at -0.04, 0"
    )
    assert page.evaluate(KINDS, "#section-loss-surface")[:2] == ["heatmap", "contour"]
    section.get_by_role("button", name="Points").click()
    section.get_by_role("button", name="Log").click()
    expect(section.get_by_role("button", name="Log")).to_have_attribute("aria-pressed", "true")
    assert len(page.evaluate(KINDS, "#section-loss-surface")) > 8


def test_axes_and_colour_bars_say_what_they_show(page):
    drawn(page, "loss-surface")

    layout = page.evaluate(LAYOUT, "#section-loss-surface")
    assert layout["xaxis"]["title"]["text"] == (
        "Hessian eigenvector (eigenvalue 38.4)<br>1 = 1.2 (L2), 4 % of the weights' norm"
    )
    bar = layout["yaxis9"]
    assert bar["title"]["text"].startswith("loss")
    assert len(bar["tickvals"]) >= 4
    flow = drawn(page, "gradient-flow")
    expect(flow.locator(".flow-map .unit")).to_have_text("logarithmic colours")
    layout = page.evaluate(LAYOUT, "#section-gradient-flow")
    assert layout["yaxis9"]["ticktext"][0] == "1e-6"


STARTS = """() => document.querySelector("#section-loss-surface .js-plotly-plot").data
  .flatMap(({ text }) => text ?? []).filter((text) => /^start/.test(text))
  .map((text) => text.split(",")[0])"""


def test_the_path_begins_at_its_first_step_although_rounding_puts_it_beyond_the_border(page):
    section = drawn(page, "loss-surface")

    assert page.evaluate(STARTS) == ["start of the path: step 0"]
    section.get_by_role("button", name="3-D").click()
    expect(section.locator(".gl-container canvas")).to_have_count(1)
    assert page.evaluate(STARTS) == ["start of the path: step 0"]
    section.get_by_role("button", name="Contour").click()
    expect(section.locator(".gl-container canvas")).to_have_count(0)


def test_the_slider_shows_earlier_steps_by_key(page):
    section = drawn(page, "loss-surface")
    slider = section.get_by_role("slider", name="Step of the surface")
    slider.focus()
    page.keyboard.press("ArrowLeft")

    expect(section.locator("output")).to_have_text("step 120 (2 of 3)")
    expect(section.locator(".note")).to_contain_text("step 120")
    page.keyboard.press("ArrowRight")
    section.get_by_label("Surface", exact=True).select_option("interpolation")
    expect(section.get_by_role("img", name="Loss along one direction")).to_be_visible()
    expect(section.get_by_role("button", name="3-D")).to_be_hidden()
    section.get_by_label("Surface", exact=True).select_option("Loss surface")
    expect(section.locator("output")).to_have_text("step 200 (3 of 3)")


def test_a_surface_turns_in_three_dimensions_by_key(page):
    section = drawn(page, "loss-surface")
    section.get_by_role("button", name="3-D").click()
    expect(section.locator(".gl-container canvas")).to_have_count(1)
    before = page.evaluate(LAYOUT, "#section-loss-surface")["scene"]["camera"]["eye"]
    section.get_by_role("button", name="Turn left").focus()
    page.keyboard.press("Enter")

    after = page.evaluate(LAYOUT, "#section-loss-surface")["scene"]["camera"]["eye"]
    assert after["z"] == before["z"]
    assert math.hypot(after["x"], after["y"]) == pytest.approx(math.hypot(before["x"], before["y"]))
    assert after["x"] != before["x"]
    section.get_by_role("button", name="Contour").click()
    expect(section.locator(".gl-container canvas")).to_have_count(0)


def test_gradient_flow_names_the_layers_and_shows_the_chosen_one(page):
    section = drawn(page, "gradient-flow")

    expect(section.locator(".note")).to_have_text("10 layers")
    expect(section.locator(".summary")).to_have_text(
        "At step 79, the gradient norm goes from 1e-6 in embed_tokens to 100 in layers.3.mlp; "
        "it is zero in layers.0.mlp; it is NaN or infinite in lm_head."
    )
    expect(section.locator(".flow-key:visible")).to_have_text(["zero", "NaN or infinite"])
    box = section.locator(".flow-map [data-subplot=xy].nsewdrag").bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.25 * box["height"])
    map_title, heading, *_ = section.get_by_role("heading", level=3).all()
    expect(map_title).to_have_text("Gradient norm")
    expect(heading).to_have_text("layers.0.mlp")
    section.get_by_label("Layer", exact=True).select_option("layers.1.attn")
    expect(heading).to_have_text("layers.1.attn")
    expect(
        section.get_by_role("img", name="Sizes of gradient elements of layers.1.attn: from")
    ).to_be_visible()
    section.get_by_label("Statistic of the layers").select_option("layer_grad_cosine")
    expect(section.locator(".summary")).to_contain_text("the cosine to the last gradient goes from")


def test_a_zoom_of_the_heat_map_is_that_of_all_charts(page):
    section = drawn(page, "gradient-flow")
    box = section.locator(".flow-map [data-subplot=xy].nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 25, steps=4)
    page.mouse.up()

    page.wait_for_function("() => /from=\\d/.test(location.search)")
    expect(section.locator(".summary")).to_contain_text("At step 39")
    page.keyboard.press("0")
    expect(section.locator(".summary")).to_contain_text("At step 79")


def test_the_path_of_the_weights_is_in_a_plane_with_its_distances(page):
    section = drawn(page, "trajectory")

    expect(section.locator(".summary")).to_contain_text("The straightness of the path is 0.72")
    expect(section.locator("h3")).to_have_text(
        ["Path in the plane", "Loss along the path", "Distance"]
    )
    title = page.evaluate(LAYOUT, "#section-trajectory")["xaxis"]["title"]["text"]
    assert title == "first component (71 % of the movement), L2"


def test_the_sections_are_accessible_in_the_dark_and_fit_a_phone(page):
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    for section in ("loss-surface", "gradient-flow", "trajectory"):
        drawn(page, section)

    assert overflow(page) == []
    assert accessibility_problems(page) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(WIDE)


def test_without_webgl_the_contour_stays_and_says_why(browser, url, problems):
    page = new_context(browser, problems, viewport=WIDE).new_page()
    page.add_init_script(NO_WEBGL)
    page.goto(f"{url}/runs/{RUN}/")
    section = page.locator("#section-loss-surface")

    expect(section.get_by_text("This browser has no WebGL")).to_be_visible()
    expect(section.get_by_role("button", name="3-D")).to_be_disabled()
    drawn(page, "loss-surface")
    page.context.close()
    problems.check()


def test_a_result_appears_and_is_refined_while_the_page_is_open(browser, tmp_path, problems):
    database = write_run(tmp_path, run=RUN, steps=5, ranks=1, sample_every=0, outcome="")
    state = stored_state(database, RUN) | {"state": "running", "is_live": True}
    view = RunView(RUN, RunReader(database), lambda: state, database)
    server = WebServer(lambda: AgentSite(CollectorRegistry(), view))
    page = open_page(browser, problems, f"http://127.0.0.1:{server.start()}/runs/{RUN}/")
    try:
        hint = page.locator("#section-insight")
        expect(hint.locator(".note")).to_have_text(
            "Loss surface, trajectory of the weights, gradient flow: not measured"
        )
        hint.locator("summary").click()
        expect(hint).to_contain_text("sentinel.insight.loss_surface(model, loss_fn, batch)")
        assert not any("insight_drawings" in each for each in problems.requests[-60:])

        coarse = surface(5, size=7, evaluations=49)
        save_artifact(database.parent, coarse)
        section = drawn(page, "loss-surface")
        expect(section.locator(".note")).to_have_text("step 5, 49 evaluations")
        section.get_by_role("button", name="Points").click()
        time.sleep(0.02)
        save_artifact(database.parent, surface(5, evaluations=400))
        expect(section.locator(".note")).to_have_text("step 5, 400 evaluations")
        expect(section.get_by_role("button", name="Points")).to_have_attribute(
            "aria-pressed", "true"
        )
        expect(hint).not_to_contain_text("loss_surface(")
        path = database.parent / "insight" / "loss_surface-5.json"
        path.with_suffix(".new").write_bytes(path.read_bytes()[:-20])
        path.with_suffix(".new").replace(path)
        expect(section.locator(".bad")).to_contain_text("cannot be read: it is no JSON.")
        problems.expect("404")
    finally:
        page.context.close()
        server.stop()
    problems.check()


def test_runs_are_compared_on_one_scale_and_in_one_plane(browser, url, problems):
    page = open_page(browser, problems, f"{url}/compare?run={RUN}&run=other&run=plain")
    section = drawn(page, "loss-surface")
    cards = section.locator(".compared-surface")

    expect(cards.locator("h3")).to_have_text([RUN, "other", "plain"])
    expect(cards.nth(2)).to_contain_text("This run has no such surface.")
    page.wait_for_function(f"() => ({LIMITS})().length === 2")
    first, second = page.evaluate(LIMITS)
    assert first == second
    section.get_by_role("button", name="Own scales").click()
    page.wait_for_function(f"() => new Set(({LIMITS})().map(String)).size === 2")
    section.get_by_role("slider").focus()
    page.keyboard.press("Home")
    expect(cards.nth(0).locator(".unit")).to_have_text("step 40")
    page.context.close()
    problems.check()


def test_a_part_that_was_sampled_more_finely_is_drawn_on_the_surface(browser, tmp_path, problems):
    part = {"x": [0.0, 0.1, 0.2], "y": [0.3, 0.4, 0.5], "loss": [[1.5, 1.6, 1.7]] * 3}
    damaged = {"x": [0.0, 0.1], "y": [0.3, 0.4], "loss": [[1.5]]}
    write_insight_page(surface(3, regions=[part, damaged]), tmp_path / "finer.html")
    page = new_context(browser, problems, viewport=WIDE).new_page()
    page.goto((tmp_path / "finer.html").as_uri())

    section = drawn(page, "loss-surface")
    assert page.evaluate(KINDS, "#section-loss-surface").count("contour") == 4
    (frame,) = page.evaluate(LAYOUT, "#section-loss-surface")["shapes"]
    assert [frame["x0"], frame["x1"], frame["y0"], frame["y1"]] == [0.0, 0.2, 0.3, 0.5]
    expect(section.locator("dl")).to_contain_text("0 to 0.2, 0.3 to 0.5")

    section.get_by_role("button", name="3-D").click()
    expect(section.locator(".gl-container canvas")).to_have_count(1)
    parts = page.evaluate(PARTS, "#section-loss-surface")
    assert [parts[1]["x"], parts[1]["holes"]] == [part["x"], 0]
    # Inside of it, the surface is not drawn.
    assert parts[0]["holes"] > 0
    page.context.close()
    problems.check()


def test_a_result_is_a_file_of_its_own(browser, tmp_path, problems):
    path = tmp_path / "surface.html"
    write_insight_page([surface(3), line(4), trajectory()], path, title="<b>mine</b>")
    page = new_context(browser, problems, viewport=WIDE).new_page()
    page.goto(path.as_uri())

    expect(page.locator("h1")).to_have_text("<b>mine</b>")
    drawn(page, "loss-surface")
    section = drawn(page, "trajectory")
    expect(section.locator(".path .main-svg").first).to_be_visible()
    page.context.close()
    problems.check()
