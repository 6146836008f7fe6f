// Which detectors fired when: one row per detector that had incidents.
import { container, element, emptyState, focusedElement, formatDate, severityClass } from "../dom.js";
import { createLoadingState } from "../loading.js";
import { chartContext } from "../charts/context.js";
import { intervalEnd, intervalStart } from "../charts/marks.js";
import { chartNumber } from "../charts/units.js";

const TIMELINE_TICKS = 5;
const TIMELINE_SECONDS = [
  1,
  2,
  5,
  10,
  30,
  60,
  120,
  300,
  600,
  1800,
  3600,
  3 * 3600,
  6 * 3600,
  12 * 3600,
  86400,
  7 * 86400,
];
const TIMELINE_MIN_PERCENT = 0.4;

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createTimeline(page) {
  const context = chartContext(page);
  const rows = element("div", "", "timeline");
  rows.setAttribute("role", "table");
  rows.setAttribute("aria-label", "Incidents of each detector");
  const empty = emptyState("No detector has fired. Each one that does gets a row here.");
  const key = container(
    "p",
    "timeline-key soft",
    ...[
      ["critical", "critical"],
      ["warning", "warning"],
      ["info", "info"],
    ].map(([name, text]) => container("span", "", element("i", "", `state ${name} firing`), text)),
    ...["acknowledged", "silenced", "resolved"].map((state) =>
      container("span", "", element("i", "", `state info ${state}`), state),
    ),
    container("span", "", element("i", "", "event save"), "checkpoint"),
  );
  const loading = createLoadingState("the timeline", () => context.marks.retry());
  empty.hidden = rows.hidden = key.hidden = true;
  const body = container("div", "", loading.element, empty, rows, key);
  let shown = "";

  const draw = () => {
    const { axis } = page.view;
    const place = axis === "time" ? "time" : "step";
    const detectors = context.marks.detectors.filter(({ intervals }) => intervals.length);
    empty.hidden = detectors.length > 0 || !context.marks.isLoaded;
    const { isLoaded, problem } = context.marks;
    if (problem) loading.showProblem(problem);
    else if (isLoaded) loading.hide();
    page.frame?.refresh("timeline");
    rows.hidden = key.hidden = !detectors.length;
    if (!detectors.length) return;
    const range = timelineRange(page, context, place, detectors);
    const text = JSON.stringify([place, range, detectors, context.marks.events.length]);
    if (text === shown) return;
    shown = text;
    const active = focusedElement();
    const focused = rows.contains(active) ? active?.dataset.interval : "";
    const saves = context.marks.events
      .filter(({ event }) => event === "save")
      .map((event) => event[place])
      .filter((at) => at !== null)
      .map((at) => timelineShare(at, range))
      .filter((share) => share >= 0 && share <= 1);
    rows.replaceChildren(
      ...detectors.map((detector) => timelineRow(detector, place, range, page, context)),
      timelineAxis(place, range, saves),
    );
    if (focused) [...rows.querySelectorAll("button")].find((each) => each.dataset.interval === focused)?.focus();
  };
  context.marks.listeners.add(draw);
  context.listeners.add(draw);

  return {
    id: "timeline",
    title: "Timeline of detectors",
    element: body,
    update: draw,
    isEmpty: () => context.marks.isLoaded && !context.marks.detectors.some(({ intervals }) => intervals.length),
    urgency: (run) => ((run.incidents || []).some(({ state }) => state === "firing") ? 1 : 0),
  };
}

/**
 * What is shown: the range of the charts, else from the start of the run to its end.
 * @param {Page} page
 * @param {ChartContext} context
 * @param {"step" | "time"} place
 * @param {DetectorIntervals[]} detectors
 * @returns {Span}
 */
function timelineRange({ view }, { store, marks }, place, detectors) {
  if (view.range && view.axis === place) return view.range;
  const ends = [
    ...detectors.flatMap(({ intervals }) =>
      intervals.flatMap((each) => [intervalStart(each, place), intervalEnd(each, place)]),
    ),
    ...marks.events.map((event) => event[place]),
    ...(store.axis === place && store.domain ? store.domain : []),
  ].filter((value) => typeof value === "number");
  let [first, last] = [Infinity, -Infinity];
  for (const end of ends) [first, last] = [Math.min(first, end), Math.max(last, end)];
  return last > first ? [first, last] : [first, first + 1];
}

