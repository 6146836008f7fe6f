// What charts mark of a run: incidents as bands, their onsets, checkpoints, restarts and thresholds.
import { severityClass } from "../dom.js";
import { plotFade, plotLines, plotText, plotX } from "./plot.js";

const MARK_SEVERITIES = ["critical", "warning", "info"];
// More labels than this would cover each other.
const MARK_MAX_LABELS = 4;
const MARK_MAX_SAVES = 80;
const MARK_MIN_DELAY_MS = 1000;
const MARK_RETRY_MS = 5000;

/**
 * Where an interval begins on an axis.
 * @param {StateInterval} interval
 * @param {"step" | "time"} axis
 */
export function intervalStart(interval, axis) {
  return axis === "step" ? interval.from_step : interval.from_time;
}

/**
 * Where it ends; null while it lasts.
 * @param {StateInterval} interval
 * @param {"step" | "time"} axis
 */
export function intervalEnd(interval, axis) {
  return axis === "step" ? interval.to_step : interval.to_time;
}

export class Marks {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {MarkedInterval[]} */
    this.intervals = [];
    /** @type {RunEvent[]} */
    this.events = [];
    /** @type {DetectorIntervals[]} */
    this.detectors = [];
    /** @type {ClockEntry[]} */
    this.clock = [];
    /** @type {Map<string, Threshold[]>} */
    this.thresholds = new Map();
    this.isLoaded = false;
    // Why they could not be loaded the last time.
    /** @type {unknown} */
    this.problem = null;
    this.requested = 0;
    /** @type {Timer | null} */
    this.timer = null;
  }

  // Load the timeline and the incidents, soon after an earlier call at the latest.
  refresh() {
    if (this.timer) return;
    const delay = Math.max(0, this.requested + MARK_MIN_DELAY_MS - performance.now());
    this.timer = setTimeout(() => this.#load(), this.requested ? delay : 0);
  }

  // Load them now, after a failure.
  retry() {
    clearTimeout(this.timer ?? undefined);
    this.#load();
  }

  async #load() {
    this.requested = performance.now();
    try {
      /** @type {[Timeline, Incident[]]} */
      const [timeline, incidents] = await Promise.all([
        this.source.getJson("api/timeline"),
        this.source.getJson("api/incidents"),
      ]);
      const incidentOf = new Map(incidents.map((incident) => [incident.name, incident]));
      this.detectors = timeline.detectors;
      this.events = timeline.events;
      this.intervals = timeline.detectors.flatMap(({ detector, intervals }) =>
        intervals.map((interval) => {
          const incident = incidentOf.get(interval.incident);
          return {
            ...interval,
            detector,
            signal: incident?.signal,
            summary: incident?.summary || "",
            onset_step: incident?.onset_step ?? interval.from_step,
          };
        }),
      );
      const known = [...this.events, ...this.intervals.map((each) => ({ step: each.from_step, time: each.from_time }))];
      const times = new Map(known.flatMap(({ step, time }) => (step !== null && time !== null ? [[step, time]] : [])));
      this.clock = [...times].map(([step, time]) => ({ step, time })).sort((a, b) => a.step - b.step);
      this.isLoaded = true;
      this.problem = null;
      this.timer = null;
    } catch (error) {
      // The marks stay as they are.
      this.problem = error;
      this.timer = this.source.isReport ? null : setTimeout(() => this.#load(), MARK_RETRY_MS);
    }
    for (const listener of this.listeners) listener();
  }

  /**
   * Load the thresholds of these signals; whether there are any.
   * @param {string[]} names
   */
  async loadThresholds(names) {
    for (const name of names) if (!this.thresholds.has(name)) this.thresholds.set(name, []);
    try {
      const found = await this.source.getJson(
        `api/thresholds?${new URLSearchParams(names.map((name) => ["signals", name]))}`,
      );
      for (const [name, lines] of Object.entries(found)) this.thresholds.set(name, lines);
      return Object.values(found).some((lines) => lines.length);
    } catch {
      return false;
    }
  }

  // The first interval of each incident, by the step at which it was found.
  incidents() {
    const found = new Map();
    for (const interval of this.intervals) {
      const known = found.get(interval.incident);
      if (!known) found.set(interval.incident, { ...interval });
      else {
        known.from_step = Math.min(known.from_step, interval.from_step);
        known.from_time = Math.min(known.from_time, interval.from_time);
        known.to_step =
          known.to_step === null || interval.to_step === null ? null : Math.max(known.to_step, interval.to_step);
        known.to_time =
          known.to_time === null || interval.to_time === null ? null : Math.max(known.to_time, interval.to_time);
      }
    }
    return [...found.values()].sort((a, b) => a.from_step - b.from_step);
  }

  /**
   * Where a step is on an axis, between events whose step and time are known; null if that is unknown.
   * @param {number} step
   * @param {string} axis
   */
  position(step, axis) {
    return axis === "step" ? step : axis === "time" ? this.#interpolate(step, "step", "time") : null;
  }

  /**
   * The step at a position of an axis.
   * @param {number} position
   * @param {string} axis
   */
  step(position, axis) {
    return axis === "step" ? position : axis === "time" ? this.#interpolate(position, "time", "step") : null;
  }

  /**
   * The range on an axis in steps; null if either end is unknown.
   * @param {Span} range
   * @param {string} axis
   * @returns {Span | null}
   */
  steps(range, axis) {
    const [start, end] = range.map((position) => this.step(position, axis));
    return start === null || end === null ? null : [start, end];
  }

  /**
   * A range of steps on an axis; null if either end is unknown.
   * @param {Span} steps
   * @param {string} axis
   * @returns {Span | null}
   */
  positions(steps, axis) {
    const [start, end] = steps.map((step) => this.position(step, axis));
    return start === null || end === null ? null : [start, end];
  }

  /**
   * @param {number} value
   * @param {"step" | "time"} known
   * @param {"step" | "time"} wanted
   */
  #interpolate(value, known, wanted) {
    if (this.clock.length < 2) return null;
    const found = this.clock.findIndex((event) => event[known] >= value);
    const next = Math.max(1, found === -1 ? this.clock.length - 1 : found);
    const [from, to] = [this.clock[next - 1], this.clock[next]];
    return from[wanted] + ((value - from[known]) / (to[known] - from[known] || 1)) * (to[wanted] - from[wanted]);
  }

  /**
   * Shapes of a chart of these signals over `range`. Marks have a step and a time only.
   * @param {string[]} signals
   * @param {string} axis
   * @param {Span} range
   * @param {PlotColors} colors
   * @returns {{ shapes: PlotLayout[], annotations: PlotLayout[] }}
   */
  shapes(signals, axis, range, colors) {
    if (axis !== "step" && axis !== "time") return { shapes: [], annotations: [] };
    const [start, end] = range;
    /** @param {number} value */
    const at = (value) => plotX(value, axis);
    const shapes = [];
    const labels = new Map();
    /** @type {{ isOwn: boolean, from: number, to: number }[]} */
    const bands = [];
    /**
     * The worst comes first, so that others within it add no second colour.
     * @param {MarkedInterval} interval
     */
    const order = (interval) => MARK_SEVERITIES.indexOf(severityClass(interval));
    for (const interval of this.intervals.toSorted((a, b) => order(a) - order(b))) {
      if (interval.state === "resolved") continue;
      const from = Math.max(start, intervalStart(interval, axis));
      const to = Math.min(end, intervalEnd(interval, axis) ?? end);
      if (from > end || to < start) continue;
      const isOwn = interval.signal !== undefined && signals.includes(interval.signal);
      const severity = severityClass(interval);
      const color = colors[severity];
      const [x0, x1] = [at(from), at(to)];
      if (
        (isOwn || severity === "critical") &&
        !bands.some((band) => band.isOwn === isOwn && band.from <= from && band.to >= to)
      ) {
        bands.push({ isOwn, from, to });
        shapes.push({
          type: "rect",
          layer: "below",
          yref: "paper",
          y0: 0,
          y1: 1,
          x0,
          x1,
          fillcolor: plotFade(color, isOwn ? 0.15 : 0.05),
          line: { width: 0 },
        });
      }
      // A cap, so that short incidents and those of other charts are seen. The worst is on top.
      shapes.unshift({
        type: "line",
        yref: "paper",
        y0: 1,
        y1: 1,
        x0,
        x1,
        line: {
          color: plotFade(color, isOwn ? 1 : 0.6),
          width: isOwn ? 5 : 2,
          dash: severity === "critical" ? "solid" : "dot",
        },
      });
      if (!isOwn || labels.has(interval.incident)) continue;
      labels.set(interval.incident, { x: from, text: `${interval.detector}, ${severity}`, color });
      const onset = this.position(interval.onset_step, axis);
      if (onset !== null && onset >= start && onset <= end) {
        shapes.push({
          type: "line",
          yref: "paper",
          y0: 0,
          y1: 1,
          x0: at(onset),
          x1: at(onset),
          line: { color, width: 1, dash: "dashdot" },
        });
      }
    }
    shapes.push(...this.#eventShapes(axis, range, colors));
    return {
      shapes,
      annotations: [...labels.values()].slice(0, MARK_MAX_LABELS).map(({ x, text, color }, index) => ({
        x: at(x),
        y: 1,
        yref: "paper",
        text: plotText(text),
        showarrow: false,
        yshift: -4 - 12 * index,
        yanchor: "top",
        xanchor: x > start + 0.6 * (end - start) ? "right" : "left",
        xshift: x > start + 0.6 * (end - start) ? -3 : 3,
        font: { color, size: 10 },
        bgcolor: plotFade(colors.surface, 0.75),
        borderpad: 0,
      })),
    };
  }

  /**
   * @param {"step" | "time"} axis
   * @param {Span} range
   * @param {PlotColors} colors
   */
  #eventShapes(axis, [start, end], colors) {
    /** @param {string} kind */
    const inRange = (kind) =>
      this.events
        .filter(({ event }) => event === kind)
        .map((event) => event[axis])
        .filter((at) => at !== null && at >= start && at <= end)
        .map((at) => plotX(at ?? NaN, axis));
    const saves = inRange("save");
    const step = Math.ceil(saves.length / MARK_MAX_SAVES);
    const shown = saves.filter((_, index) => (saves.length - 1 - index) % step === 0);
    const restarts = ["start", "new_training", "stage"]
      .flatMap(inRange)
      .filter((x) => x > plotX(start, axis) + 0.001 * (end - start));
    const shapes = [];
    if (shown.length) shapes.push(plotLines(shown, axis, 0.05, { color: colors.save, width: 2 }));
    if (restarts.length) shapes.push(plotLines(restarts, axis, 1, { color: colors.soft, width: 1, dash: "dot" }));
    return shapes;
  }
}
