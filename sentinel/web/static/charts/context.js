// What the charts of a page share: data, marks, the shown range, and the order in which they draw.
import { showToast } from "../dom.js";
import { axisSignal } from "./horizontal_axis.js";
import { Marks } from "./marks.js";
import { loadPlotly, plotColors } from "./plot.js";
import { SeriesStore } from "./series.js";
import { chartUnitName } from "./units.js";

// Drawing stops for a frame after this time, so that the page answers in between.
const CONTEXT_FRAME_MS = 40;
// Charts that are out of view keep their curves up to this number.
const CONTEXT_MAX_BUILT = 40;
// Detail that comes within this time replaces drawing the overview first.
const CONTEXT_DETAIL_WAIT_MS = 250;
// The page is free for this many times the time that drawing live rows takes.
const CONTEXT_LIVE_PAUSE = 2;
const CONTEXT_THRESHOLDS_MS = 60000;
const CONTEXT_MARKS_MS = 30000;
const CONTEXT_POLL_MS = 15000;
// Room on both sides of the values of a signal, as a share of their range.
const CONTEXT_SIGNAL_MARGIN = 0.02;
// Times after which what could not be loaded is asked for again.
const CONTEXT_RETRY_MS = [2000, 5000, 15000, 30000];

// In a report all charts are drawn: it may be printed, or read by a program.
const CONTEXT_REPORT_MARGIN = "100000px 0px";

/** @type {WeakMap<ChartPage, ChartContext>} */
const contextOfPage = new WeakMap();

/**
 * The one context of a page.
 * @param {ChartPage} page
 * @returns {ChartContext}
 */
export function chartContext(page) {
  const known = contextOfPage.get(page);
  if (known) return known;
  const context = new ChartContext(page);
  contextOfPage.set(page, context);
  return context;
}

/**
 * Report the time of an action to the browser's performance timeline; only the last one is kept.
 * @param {string} name
 * @param {number} start
 */
function contextMeasure(name, start) {
  // After the frame is painted.
  requestAnimationFrame(() =>
    setTimeout(() => {
      performance.clearMeasures(name);
      performance.measure(name, { start, end: performance.now() });
    }),
  );
}

