// Runs side by side: the settings that differ, problems, curves over each other, and results.
import {
  button,
  choice,
  container,
  createTable,
  element,
  emptyState,
  errorMessage,
  formatCount,
  formatDuration,
  formatNumber,
  formatOpenCount,
  formatTime,
  formatTrainingEndCount,
  healthClass,
  healthText,
  isNumber,
  pageElement,
  setAttributes,
  severityClass,
} from "./dom.js";
import { createFrame } from "./frame.js";
import { report } from "./source.js";
import { createSmoothing, createThemeChoice, createView } from "./view.js";
import { chartContext } from "./charts/context.js";
import { insightDrawings, loadInsightDrawings } from "./sections/insight.js";
import { ChartGrid, createChartFilter } from "./charts/grid.js";
import { axisOfSignal, axisSignal } from "./charts/horizontal_axis.js";
import { highlightRun, runSample } from "./charts/run_lines.js";
import { chartNumber, chartText } from "./charts/units.js";

/** @type {Option[]} */
const COMPARED_AXES = [
  ["step", "Step"],
  ["hours", "Hours"],
  ["tokens", "Tokens"],
];
/** @type {Record<string, string>} */
const COMPARED_GROUPS = {
  main: "Main",
  training: "Training",
  policy: "Policy",
  reward: "Reward",
  evaluation: "Evaluation",
  logged: "Logged",
  machine: "Machine",
};
const SECONDS_PER_HOUR = 3600;
const MAX_CELL_CHARS = 200;

/**
 * Show a comparison. `load(query)` returns that of the query { axis, signals, start, end, points },
 * with the curves of these signals; `runUrl(run, index)` is the address of the page of a run, `loadResult(run,
 * index, path)` the answer of its server, `lead` what stands before the title.
 * @param {Comparison} comparison
 * @param {ComparisonLoader} load
 * @param {(run: ComparedRun, index: number) => string} runUrl
 * @param {ResultLoader} loadResult
 * @param {Child} [lead]
 */
export function startComparison(comparison, load, runUrl, loadResult, lead = null) {
  const view = createView(COMPARED_AXES.map(([axis]) => axis));
  // Times count from the start of each run.
  if (["time", "hours"].includes(new URLSearchParams(location.search).get("axis") ?? "")) view.axis = "hours";
  const asked = axisSignal(view.axis);
  if (asked !== null && !comparison.metrics.some(({ signal }) => signal === asked)) view.axis = COMPARED_AXES[0][0];
  /** @type {Set<number>} */
  const hidden = new Set();
  /** @type {ComparisonPage} */
  const page = {
    view,
    comparison,
    hidden,
    runUrl,
    source: comparedSource(comparison, load),
    highlight: (index) => highlightRun(chartContext(page), index !== null && hidden.has(index) ? null : index),
  };
  const curves = createComparedCurves(page);
  const sections = [
    createComparedRuns(page),
    ...(comparison.what_changed ? [createWhatChanged(comparison.what_changed)] : []),
    createComparedSettings(page),
    createComparedProblems(page),
    curves,
    createComparedMetrics(page),
    ...createComparedInsight(page, loadResult),
  ];
  const frame = createFrame(sections);
  const title = formatCount(comparison.runs.length, "run");
  document.title = `Comparison of ${title}: sentinel`;
  pageElement("topbar").replaceChildren(
    container("div", "name", lead, element("h1", `Comparison of ${title}`)),
    comparedBar(view, comparison),
  );
  pageElement("page").replaceChildren(frame.element);
  frame.update(comparison);
}

/**
 * Axis, smoothing, scale and theme of all charts.
 * @param {View} view
 * @param {Comparison} comparison
 */
function comparedBar(view, { metrics }) {
  const axis = choice("Axis", COMPARED_AXES, (value) => view.set({ axis: value }));
  const signals = setAttributes(element("optgroup"), { label: "Values of a metric" });
  signals.append(
    ...metrics.map(({ signal, label }) => setAttributes(element("option", label), { value: axisOfSignal(signal) })),
  );
  axis.append(signals);
  const smoothing = createSmoothing(view);
  const log = button("Log", () => view.set({ isLog: !view.isLog }), "small");
  const theme = createThemeChoice(view);
  const whole = button("Whole runs", () => view.set({ range: null }), "small");
  const show = () => {
    axis.value = view.axis;
    log.setAttribute("aria-pressed", String(view.isLog));
    whole.disabled = !view.range;
  };
  view.subscribe(show);
  show();
  const bar = container(
    "div",
    "toolbar shown",
    axis,
    whole,
    container("label", "", "Smoothing", smoothing),
    log,
    theme,
  );
  return setAttributes(bar, { role: "toolbar", "aria-label": "View" });
}

