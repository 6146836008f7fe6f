// The path of the weights: in a plane, the loss along it, and the distances that it covers.
import {
  container,
  element,
  errorMessage,
  formatCount,
  formatNumber,
  formatPercent,
  isNumber,
  setText,
} from "../dom.js";
import { chartContext } from "../charts/context.js";
import { PlotChart } from "../charts/plot_chart.js";
import { linesPicture, pathsPicture } from "../charts/lines.js";
import { chartNumber } from "../charts/units.js";
import { InsightChoice, insightFacts, loadInsight } from "./insight_items.js";

const PATH_MAX_POINTS = 20000;
const PATH_MAX_RUNS = 20;
const PATH_DISTANCES = [
  ["distance_to_initial", "from the initial weights"],
  ["distance_to_reference", "from the reference"],
  ["distance_travelled", "travelled"],
];

/**
 * The paths in stored data, whatever these are. Throws an Error whose message is for people.
 * @param {StoredJson} data
 * @returns {PathPlane}
 */
export function readPaths(data) {
  /** @type {StoredJson[]} */
  const runs = Array.isArray(data.runs)
    ? data.runs
        .filter((/** @type {StoredJson} */ each) => each !== null && typeof each === "object")
        .slice(0, PATH_MAX_RUNS)
    : [];
  const paths = runs
    .map((stored) => {
      /** @type {StoredJson[]} */
      const steps = Array.isArray(stored.steps) ? stored.steps : [];
      /**
       * @param {StoredJson} values
       * @returns {Values | null}
       */
      const column = (values) =>
        Array.isArray(values) && values.length === steps.length
          ? values.map((value) => (isNumber(value) ? value : null))
          : null;
      const [x, y] = [column(stored.x), column(stored.y)];
      if (!x || !y || !steps.every(isNumber) || steps.length > PATH_MAX_POINTS)
        throw new Error("The stored trajectory is damaged: its sizes do not match.");
      const known = steps.map((_, index) => x[index] !== null && y[index] !== null);
      /**
       * @template T
       * @param {T[]} values
       * @returns {T[]}
       */
      const keep = (values) => values.filter((_, index) => known[index]);
      /** @type {Record<string, Values>} */
      const distances = {};
      for (const [key] of PATH_DISTANCES) {
        const values = column(stored[key]);
        if (values) distances[key] = keep(values);
      }
      return {
        name: String(stored.name ?? ""),
        steps: keep(steps),
        x: keep(x).filter(isNumber),
        y: keep(y).filter(isNumber),
        loss: keep(column(stored.loss) ?? steps.map(() => null)),
        distances,
        straightness: isNumber(stored.straightness) ? stored.straightness : null,
        // Without it, distances are absolute.
        isRelative: isNumber(stored.initial_norm) && stored.initial_norm > 0,
      };
    })
    .filter(({ steps }) => steps.length);
  if (!paths.length) throw new Error("The stored trajectory has no points.");
  return {
    paths,
    explained: (Array.isArray(data.explained) ? data.explained : []).map((/** @type {StoredJson} */ value) =>
      isNumber(value) ? value : null,
    ),
    reference:
      data.reference && isNumber(data.reference.x) && isNumber(data.reference.y)
        ? { x: data.reference.x, y: data.reference.y }
        : null,
    selection: String(data.selection ?? ""),
    parameters: isNumber(data.parameter_count) ? data.parameter_count : null,
    notes: (Array.isArray(data.note) ? data.note : data.note ? [data.note] : []).map(String).slice(0, 20),
  };
}

/**
 * `refresh()` shows the note again. Returns { element, show(items), note() }.
 * @param {InsightPage} page
 * @param {() => void} refresh
 * @returns {InsightView}
 */
export function createTrajectories(page, refresh) {
  const view = new TrajectoryView(page, refresh);
  return { element: view.element, show: (items) => view.choice.set(items), note: () => view.note };
}

class TrajectoryView {
  /**
   * @param {InsightPage} page
   * @param {() => void} refresh
   */
  constructor(page, refresh) {
    this.page = page;
    this.refresh = refresh;
    this.note = "";
    const context = chartContext(page);
    this.choice = new InsightChoice("Trajectory", (item) => this.#load(item));
    this.summary = element("p", "", "summary");
    this.problem = element("p", "", "bad");
    this.charts = new PathCharts(context);
    this.facts = element("div", "", "insight-side");
    this.charts.side.append(this.facts);
    this.element = container(
      "div",
      "",
      container("div", "row insight-controls", this.choice.element),
      this.problem,
      this.summary,
      this.charts.element,
    );
  }

  /** @param {InsightItem} item */
  async #load(item) {
    this.item = item;
    try {
      const { data } = await loadInsight(this.page.source, item);
      if (item !== this.item) return;
      const found = readPaths(data);
      this.charts.show(
        found.paths.map((path, index) => ({ ...path, color: index })),
        found,
      );
      setText(this.summary, found.paths.map((path) => pathSummary(path, found.paths.length > 1)).join(" "));
      this.facts.replaceChildren(
        insightFacts([
          ["Marks", `circle: start; diamond: end${found.reference ? "; star: the reference" : ""}`],
          [
            "Parameters",
            found.parameters === null
              ? found.selection
              : `${formatNumber(found.parameters)}${found.selection ? `: ${found.selection}` : ""}`,
          ],
        ]),
        ...found.notes.map((note) => element("p", note, "soft")),
      );
      this.note = formatCount(found.paths[0].steps.length, "point");
      setText(this.problem, "");
    } catch (error) {
      if (item !== this.item) return;
      setText(this.problem, errorMessage(error));
      setText(this.summary, "");
      this.note = "cannot be read";
    }
    this.problem.hidden = !this.problem.textContent;
    this.charts.element.hidden = !this.problem.hidden;
    this.refresh();
  }
}

