// Results of insight of several runs: surfaces side by side, and the paths of the weights in one plane.
import {
  choice,
  container,
  element,
  emptyState,
  errorMessage,
  formatNumber,
  groupBy,
  isNumber,
  setAttributes,
  setText,
} from "../dom.js";
import { chartContext } from "../charts/context.js";
import { readSurface } from "../charts/surface.js";
import { SurfaceChart, SurfaceControls, surfaceSummary, turnButtons } from "./loss_surface.js";
import { insightName, insightOrder } from "./insight_items.js";
import { PathCharts, readPaths } from "./trajectory.js";

/**
 * `results` are the headers of the results of each run, `load(index, id)` returns one.
 * @param {ComparisonPage} page
 * @param {InsightItem[][]} results
 * @param {LoadResult} load
 */
export function createComparedSurfaces(page, results, load) {
  return new ComparedSurfaces(
    page,
    results.map((items) => items.filter(({ kind }) => kind === "loss_surface")),
    load,
  ).element;
}

class ComparedSurfaces {
  /**
   * @param {ComparisonPage} page
   * @param {InsightItem[][]} items
   * @param {LoadResult} load
   */
  constructor(page, items, load) {
    this.load = load;
    this.names = page.comparison.runs.map(({ name }) => name);
    this.items = items;
    this.groups = groupBy(items.flat(), insightName);
    this.controls = new SurfaceControls(() => this.#draw());
    this.select = choice(
      "Surface",
      [...this.groups.keys()].map((name) => [name, name]),
      () => this.#chooseName(),
    );
    this.slider = setAttributes(element("input"), { type: "range", min: 0, "aria-label": "Step of the surfaces" });
    this.slider.addEventListener("input", () => this.#show());
    this.text = element("output", "", "soft number");
    this.turns = turnButtons((steps) => this.charts.forEach((chart) => chart.turn(steps)));
    this.charts = this.names.map(
      (title) =>
        new SurfaceChart(chartContext(page), {
          title,
          onTurn: (camera) => this.charts.forEach((chart) => chart.camera === camera || chart.setCamera(camera)),
        }),
    );
    this.notes = this.names.map(() => element("p", "", "soft"));
    this.cards = this.charts.map((chart, index) =>
      container("div", "compared-surface", chart.element, this.notes[index]),
    );
    const { buttons, missing } = this.controls;
    this.element = container(
      "div",
      "",
      container("div", "row insight-controls", this.select, this.slider, this.text, ...buttons, this.turns),
      missing,
      container("div", "compared-surfaces", ...this.cards),
    );
    /**
     * The name that most runs have comes first.
     * @param {string} name
     */
    const count = (name) => items.filter((each) => each.some((item) => insightName(item) === name)).length;
    this.select.value = [...this.groups.keys()].sort((a, b) => count(b) - count(a))[0];
    this.select.hidden = this.groups.size < 2;
    /** @type {(number | null | undefined)[]} */
    this.steps = [];
    this.key = "";
    /** @type {(Surface | string | null)[]} */
    this.surfaces = [];
    this.#chooseName();
  }

  #chooseName() {
    this.steps = [...new Set((this.groups.get(this.select.value) ?? []).map(({ step }) => step))].sort(
      (a, b) => (a ?? Infinity) - (b ?? Infinity),
    );
    setAttributes(this.slider, { max: this.steps.length - 1 });
    this.slider.value = String(this.steps.length - 1);
    this.slider.hidden = this.steps.length < 2;
    this.#show();
  }

  // Of each run, the newest surface up to the step, or else its first one.
  async #show() {
    const step = this.steps[Number(this.slider.value)];
    setText(this.text, isNumber(step) ? `step ${formatNumber(step)}` : "");
    const key = `${this.select.value} ${step}`;
    this.key = key;
    const chosen = this.items.map((items) => {
      const named = items.filter((item) => insightName(item) === this.select.value).sort(insightOrder);
      return (
        named.filter((item) => !isNumber(step) || (isNumber(item.step) && item.step <= step)).pop() ?? named[0] ?? null
      );
    });
    const surfaces = await Promise.all(
      chosen.map(async (item, index) => {
        if (!item) return null;
        try {
          return readSurface((await this.load(index, item.id)).data);
        } catch (error) {
          return errorMessage(error);
        }
      }),
    );
    if (key !== this.key) return;
    this.surfaces = surfaces;
    this.controls.show(surfaces.filter((surface) => surface !== null && typeof surface !== "string"));
    this.#draw();
  }

  #draw() {
    this.turns.hidden = !this.controls.isSolid;
    this.surfaces.forEach((surface, index) => {
      const isShown = surface !== null && typeof surface !== "string";
      this.charts[index].plot.hidden = !isShown;
      this.charts[index].setTitle(
        this.names[index],
        isShown && isNumber(surface.step) ? `step ${formatNumber(surface.step)}` : "",
      );
      setText(this.notes[index], isShown ? surfaceSummary(surface) : (surface ?? "This run has no such surface."));
      if (isShown) this.charts[index].showSurface(surface, this.controls.options(surface));
    });
  }
}

/**
 * The paths in one plane, or why there is none.
 * @param {ComparisonPage} page
 * @param {ComparedInsight} insight
 */
export function createComparedPaths(page, { trajectory, problem }) {
  if (!trajectory) return emptyState(problem);
  try {
    const plane = readPaths(trajectory);
    const charts = new PathCharts(chartContext(page));
    const numbers = new Map(page.comparison.runs.map(({ name }, index) => [name, index]));
    const shown = plane.paths.map((path, index) => ({ ...path, color: numbers.get(path.name) ?? index }));
    charts.show(shown, plane);
    charts.plane.setLegend(shown);
    return container("div", "", charts.element, ...plane.notes.map((note) => element("p", note, "soft")));
  } catch (error) {
    return element("p", errorMessage(error), "bad");
  }
}