/**
 * The curves as the charts of a run ask for them. The name of a curve is the number of its run and
 * the name of its signal.
 * @param {Comparison} comparison
 * @param {ComparisonLoader} load
 */
function comparedSource(comparison, load) {
  const whole = new Map([[comparison.axis, comparison.series]]);
  /** @type {Set<SourceHandlers>} */
  const listeners = new Set();
  /**
   * @param {string} axis
   * @param {string[]} names
   * @param {number | null} start
   * @param {number | null} end
   * @param {number | null} points
   */
  const series = async (axis, names, start, end, points) => {
    const asked = axis === "hours" ? "time" : axis;
    const scale = axis === "hours" ? SECONDS_PER_HOUR : 1;
    // A report has no other points.
    const isExact = points !== null && report === null;
    let found = start === null && !isExact ? whole.get(asked) : undefined;
    if (!found) {
      const signals = start === null && !isExact ? [] : [...new Set(names.map((name) => comparedCurve(name)[1]))];
      found = (
        await load({
          axis: asked,
          signals,
          start: start === null ? null : start * scale,
          end: end === null ? null : end * scale,
          points: isExact ? points : null,
        })
      ).series;
      if (start === null && !isExact) whole.set(asked, found);
    }
    const answers = found;
    return Object.fromEntries(
      names.map((name) => {
        const [index, signal] = comparedCurve(name);
        return [name, scaledCurve(answers[signal]?.[index] ?? null, scale)];
      }),
    );
  };
  return {
    isReport: report !== null,
    subscribe(/** @type {SourceHandlers} */ handlers) {
      listeners.add(handlers);
      return () => listeners.delete(handlers);
    },
    // The axes reach as far as the runs that are shown now.
    reset: () => listeners.forEach((handlers) => handlers.reset?.()),
    now: () => Date.now() / 1000,
    // Over the values of a metric, each run has its own.
    axisCurve: (/** @type {string} */ signal, /** @type {string} */ name) =>
      comparedName(comparedCurve(name)[0], signal),
    /** @param {string} path */
    async getJson(path) {
      const [name, text] = path.split("?");
      if (name === "api/timeline") return { detectors: [], events: [] };
      if (name === "api/incidents") return [];
      if (name === "api/thresholds") return {};
      const query = new URLSearchParams(text);
      const [start, end] = ["from", "to"].map((key) => (query.has(key) ? Number(query.get(key)) : null));
      const axis = query.get("axis") ?? "step";
      const points = query.has("exact") ? Number(query.get("points")) : null;
      return { axis, series: await series(axis, query.getAll("signals"), start, end, points) };
    },
  };
}

/**
 * @param {number} index
 * @param {string} signal
 */
function comparedName(index, signal) {
  return `${index}:${signal}`;
}

/**
 * @param {string} name
 * @returns {[number, string]}
 */
function comparedCurve(name) {
  const end = name.indexOf(":");
  return [Number(name.slice(0, end)), name.slice(end + 1)];
}

/**
 * @param {SeriesAnswer | null} curve
 * @param {number} scale
 * @returns {SeriesAnswer}
 */
function scaledCurve(curve, scale) {
  if (!curve) return { x: [], mean: [], min: [], max: [], is_raw: true, count: 0 };
  if (scale === 1) return curve;
  return { ...curve, x: curve.x.map((x) => x / scale), bad: (curve.bad ?? []).map((x) => x / scale) };
}

/**
 * @param {ComparisonPage} page
 * @param {ComparedRun} compared
 * @param {number} index
 */
function runHeading(page, compared, index) {
  const url = page.runUrl(compared, index);
  const name = url ? setAttributes(element("a", compared.name), { href: url }) : element("span", compared.name);
  return highlighting(container("span", "run-name", runSample(index), name), page, index);
}

