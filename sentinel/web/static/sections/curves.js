// Curves of everything that the run logs.
import { button, container, element, emptyState, formatCount, isActive, setText, showToast } from "../dom.js";
import { chartContext } from "../charts/context.js";
import { ChartGrid } from "../charts/grid.js";

const CURVES_GROUPS = [
  ["main", "Main"], ["training", "Training"], ["policy", "Policy"], ["reward", "Reward"], ["evaluation", "Evaluation"], ["logged", "Logged"],
];
// How much of the run is shown around an incident, as a share of its length, and at least in steps.
const CURVES_MARGIN = 1;
const CURVES_MIN_MARGIN = 20;

export function createCurves(page) {
  const context = chartContext(page);
  const grid = new ChartGrid(context, "curves");
  const count = element("span", "", "soft");
  const filter = element("input", "", "input");
  filter.type = "search";
  filter.id = "chart-filter";
  filter.placeholder = "Filter charts";
  filter.setAttribute("aria-label", "Filter charts by name");
  filter.addEventListener("input", () => {
    grid.setFilter(filter.value);
    count.textContent = filter.value ? formatCount(grid.shownCount, "chart") : "";
  });
  const jumps = container("span", "row jumps",
    button("‹ Incident", () => jumpToIncident(page, -1), "small"), button("Incident ›", () => jumpToIncident(page, 1), "small"));
  jumps.firstChild.setAttribute("aria-label", "Previous incident");
  jumps.lastChild.setAttribute("aria-label", "Next incident");
  const whole = button("Whole run", () => context.zoom(null), "small");
  const bar = container("div", "row chart-bar", filter, count, container("span", "row end", jumps, whole));
  const empty = emptyState("");
  const body = container("div", "", bar, grid.element, empty);
  bar.hidden = true;

  const showRange = () => {
    whole.disabled = !page.view.range;
    jumps.hidden = !context.marks.intervals.length;
  };
  page.view.subscribe(showRange);
  context.marks.listeners.add(showRange);

  const load = async () => {
    try {
      const signals = (await context.signals()).filter(({ group }) => group !== "machine");
      const known = new Map(CURVES_GROUPS);
      const order = [...known.keys()];
      const rank = (signal) => (order.indexOf(signal.group) + order.length + 1) % (order.length + 1);
      const sorted = signals.map((signal, index) => ({ signal, index })).sort((a, b) => rank(a.signal) - rank(b.signal) || a.index - b.index);
      grid.setCharts(sorted.map(({ signal }) => ({ group: known.get(signal.group) || "Logged", title: signal.label || signal.name, signals: [signal] })));
      bar.hidden = !signals.length;
      empty.hidden = Boolean(signals.length);
      showRange();
    } catch {
      // The page shows that the server does not answer.
    }
  };
  context.signalListeners.add(load);
  load();

  return {
    id: "curves",
    title: "Curves",
    element: body,
    update(run) {
      setText(empty, isActive(run) ? "No value yet. Curves appear with the first step that the run logs." : "The run logged no value.");
      grid.setIncidents((run.incidents || []).filter(({ state }) => state !== "resolved"));
    },
    urgency: () => 0,
  };
}

// Zoom about the middle of the shown range by a factor, and move by a share of it.
export function moveRange(page, factor, shift) {
  const context = chartContext(page);
  const [shown, { domain }] = [context.shownRange(), context.store];
  if (!shown || !domain) return;
  const size = Math.min((shown[1] - shown[0]) * factor, domain[1] - domain[0]);
  const middle = (shown[0] + shown[1]) / 2 + shift * size;
  const start = Math.max(domain[0], Math.min(middle - size / 2, domain[1] - size));
  context.zoom(size >= domain[1] - domain[0] ? null : [start, start + size]);
}

// Show the next (1) or the previous (-1) incident in all charts.
export function jumpToIncident(page, direction) {
  const context = chartContext(page);
  const { axis, range } = page.view;
  const key = axis === "time" ? "time" : "step";
  if (axis === "tokens") {
    showToast("Incidents have no position in tokens. Choose steps or time.");
    return;
  }
  const incidents = context.marks.incidents();
  if (!incidents.length) {
    showToast("The run has no incident.");
    return;
  }
  const center = range ? (range[0] + range[1]) / 2 : direction > 0 ? -Infinity : Infinity;
  const spans = incidents.map((incident) => incidentRange(incident, key, context)).filter((span) => span);
  const distance = (span) => (span.range[0] + span.range[1]) / 2 - center;
  const beyond = spans.filter((span) => distance(span) * direction > 1e-6 * Math.abs(span.range[1] - span.range[0]));
  const ordered = (beyond.length ? beyond : spans).toSorted((a, b) => direction * (distance(a) - distance(b)));
  const { incident, range: shown } = ordered[0];
  context.zoom(shown);
  showToast(`${incident.detector}, ${incident.severity}, from step ${incident.from_step}${incident.summary ? `: ${incident.summary}` : ""}`);
}

// The part of the run around an incident.
function incidentRange(incident, key, context) {
  const { domain } = context.store;
  const end = domain ? domain[1] : incident[`from_${key}`];
  const onset = key === "step" ? Math.min(incident.onset_step, incident.from_step) : incident.from_time;
  const last = incident[`to_${key}`] ?? end;
  const margin = Math.max((last - onset) * CURVES_MARGIN, key === "step" ? CURVES_MIN_MARGIN : 60);
  const start = Math.max(onset - margin, domain ? domain[0] : 0);
  return { incident, range: [start, Math.max(start + 2, Math.min(last + margin, end))] };
}