export class ChartContext {
  /** @param {ChartPage} page */
  constructor(page) {
    const { source, view } = page;
    this.page = page;
    this.source = source;
    this.view = view;
    this.store = new SeriesStore(source, (missing, axis) => {
      showToast(`This run does not ${missing === "tokens" ? "count" : "log"} ${missing}: the charts show ${axis}s.`);
      view.set({ axis });
    });
    this.store.clear(view.axis);
    this.marks = new Marks(source);
    this.colors = plotColors();
    /** @type {MaybePlotly} */
    this.plotly = undefined;
    /** @type {Map<Element, Drawable>} */
    this.charts = new Map();
    /** @type {Set<Drawable>} */
    this.visible = new Set();
    /** @type {Set<Drawable>} */
    this.built = new Set();
    /** @type {Set<Drawable>} */
    this.dirty = new Set();
    /** @type {Set<string>} */
    this.wanted = new Set();
    // Why the points of a signal are not here, by its name.
    /** @type {Map<string, unknown>} */
    this.problems = new Map();
    this.failureCount = 0;
    this.retryTimer = 0;
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {Set<() => void>} */
    this.signalListeners = new Set();
    this.observer = new IntersectionObserver((entries) => this.#observe(entries), {
      rootMargin: source.isReport ? CONTEXT_REPORT_MARGIN : "150px 0px",
    });
    this.resizes = new ResizeObserver((entries) => this.#resize(entries));
    /** @type {Rows[]} */
    this.rows = [];
    /** @type {number | null} */
    this.highlighted = null;
    /** @type {Promise<void> | null} */
    this.drawing = null;
    /** @type {Promise<Signal[]> | null} */
    this.knownSignals = null;
    /** @type {Set<string> | null} */
    this.signalNames = null;
    /** @type {Map<string, string | undefined>} */
    this.signalUnits = new Map();
    this.areSignalsMissing = false;
    this.isStarted = false;
    this.markedAs = "";
    this.markedAt = 0;
    /** @type {string | null} */
    this.screenTheme = null;
    this.freeAt = 0;
    this.rowsAt = 0;
    this.isLive = false;
    /** @type {{ chart: Drawable | null, start: number } | null} */
    this.zoomed = null;
    /** @type {Drawable | null} */
    this.held = null;
    this.releasedAt = 0;
    this.shown = { range: view.range, axis: view.axis };
    view.subscribe(() => this.#changeView());
    this.marks.listeners.add(() => this.redraw());
    this.marks.refresh();
    source.subscribe({
      rows: (rows) => this.#receive(rows),
      run: (run) => {
        this.#refreshMarks(run);
        this.#poll(run);
      },
      reset: () => this.#reload(),
      end: () => this.marks.refresh(),
    });
    addEventListener("beforeprint", () => this.#startPrint());
    addEventListener("afterprint", () => this.#endPrint());
    addEventListener("pointerup", (event) => this.release(event), true);
    addEventListener("pointercancel", (event) => this.release(event), true);
    setInterval(() => this.#refreshThresholds(), CONTEXT_THRESHOLDS_MS);
  }

  /**
   * Show a chart whenever its element comes into view.
   * @param {Drawable} chart
   */
  add(chart) {
    this.charts.set(chart.element, chart);
    this.observer.observe(chart.element);
    this.resizes.observe(chart.plot);
    // A report has all data in it, and is printed with all charts.
    if (this.source.isReport) this.#fetch(chart.names);
  }

  /** @param {Drawable} chart */
  remove(chart) {
    this.charts.delete(chart.element);
    this.observer.unobserve(chart.element);
    this.resizes.unobserve(chart.plot);
    this.visible.delete(chart);
    this.dirty.delete(chart);
    this.built.delete(chart);
    chart.destroy(this.plotly);
  }

  /**
   * The unit of a signal; empty for none, or while it is not known.
   * @param {string} name
   */
  signalUnit(name) {
    return this.signalUnits.get(name) ?? "";
  }

  // What the axis shows, if it is a signal: its name and unit.
  axisLabel() {
    const name = this.store.axisSignal ?? this.store.axis;
    const unit = chartUnitName(this.signalUnit(name));
    return unit ? `${name} (${unit})` : name;
  }

  // Start and end of the x axis of all charts; null without any value.
  /** @returns {Span | null} */
  shownRange() {
    if (this.view.range) return this.view.range;
    const { domain, axisSignal: signal } = this.store;
    if (!domain) return null;
    // Many points of a path can be at an end of the values of a signal.
    const margin =
      domain[0] === domain[1] ? 0.5 : signal === null ? 0 : CONTEXT_SIGNAL_MARGIN * (domain[1] - domain[0]);
    return margin ? [domain[0] - margin, domain[1] + margin] : domain;
  }

  // The range of all charts in steps, or null for the whole run.
  /** @returns {Span | null} */
  shownSteps() {
    const { range, axis } = this.view;
    if (axisSignal(axis) !== null) return range && this.store.storedRange(range);
    return range && this.marks.steps(range, axis);
  }

  /**
   * Leave a chart as it is while the pointer is down in it: drawing would end the selection.
   * @param {Drawable} chart
   */
  hold(chart) {
    this.held = chart;
  }

  /** @param {Event} event */
  release({ timeStamp }) {
    if (!this.held) return;
    this.releasedAt = timeStamp;
    const charts = [this.held];
    // plotly.js reports the selected range first.
    setTimeout(() => {
      this.held = null;
      this.redraw(charts);
    });
  }

  /**
   * Draw charts again, those in view only.
   * @param {Iterable<Drawable>} [charts]
   */
  redraw(charts = this.visible) {
    for (const chart of charts) if (this.visible.has(chart)) this.dirty.add(chart);
    this.#schedule();
  }

  /**
   * Show another range, first in the chart in hand.
   * @param {Span | null} range
   * @param {Drawable | null} [chart]
   */
  zoom(range, chart = null) {
    this.zoomed = { chart, start: this.held === chart && chart ? this.releasedAt : performance.now() };
    this.view.set({ range: range && range[1] > range[0] ? range : null });
  }

  /**
   * A line at the same position of all charts in view; null for none.
   * @param {number | null} position
   */
  showCursor(position) {
    for (const chart of this.visible) chart.showCursor?.(position);
  }

  #changeView() {
    const { axis, range } = this.view;
    this.colors = plotColors();
    if (axis !== this.store.axis) {
      this.store.clear(axis);
      this.wanted.clear();
    }
    const isSameRange = JSON.stringify([axis, range]) === JSON.stringify([this.shown.axis, this.shown.range]);
    this.shown = { axis, range };
    for (const listener of this.listeners) listener();
    if (
      isSameRange &&
      this.visible.size &&
      [...this.visible].every((chart) => chart.names.every((name) => this.store.overview.has(name)))
    ) {
      this.redraw();
      return;
    }
    this.#loadRange();
  }

  // The chart in hand comes first, and then the others in view.
  async #loadRange() {
    const { range } = this.view;
    const zoomed = this.zoomed;
    const start = zoomed ? zoomed.start : performance.now();
    this.zoomed = null;
    const inHand = zoomed && zoomed.chart && this.visible.has(zoomed.chart) ? [zoomed.chart] : [];
    const others = [...this.visible].filter((chart) => !inHand.includes(chart));
    const isCurrent = () => this.view.range === range;
    const late = setTimeout(() => isCurrent() && this.redraw(), CONTEXT_DETAIL_WAIT_MS);
    /**
     * @param {Drawable[]} charts
     * @param {string} measure
     */
    const load = async (charts, measure) => {
      const arrived = await this.#fetch(
        charts.flatMap(({ names }) => names),
        range,
      );
      if (!arrived || !isCurrent()) return;
      for (const chart of charts) if (this.visible.has(chart)) this.dirty.add(chart);
      if (charts === inHand) this.#drawNow(inHand);
      else {
        clearTimeout(late);
        await this.#schedule();
      }
      contextMeasure(measure, start);
    };
    if (inHand.length) await load(inHand, "sentinel-zoom-chart");
    if (isCurrent()) await load(others, "sentinel-zoom-all");
    clearTimeout(late);
  }

  /**
   * Load what is missing of these signals; charts whose signals cannot be loaded show that.
   * @param {string[]} names
   * @param {Span | null} [range]
   */
  async #fetch(names, range = this.view.range) {
    try {
      const arrived = await this.store.fetch(names, range);
      for (const name of names) this.problems.delete(name);
      this.failureCount = 0;
      return arrived;
    } catch (error) {
      for (const name of names) this.problems.set(name, error);
      this.redraw([...this.visible].filter((chart) => chart.names.some((name) => names.includes(name))));
      if (this.source.isReport) return false;
      clearTimeout(this.retryTimer);
      this.retryTimer = setTimeout(
        () => this.#loadVisible(),
        CONTEXT_RETRY_MS[Math.min(this.failureCount++, CONTEXT_RETRY_MS.length - 1)],
      );
      return false;
    }
  }