/**
 * While the pointer or the focus is in a node, the curves of its run stay and the others fade.
 * @template {HTMLElement} T
 * @param {T} node
 * @param {ComparisonPage} page
 * @param {number} index
 * @returns {T}
 */
function highlighting(node, page, index) {
  for (const event of ["pointerenter", "focusin"]) node.addEventListener(event, () => page.highlight(index));
  for (const event of ["pointerleave", "focusout"]) node.addEventListener(event, () => page.highlight(null));
  return node;
}

/**
 * A table with a column for each run.
 * @param {ComparisonPage} page
 * @param {string} label
 * @param {string} first
 */
function createComparedTable(page, label, first) {
  const table = createTable(label, [
    { title: first, className: "key" },
    ...page.comparison.runs.map(() => ({ title: "", className: "" })),
  ]);
  const heads = table.element.querySelectorAll("th");
  page.comparison.runs.forEach((run, index) => heads[index + 1].replaceChildren(runHeading(page, run, index)));
  table.element.classList.add("compared");
  return table;
}

/**
 * A row for each run: many columns of runs would not fit.
 * @param {ComparisonPage} page
 * @returns {Section}
 */
function createComparedRuns(page) {
  const { runs } = page.comparison;
  /** @type {[string, (run: ComparedRun) => Cell][]} */
  const titled = [
    ["Health", ({ health }) => element("span", healthText(health), `pill ${healthClass(health)}`)],
    ["State", ({ state }) => state],
    ["Last step", ({ step }) => (isNumber(step) ? formatNumber(step) : "")],
    ["Duration", ({ seconds }) => formatDuration(seconds)],
    ["Cases", comparedCases],
    ["Note", ({ note }) => (note ? element("span", note, "note-text") : "")],
    ["Started", ({ started }) => formatTime(started)],
    ["Host", ({ host }) => host],
    ["Framework", ({ framework, algorithm }) => [framework, algorithm].filter(Boolean).join(", ")],
    ["Model", ({ model }) => model],
  ];
  const columns = titled
    .map(([title, of]) => ({ title, cells: runs.map(of) }))
    .filter(({ cells }) => cells.some((cell) => cell));
  const table = createTable("Runs", [{ title: "Run", className: "key" }, ...columns.map(({ title }) => title)]);
  table.element.classList.add("compared");
  table.setRows(
    runs.map((compared, index) => [
      runHeading(page, compared, index),
      ...columns.map(({ cells }) => cells[index] || "-"),
    ]),
  );
  return {
    id: "runs",
    title: "Runs",
    element: table.element,
    update: () => {},
    note: () =>
      runs
        .map(({ name }) => name)
        .join(", ")
        .slice(0, MAX_CELL_CHARS),
    urgency: () => 0,
  };
}

/**
 * How many cases a run has, and how many of them were never over.
 * @param {ComparedRun} run
 */
function comparedCases({ cases, open_cases: open, lasting_cases: lasting, training_lasting_cases: ofTraining }) {
  if (!cases) return "none";
  return [String(cases), formatOpenCount(open + lasting, !open), formatTrainingEndCount(ofTraining)]
    .filter(Boolean)
    .join(", ");
}

/**
 * @param {ComparisonPage} page
 * @returns {Section}
 */
function createComparedProblems(page) {
  const { problems } = page.comparison;
  const table = createComparedTable(page, "Problems", "Problem");
  table.setRows(
    problems.map(({ title, cells }) => [
      title,
      ...cells.map((cases) => container("span", "row", ...cases.map(caseChip))),
    ]),
  );
  table.element.hidden = !problems.length;
  const none = emptyState("None of these runs has a case.");
  none.hidden = problems.length > 0;
  return {
    id: "problems",
    title: "Problems",
    element: container("div", "", table.element, none),
    update: () => {},
    note: () => (problems.length ? formatCount(problems.length, "kind") : "none"),
    urgency: () => 0,
  };
}

/** @param {Case} pastCase */
function caseChip(pastCase) {
  const { onset_step: onset, resolved_step: resolved } = pastCase;
  const end = isNumber(resolved) ? `–${formatNumber(resolved)}` : ", open";
  return element("span", `step ${formatNumber(onset)}${end}`, `pill ${severityClass(pastCase)}`);
}

/**
 * @param {ComparisonPage} page
 * @returns {Section}
 */