/**
 * @param {number} value
 * @param {Span} range
 */
function timelineShare(value, [start, end]) {
  return (value - start) / (end - start);
}

/**
 * @param {DetectorIntervals} row
 * @param {"step" | "time"} place
 * @param {Span} range
 * @param {Page} page
 * @param {ChartContext} context
 */
function timelineRow({ detector, intervals }, place, range, page, context) {
  const lane = element("div", "", "lane");
  lane.setAttribute("role", "cell");
  for (const interval of intervals) {
    const [start, stop] = [intervalStart(interval, place), intervalEnd(interval, place)];
    const from = Math.max(0, timelineShare(start, range));
    const to = Math.min(1, stop === null ? 1 : timelineShare(stop, range));
    if (from > 1 || to < 0) continue;
    const bar = element("button", "", `state ${severityClass(interval)} ${interval.state}`);
    bar.type = "button";
    bar.dataset.interval = `${interval.incident} ${interval.from_step}`;
    const width = Math.max((to - from) * 100, TIMELINE_MIN_PERCENT);
    bar.style.left = `${Math.min(from * 100, 100 - width)}%`;
    bar.style.width = `${width}%`;
    const end = interval.to_step === null ? "now" : interval.to_step;
    bar.title = `${detector}: ${interval.severity}, ${interval.state}, step ${interval.from_step} to ${end}`;
    bar.setAttribute("aria-label", bar.title);
    if (width > 12)
      bar.append(element("span", `${interval.severity}${interval.state === "firing" ? "" : `, ${interval.state}`}`));
    bar.addEventListener("click", () => {
      if (!["step", "time"].includes(page.view.axis)) return;
      const last = stop ?? range[1];
      const margin = Math.max(last - start, place === "step" ? 20 : 60);
      context.zoom([Math.max(start - margin, 0), last + margin]);
    });
    lane.append(bar);
  }
  const name = element("div", detector, "name");
  name.setAttribute("role", "rowheader");
  const row = container("div", "timeline-row", name, lane);
  row.setAttribute("role", "row");
  return row;
}

/**
 * @param {"step" | "time"} place
 * @param {Span} range
 * @param {number[]} saves
 */
function timelineAxis(place, range, saves) {
  const axis = element("div", "", "lane axis");
  axis.setAttribute("aria-hidden", "true");
  for (const share of saves) {
    const mark = element("i", "", "event save");
    mark.style.left = `${share * 100}%`;
    axis.append(mark);
  }
  for (const value of timelineTicks(range, place)) {
    const isLast = timelineShare(value, range) > 0.95;
    const tick = element(
      "span",
      place === "time" ? timelineClock(value, range) : chartNumber(value),
      isLast ? "tick last" : "tick",
    );
    tick.style.left = `${timelineShare(value, range) * 100}%`;
    axis.append(tick);
  }
  return container("div", "timeline-row", element("div", place === "time" ? "time (UTC)" : place, "name soft"), axis);
}

/**
 * Round positions of ticks.
 * @param {Span} range
 * @param {string} place
 */
function timelineTicks([start, end], place) {
  const rough = (end - start) / TIMELINE_TICKS;
  const sizes =
    place === "time" ? TIMELINE_SECONDS : [1, 2, 5, 10].map((digit) => digit * 10 ** Math.floor(Math.log10(rough)));
  const largest = sizes[sizes.length - 1] * 10;
  const step = sizes.find((size) => size >= rough * 0.7) ?? largest;
  const ticks = [];
  for (let value = Math.ceil(start / step) * step; value <= end; value += step) ticks.push(value);
  return ticks;
}

/**
 * @param {number} value
 * @param {Span} range
 */
function timelineClock(value, [start, end]) {
  const text = formatDate(value);
  return end - start > 2 * 86400 ? text.slice(5, 16) : end - start < 600 ? text.slice(11, 19) : text.slice(11, 16);
}