// The plane, and beside it loss and distances.
export class PathCharts {
  /** @param {ChartContext} context */
  constructor(context) {
    this.plane = new PlotChart(context, { title: "Path in the plane", className: "path" });
    this.loss = new PlotChart(context, { title: "Loss along the path" });
    this.distance = new PlotChart(context, { title: "Distance" });
    this.side = container("div", "insight-side charts-column", this.loss.element, this.distance.element);
    this.element = container("div", "insight-body", this.plane.element, this.side);
    this.context = context;
    this.key = "";
    /** @type {ColoredPath[]} */
    this.paths = [];
    context.listeners.add(() => this.#drawSteps());
  }

  /**
   * Show paths with a `color`, in a plane with the shares of the movement that its axes explain.
   * @param {ColoredPath[]} paths
   * @param {PathPlane} plane
   */
  show(paths, { explained, reference }) {
    this.paths = paths;
    /** @param {number} index */
    const share = (index) =>
      isNumber(explained[index]) ? ` (${formatPercent(explained[index])} of the movement), L2` : "";
    this.plane.show(
      pathsPicture(paths, {
        title:
          "Path of the weights in the plane of its first two principal components" +
          (paths.length > 1 ? `, of ${formatCount(paths.length, "run")}` : ""),
        axes: [`first component${share(0)}`, `second component${share(1)}`],
        reference,
      }),
    );
    this.#drawSteps(true);
  }

  /**
   * The charts over steps show the range of all charts.
   * @param {boolean} [isNew]
   */
  #drawSteps(isNew = false) {
    const range = this.context.shownSteps();
    const key = JSON.stringify(range);
    if (!this.paths.length || (!isNew && key === this.key)) return;
    this.key = key;
    const losses = this.paths.filter(({ loss }) => loss.some((value) => value !== null));
    this.loss.element.hidden = !losses.length;
    if (losses.length)
      this.loss.show(
        linesPicture(
          losses.map(({ name, steps, loss, color }) => ({ name, x: steps, y: loss, color })),
          { title: "Loss along the path", value: "loss", range },
        ),
      );
    // Of several runs one distance is enough.
    const kinds = this.paths.length > 1 ? PATH_DISTANCES.slice(0, 1) : PATH_DISTANCES;
    const curves = this.paths.flatMap(({ name, steps, distances, color }) =>
      kinds
        .filter(([kind]) => distances[kind])
        .map(([kind, text], index) => ({
          name: this.paths.length > 1 ? name : text,
          x: steps,
          y: distances[kind],
          color: this.paths.length > 1 ? color : index,
        })),
    );
    this.distance.element.hidden = !curves.length;
    if (curves.length) {
      const unit = this.paths.every(({ isRelative }) => isRelative) ? "times the initial norm" : "";
      this.distance.setTitle(
        "Distance",
        [this.paths.length > 1 && PATH_DISTANCES[0][1], unit].filter(Boolean).join(", "),
      );
      this.distance.show(
        linesPicture(curves, { title: "Distance", value: unit ? "distance / initial norm" : "distance (L2)", range }),
      );
      this.distance.setLegend(this.paths.length > 1 ? [] : curves);
    }
  }
}

/**
 * @param {WeightPath} path
 * @param {boolean} isNamed
 */
function pathSummary({ name, distances, straightness, steps, isRelative }, isNamed) {
  /** @param {string} key */
  const last = (key) => {
    const value = distances[key]?.filter((each) => each !== null).pop();
    return value === undefined
      ? ""
      : isRelative
        ? `${chartNumber(Number((100 * value).toPrecision(3)))} %`
        : chartNumber(value);
  };
  const [initial, travelled, reference] = [
    last("distance_to_initial"),
    last("distance_travelled"),
    last("distance_to_reference"),
  ];
  const parts = [
    initial && `are ${initial}${isRelative ? " of their initial norm" : ""} from where they began`,
    travelled && `have travelled ${travelled}`,
    reference && `are ${reference} from the reference`,
  ].filter(Boolean);
  const text =
    parts.length > 1 ? `${parts.slice(0, -1).join(", ")}, and ${parts[parts.length - 1]}` : (parts[0] ?? "have moved");
  const straight =
    straightness === null ? "" : ` The straightness of the path is ${straightness.toFixed(2)} (1 is a straight line).`;
  const weights = `the weights${isNamed ? ` of ${name}` : ""}`;
  return `At step ${formatNumber(steps[steps.length - 1])}, ${weights} ${text}.${straight}`;
}