function createComparedMetrics(page) {
  const { metrics } = page.comparison;
  const table = createComparedTable(page, "Metrics", "Metric");
  table.setRows(
    metrics.map((metric) => [
      metricHeading(metric),
      ...metric.values.map((value, index) => metricCell(metric, value, index)),
    ]),
  );
  return {
    id: "metrics",
    title: "Metrics",
    element: table.element,
    update: () => {},
    note: () => "last value; the best run by the mean of its last tenth",
    urgency: () => 0,
  };
}

/** @param {ComparedMetric} metric */
function metricHeading({ label, better }) {
  return container(
    "span",
    "",
    element("span", label),
    better && element("small", `${better} is better`, "soft nowrap"),
  );
}

/**
 * The pill stands at the number by which a run is the best: the mean of its last tenth.
 * @param {ComparedMetric} metric
 * @param {ComparedValue | null} value
 * @param {number} index
 */
function metricCell(metric, value, index) {
  if (!value || value.last === null) return element("span", "-", "soft");
  const isBest = index === metric.best_run;
  const pill = isBest && element("span", "best", "pill ok");
  /**
   * As JSON, a value that is not finite is a text.
   * @param {JsonNumber} number
   */
  const text = (number) => (isNumber(number) ? chartText(number, metric.unit) : "NaN");
  // Of a metric with few values, the last one is all of the last tenth.
  const isSingle = value.final === value.last;
  const level =
    !isSingle && container("small", isBest ? "best" : "soft", element("span", `last tenth ${text(value.final)}`), pill);
  const details = [
    isNumber(value.best) && `best value ${text(value.best)} at ${chartNumber(value.best_x)}`,
    value.at_common !== null && value.at_common !== value.last && `common end ${text(value.at_common)}`,
    value.bad_count > 0 && `${formatCount(value.bad_count, "value")} NaN or infinite`,
  ].filter((detail) => detail !== false);
  return container(
    "span",
    "",
    container("span", isBest && isSingle ? "number best" : "number", text(value.last), isSingle && pill),
    level,
    ...details.map((detail) => element("small", detail, "soft")),
  );
}

/**
 * @param {ComparisonPage} page
 * @returns {Section}
 */
function createComparedCurves(page) {
  const { metrics, runs } = page.comparison;
  const context = chartContext(page);
  const grid = new ChartGrid(context, "compared");
  // What the axis is called if it shows one of these.
  context.signalUnits = new Map(metrics.map(({ signal, unit }) => [signal, unit]));
  const showRuns = () =>
    grid.setCharts(
      metrics
        .map((metric) => {
          const shown = metric.values
            .map((value, index) => index)
            .filter((index) => metric.values[index] && !page.hidden.has(index));
          return {
            group: COMPARED_GROUPS[metric.group] ?? "Logged",
            title: metric.label,
            signals: shown.map((index) => ({
              name: comparedName(index, metric.signal),
              label: metric.label,
              unit: metric.unit,
              legend: runs[index].name,
              color: index,
            })),
          };
        })
        .filter(({ signals }) => signals.length),
    );
  showRuns();
  return {
    id: "curves",
    title: "Curves",
    update: () => {},
    element: container(
      "div",
      "",
      createRunLegend(page, showRuns),
      container("div", "row chart-bar", createChartFilter(grid, "compared-filter")),
      grid.element,
    ),
    note: () => formatCount(metrics.length, "metric"),
    urgency: () => 0,
  };
}

/**
 * All runs as buttons, which show a run in the curves or hide it.
 * @param {ComparisonPage} page
 * @param {() => void} showRuns
 */
function createRunLegend(page, showRuns) {
  const { runs } = page.comparison;
  const items = runs.map(({ name }, index) => {
    const item = button(
      "",
      () => {
        if (!page.hidden.delete(index)) page.hidden.add(index);
        item.setAttribute("aria-pressed", String(!page.hidden.has(index)));
        showRuns();
        page.source.reset();
        page.highlight(index);
      },
      "quiet small",
    );
    item.append(runSample(index), element("span", name));
    setAttributes(item, { "aria-pressed": "true", title: `Show or hide ${name} in the curves` });
    return highlighting(item, page, index);
  });
  return setAttributes(container("div", "run-legend", ...items), { role: "group", "aria-label": "Runs in the curves" });
}