  // Load what charts in view lack, which could not be loaded before.
  retry() {
    clearTimeout(this.retryTimer);
    this.problems.clear();
    this.redraw();
    this.#loadVisible();
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #observe(entries) {
    for (const { target, isIntersecting } of entries) {
      const chart = this.charts.get(target);
      if (!chart) continue;
      if (isIntersecting) {
        this.visible.add(chart);
        this.dirty.add(chart);
        this.built.delete(chart);
        this.built.add(chart);
      } else {
        this.visible.delete(chart);
        this.dirty.delete(chart);
      }
    }
    this.#prune();
    this.#loadVisible();
  }

  // Destroy the charts that have been out of view for longest.
  #prune() {
    let excess = this.built.size - Math.max(CONTEXT_MAX_BUILT, this.visible.size);
    for (const chart of this.built) {
      if (excess <= 0) return;
      if (this.visible.has(chart)) continue;
      chart.destroy(this.plotly);
      this.built.delete(chart);
      excess -= 1;
    }
  }

  // Load what the charts in view need, in one request, and draw.
  async #loadVisible() {
    const names = [...this.visible].flatMap((chart) => chart.names);
    const missing = names.filter((name) => !this.store.has(name, this.view.range) && !this.wanted.has(name));
    for (const name of missing) this.wanted.add(name);
    if (!this.visible.size) return;
    this.redraw();
    const unknown = names.filter((name) => !this.marks.thresholds.has(name));
    if (unknown.length) this.marks.loadThresholds(unknown).then((isNew) => isNew && this.redraw());
    const [, plotly] = await Promise.all([missing.length ? this.#fetch(missing) : null, this.#library()]);
    for (const name of missing) this.wanted.delete(name);
    this.plotly = plotly;
    this.redraw();
    if (!this.isStarted && this.visible.size) {
      this.isStarted = true;
      await this.#schedule();
      contextMeasure("sentinel-first-charts", 0);
    }
  }

  async #library() {
    if (this.plotly === undefined) this.plotly = await loadPlotly();
    return this.plotly;
  }

  // Draw what is dirty, in frames; the promise is of the last of them.
  #schedule() {
    this.drawing ??= new Promise((/** @type {(value: void) => void} */ resolve) => {
      const frame = () => {
        const end = performance.now() + CONTEXT_FRAME_MS;
        while (this.dirty.size && performance.now() < end) {
          try {
            const [chart] = this.dirty;
            this.#drawNow([chart]);
          } catch (error) {
            // One chart must not stop the others.
            console.error(error);
          }
        }
        if (this.dirty.size) requestAnimationFrame(frame);
        else {
          this.drawing = null;
          resolve();
        }
      };
      requestAnimationFrame(frame);
    });
    return this.drawing;
  }

  /** @param {Drawable[]} charts */
  #drawNow(charts) {
    for (const chart of charts) {
      this.dirty.delete(chart);
      // That a chart waits for its points, or cannot have them, is shown without the library.
      const canDraw = this.plotly !== undefined || !chart.names.every((name) => this.store.overview.has(name));
      if (canDraw && this.visible.has(chart) && chart !== this.held) chart.draw(this.plotly);
    }
  }

  // Paper is light, and charts are as wide as their column there. Those that never came into view are
  // printed too, if their data are here.
  #startPrint() {
    const root = document.documentElement;
    this.screenTheme = root.getAttribute("data-theme");
    root.setAttribute("data-theme", "light");
    this.#drawAll();
    for (const picture of document.querySelectorAll(".chart .main-svg")) {
      const [width, height] = ["width", "height"].map((name) => parseFloat(picture.getAttribute(name) ?? ""));
      picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }
  }

  #endPrint() {
    const root = document.documentElement;
    if (this.screenTheme === null) root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", this.screenTheme);
    this.#drawAll();
  }

  #drawAll() {
    this.colors = plotColors();
    if (this.plotly === undefined) return;
    for (const chart of this.charts.values())
      if (chart.element.isConnected && chart.element.clientWidth) chart.draw(this.plotly);
  }

  /** @param {ResizeObserverEntry[]} entries */
  #resize(entries) {
    for (const { target } of entries) {
      const element = target.closest(".chart");
      const chart = element && this.charts.get(element);
      if (chart && chart.isBuilt && chart.plot.clientWidth !== chart.drawnWidth) this.redraw([chart]);
    }
  }

  /**
   * Live rows are collected, and drawn at once, but not more often than the page can.
   * @param {Rows} rows
   */
  #receive(rows) {
    this.isLive = true;
    this.rowsAt = performance.now();
    this.#forgetSignals(rows);
    this.rows.push(rows);
    if (this.rows.length > 1) return;
    const start = performance.now();
    setTimeout(() => requestAnimationFrame(() => this.#drawRows(start)), Math.max(0, this.freeAt - start));
  }

  /** @param {number} start */
  async #drawRows(start) {
    const { domain } = this.store;
    const changed = new Set(this.rows.splice(0).flatMap((rows) => this.store.append(rows)));
    const isMoved = !this.view.range && domain !== this.store.domain;
    const began = performance.now();
    this.redraw([...this.visible].filter((chart) => isMoved || chart.names.some((name) => changed.has(name))));
    for (const listener of this.listeners) listener();
    await this.#schedule();
    this.freeAt = performance.now() + CONTEXT_LIVE_PAUSE * (performance.now() - began);
    contextMeasure("sentinel-live", start);
  }

  /**
   * The state of a run changes with each step, its incidents rarely. Checkpoints can wait.
   * @param {RunState} run
   */
  #refreshMarks({ state, attempt, incidents, cases }) {
    /** @param {(Incident | Case)[] | undefined} list */
    const names = (list) =>
      (list ?? []).map((each) => [
        each.name,
        "state" in each && each.state,
        each.severity,
        each.acknowledged,
        each.silenced,
        each.onset_step,
      ]);
    const key = JSON.stringify([state, attempt, names(incidents), names(cases)]);
    if (key === this.markedAs && performance.now() - this.markedAt < CONTEXT_MARKS_MS) return;
    this.markedAs = key;
    this.markedAt = performance.now();
    this.marks.refresh();
  }

  /**
   * Where a proxy holds the stream back, the state still comes, but no rows: load curves again.
   * @param {RunState} run
   */
  #poll({ step }) {
    const { domain, axis } = this.store;
    const isBehind = axis === "step" && !this.view.range && domain && step !== null && step > domain[1];
    if (!isBehind || performance.now() - this.rowsAt < CONTEXT_POLL_MS) return;
    this.rowsAt = performance.now();
    this.#reload();
  }

  // All signals of the run: one answer for all sections, until rows have a name that is not in it.
  signals() {
    this.knownSignals ??= this.#loadSignals();
    return this.knownSignals;
  }

  async #loadSignals() {
    try {
      /** @type {Signal[]} */
      const signals = await this.source.getJson("api/signals");
      this.signalNames = new Set(signals.map(({ name }) => name));
      this.signalUnits = new Map(signals.map(({ name, unit }) => [name, unit]));
      // Whoever could not have them asks again.
      if (this.areSignalsMissing) setTimeout(() => this.#announceSignals());
      this.areSignalsMissing = false;
      return signals;
    } catch (error) {
      this.areSignalsMissing = true;
      this.knownSignals = null;
      throw error;
    }
  }

  #announceSignals() {
    for (const listener of this.signalListeners) listener();
  }

  /** @param {Rows} rows */
  #forgetSignals(rows) {
    const names = this.signalNames;
    if (!names || Object.keys(rows.values).every((name) => names.has(name))) return;
    this.signalNames = null;
    this.knownSignals = null;
    this.#announceSignals();
  }

  // Rows of a live run do not bring thresholds.
  async #refreshThresholds() {
    if (document.hidden || !this.isLive) return;
    this.isLive = false;
    const names = [...this.visible].flatMap((chart) => chart.names);
    if (names.length && (await this.marks.loadThresholds(names))) this.redraw();
  }

  #reload() {
    this.store.clear(this.view.axis);
    this.wanted.clear();
    this.marks.refresh();
    this.#loadVisible();
  }
}
