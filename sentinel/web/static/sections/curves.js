// Curves of everything that the run logs.
import {
  NATURAL_ORDER,
  button,
  container,
  emptyState,
  groupBy,
  isActive,
  setAttributes,
  setText,
  showToast,
} from "../dom.js";
import { createLoader } from "../loading.js";
import { chartContext } from "../charts/context.js";
import { ChartGrid, createChartFilter } from "../charts/grid.js";
import { intervalEnd, intervalStart } from "../charts/marks.js";

/** @type {Option[]} */
const CURVES_GROUPS = [
  ["main", "Main"],
  ["training", "Training"],
  ["policy", "Policy"],
  ["reward", "Reward"],
  ["evaluation", "Evaluation"],
];
// How much of the run is shown around an incident, as a share of its length, and at least in steps.
const CURVES_MARGIN = 1;
const CURVES_MIN_MARGIN = 20;

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createCurves(page) {
  const context = chartContext(page);
  const grid = new ChartGrid(context, "curves");
  const [previous, next] = [
    button("‹ Incident", () => jumpToIncident(page, -1), "small"),
    button("Incident ›", () => jumpToIncident(page, 1), "small"),
  ];
  setAttributes(previous, { "aria-label": "Previous incident" });
  setAttributes(next, { "aria-label": "Next incident" });
  const jumps = container("span", "row jumps", previous, next);
  const whole = button("Whole run", () => context.zoom(null), "small");
  const folds = button("", () => grid.toggleFolds(), "small");
  const bar = container(
    "div",
    "row chart-bar",
    createChartFilter(grid, "chart-filter"),
    container("span", "row end", jumps, folds, whole),
  );
  const empty = emptyState("");
  bar.hidden = empty.hidden = true;

  const showRange = () => {
    whole.disabled = !page.view.range;
    jumps.hidden = !context.marks.intervals.length;
    setText(folds, grid.isAnyFolded ? "Unfold groups" : "Fold groups");
    folds.hidden = grid.shownGroups.length < 2;
  };
  page.view.subscribe(showRange);
  context.marks.listeners.add(showRange);

  const loader = createLoader("the signals", async () => {
    const signals = (await context.signals()).filter(({ group }) => group !== "machine");
    grid.setCharts(curvesInGroups(signals));
    bar.hidden = !signals.length;
    empty.hidden = Boolean(signals.length);
    showRange();
  });
  context.signalListeners.add(loader.request);
  loader.request();

  return {
    id: "curves",
    title: "Curves",
    element: container("div", "", loader.element, bar, grid.element, empty),
    update(run) {
      setText(
        empty,
        isActive(run)
          ? "No value yet. Curves appear with the first step that the run logs."
          : "The run logged no value.",
      );
      grid.setIncidents((run.incidents || []).filter(({ state }) => state !== "resolved"));
    },
    searchTargets: () => grid.searchTargets(),
    urgency: () => 0,
  };
}

/**
 * The signals of the catalogue by what they are about, in its order, and then what else is logged by
 * the prefix that several names share, as numbers sort: layer_2 before layer_10.
 * @param {Signal[]} signals
 * @returns {ChartEntry[]}
 */
function curvesInGroups(signals) {
  const titles = new Map(CURVES_GROUPS);
  /** @param {string} group */
  const chart = (group) => (/** @type {Signal} */ signal) => ({
    group,
    title: signal.label || signal.name,
    signals: [signal],
  });
  const known = groupBy(
    signals.filter(({ group = "" }) => titles.has(group)),
    ({ group }) => group,
  );
  const logged = signals.filter(({ group = "" }) => !titles.has(group)).sort((a, b) => NATURAL_ORDER(a.name, b.name));
  const prefixed = groupBy(logged, ({ name }) => curvePrefix(name));
  const shared = [...prefixed].filter(([prefix, members]) => prefix && members.length > 1);
  const single = logged.filter(({ name }) => !shared.some(([prefix]) => prefix === curvePrefix(name)));
  return [
    ...CURVES_GROUPS.flatMap(([group, title]) => (known.get(group) ?? []).map(chart(title))),
    ...single.map(chart("Logged")),
    ...shared.flatMap(([prefix, members]) => members.map(chart(prefix))),
  ];
}

/**
 * What stands before the first slash or dot of a name; empty without one.
 * @param {string} name
 */
function curvePrefix(name) {
  return /^[^/.]+(?=[/.])/.exec(name)?.[0] ?? "";
}

/**
 * Zoom about the middle of the shown range by a factor, and move by a share of it.
 * @param {Page} page
 * @param {number} factor
 * @param {number} shift
 */
export function moveRange(page, factor, shift) {
  const context = chartContext(page);
  const [shown, { domain }] = [context.shownRange(), context.store];
  if (!shown || !domain) return;
  const size = Math.min((shown[1] - shown[0]) * factor, domain[1] - domain[0]);
  const middle = (shown[0] + shown[1]) / 2 + shift * size;
  const start = Math.max(domain[0], Math.min(middle - size / 2, domain[1] - size));
  context.zoom(size >= domain[1] - domain[0] ? null : [start, start + size]);
}

/**
 * Show the next (1) or the previous (-1) incident in all charts.
 * @param {Page} page
 * @param {1 | -1} direction
 */
export function jumpToIncident(page, direction) {
  const context = chartContext(page);
  const { axis, range } = page.view;
  const key = axis === "time" ? "time" : "step";
  if (!["step", "time"].includes(axis)) {
    showToast("Incidents have a step and a time only. Choose steps or time as the axis.");
    return;
  }
  const incidents = context.marks.incidents();
  if (!incidents.length) {
    showToast("The run has no incident.");
    return;
  }
  const center = range ? (range[0] + range[1]) / 2 : direction > 0 ? -Infinity : Infinity;
  const spans = incidents.map((incident) => incidentRange(incident, key, context)).filter((span) => span);
  /** @param {{ range: Span }} span */
  const distance = (span) => (span.range[0] + span.range[1]) / 2 - center;
  const beyond = spans.filter((span) => distance(span) * direction > 1e-6 * Math.abs(span.range[1] - span.range[0]));
  const ordered = (beyond.length ? beyond : spans).toSorted((a, b) => direction * (distance(a) - distance(b)));
  const { incident, range: shown } = ordered[0];
  context.zoom(shown);
  showToast(
    `${incident.detector}, ${incident.severity}, from step ${incident.from_step}` +
      (incident.summary ? `: ${incident.summary}` : ""),
  );
}

/**
 * The part of the run around an incident.
 * @param {MarkedInterval} incident
 * @param {"step" | "time"} key
 * @param {ChartContext} context
 * @returns {{ incident: MarkedInterval, range: Span }}
 */
function incidentRange(incident, key, context) {
  const { domain } = context.store;
  const end = domain ? domain[1] : intervalStart(incident, key);
  const onset = key === "step" ? Math.min(incident.onset_step, incident.from_step) : incident.from_time;
  const last = intervalEnd(incident, key) ?? end;
  const margin = Math.max((last - onset) * CURVES_MARGIN, key === "step" ? CURVES_MIN_MARGIN : 60);
  const start = Math.max(onset - margin, domain ? domain[0] : 0);
  return { incident, range: [start, Math.max(start + 2, Math.min(last + margin, end))] };
}