/**
 * @param {WhatChanged} changed
 * @returns {Section}
 */
function createWhatChanged({ departures, differences, text, conclusion }) {
  const departed = createTable("Departures", [
    { title: "Metric", className: "key" },
    ...["Step", "Value", "Band of the good runs", "Effect"].map((title) => ({ title, className: "" })),
  ]);
  departed.setRows(
    departures.map(({ label, unit, step, value, low, high, effect }) => [
      label,
      formatNumber(step),
      chartText(value, unit),
      `${chartText(low, unit)} to ${chartText(high, unit)}`,
      effect || "-",
    ]),
  );
  departed.element.hidden = !departures.length;
  const different = createTable("Differences, the likeliest cause first", [
    { title: "Difference", className: "key" },
    ...["Good", "Bad", "Own runs that departed"].map((title) => ({ title, className: "" })),
  ]);
  different.setRows(
    differences.map((each) => [
      element("code", [each.name, ...each.also].join(", ")),
      settingCell(each.good),
      settingCell(each.bad),
      each.count
        ? `${each.departed} of ${each.count} with it, ${each.departed_without} of ${each.count_without} without`
        : "no other run has it",
    ]),
  );
  different.element.hidden = !departures.length || !differences.length;
  return {
    id: "what-changed",
    title: "What changed",
    element: container("div", "", element("p", text), departed.element, different.element, element("p", conclusion)),
    update: () => {},
    note: () => (departures.length ? `step ${formatNumber(departures[0].step)}` : "no departure"),
    urgency: () => 0,
  };
}

/**
 * @param {ComparisonPage} page
 * @returns {Section}
 */
function createComparedSettings(page) {
  const { settings, same_settings: same } = page.comparison;
  const table = createComparedTable(page, "Settings that differ", "Setting");
  table.setRows(settings.map(({ name, values }) => [element("code", name), ...values.map(settingCell)]));
  table.element.hidden = !settings.length;
  const none = emptyState("No setting differs.");
  none.hidden = settings.length > 0;
  const others = element(
    "p",
    same ? `${formatCount(same, "setting")} ${same === 1 ? "is" : "are"} the same in all runs.` : "",
    "soft",
  );
  return {
    id: "settings",
    title: "Settings that differ",
    element: container("div", "", table.element, none, others),
    update: () => {},
    note: () => (settings.length ? formatCount(settings.length, "setting") : "none"),
    urgency: () => 0,
  };
}

/** @param {Setting} value */
function settingCell(value) {
  if (value === null || value === undefined) return element("span", "-", "soft");
  const text = formatNumber(value);
  const node = element("span", text.length > MAX_CELL_CHARS ? `${text.slice(0, MAX_CELL_CHARS)}…` : text);
  node.title = text;
  return node;
}

/**
 * Surfaces side by side, and paths in one plane, of the runs that have such results.
 * @param {ComparisonPage} page
 * @param {ResultLoader} loadResult
 * @returns {Section[]}
 */
function createComparedInsight(page, loadResult) {
  const { insight, runs } = page.comparison;
  /**
   * @param {string} kind
   * @param {number} least
   */
  const has = (kind, least) =>
    (insight?.results ?? []).filter((items) => items.some((item) => item.kind === kind)).length >= least;
  /**
   * @param {number} index
   * @param {string} id
   */
  const load = (index, id) => loadResult(runs[index], index, `api/insight/${encodeURIComponent(id)}`);
  /**
   * @param {string} id
   * @param {string} title
   * @param {() => Node} draw
   * @returns {Section}
   */
  const section = (id, title, draw) => {
    const body = element("div", "", "insight");
    loadInsightDrawings()
      .then(() => body.replaceChildren(draw()))
      .catch((/** @type {unknown} */ error) => body.replaceChildren(element("p", errorMessage(error), "bad")));
    return { id, title, element: body, update: () => {}, urgency: () => 0 };
  };
  return [
    has("loss_surface", 1) &&
      insight &&
      section("loss-surface", "Loss surfaces", () => insightDrawings["compared-surfaces"](page, insight.results, load)),
    has("trajectory", 2) &&
      insight &&
      section("trajectory", "Trajectories in one plane", () => insightDrawings["compared-paths"](page, insight)),
  ].filter((each) => each !== false && each !== null && each !== undefined);
}
