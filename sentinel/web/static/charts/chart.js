// One chart: a card with the name of a signal, its latest value, its curve, and a table on request.
import { container, element, known, setText, severityClass } from "../dom.js";
import { createLoadingState } from "../loading.js";
import { createMenu } from "../menu.js";
import { chartFiles } from "./chart_files.js";
import { axisSignal, goesBack } from "./horizontal_axis.js";
import { closestRows, hideTooltip, showTooltip } from "./tooltip.js";
import {
  PLOT_MARGIN,
  plotDraw,
  plotExtent,
  plotFade,
  plotLayout,
  plotLines,
  plotText,
  plotValue,
  plotX,
} from "./plot.js";
import { fadeOthers, runDash, runSample, runSymbol, runTraceId } from "./run_lines.js";
import { seriesRepeated, seriesSmooth } from "./series.js";
import { sparkline, sparklineSet } from "./sparkline.js";
import { chartNumber, chartPosition, chartUnit } from "./units.js";

const CHART_TABLE_ROWS = 50;
const CHART_BAD_MARKS = 150;
// Height of a mark among several curves, as a share of the chart.
const CHART_BAD_HEIGHT = 0.06;
const CHART_LOG_TICKS = 5;
// plotly.js writes ticks between these with prefixes: 20k.
const CHART_SMALLEST_SI = 1e-3;
const CHART_LARGEST_SI = 1e15;
const CHART_LEGEND_LIMIT = 16;
// Up to this number each value has a dot.
const CHART_MARKED_POINTS = 40;
// Room below the ticks for the name of a signal.
const CHART_AXIS_TITLE_HEIGHT = 14;
// How faint the first point of a curve over the values of a signal is; the last one is not.
const CHART_PATH_FAINT = 0.2;
// A threshold further away than this many heights of the curve would flatten it.
const CHART_THRESHOLD_REACH = 2;

/**
 * The first and the last index of points that matter for `range`: one beyond each end.
 * @param {Points} points
 * @param {Span} range
 */
function chartWindow(points, range) {
  const inside = [];
  const { x } = points;
  for (let index = 0; index < x.length; index += 1) {
    const isIn = x[index] >= range[0] && x[index] <= range[1];
    const isNeighbour =
      !isIn && ((x[index + 1] >= range[0] && x[index] < range[0]) || (x[index - 1] <= range[1] && x[index] > range[1]));
    if (isIn || isNeighbour) inside.push(index);
  }
  return inside;
}

/**
 * Round values of the y axis, at most five.
 * @param {number} low
 * @param {number} high
 */
function chartTicks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = ([1, 2, 5, 10].find((digit) => digit * power >= rough) ?? 10) * power;
  const ticks = [];
  for (let number = Math.ceil(low / size); number * size <= high; number += 1)
    ticks.push(Number((number * size).toPrecision(12)));
  return ticks;
}

/**
 * Round values between two powers of ten.
 * @param {number} bottom
 * @param {number} top
 */
function chartLogTicks(bottom, top) {
  const step = Math.max(1, Math.ceil((top - bottom) / CHART_LOG_TICKS));
  const digits = top - bottom > 2.5 ? [1] : top - bottom > 1.2 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(bottom); power <= top; power += step)
    ticks.push(...digits.map((digit) => digit * 10 ** power));
  const shown = ticks.filter((tick) => Math.log10(tick) >= bottom && Math.log10(tick) <= top);
  return shown.length > 1
    ? shown
    : [bottom, (bottom + top) / 2, top].map((power) => Number((10 ** power).toPrecision(2)));
}

export class Chart {
  /**
   * `signals` are entries of api/signals: one, or the same quantity of several devices or runs, which
   * may have a `legend`, and in `color` the number of a colour. `limit` is the largest possible value,
   * if the chart should show how much of it is used.
   * @param {ChartContext} context
   * @param {ChartSignal[]} signals
   * @param {{ title?: string, limit?: number | null, onPin?: (() => void) | null }} [options]
   */
  constructor(context, signals, { title = signals[0].label || signals[0].name, limit = null, onPin = null } = {}) {
    this.context = context;
    this.signals = signals;
    this.names = signals.map(({ name }) => name);
    /** @type {Map<string, string>} */
    this.legends = new Map(signals.map(({ name, legend }) => [name, legend ?? (name.split("/")[1] || name)]));
    /** @type {Map<string, number>} */
    this.numbers = new Map(signals.map(({ name, color }, index) => [name, color ?? index]));
    this.title = title;
    this.limit = limit;
    this.isBuilt = false;
    this.isTable = false;
    this.isListening = false;
    /** @type {number | undefined} */
    this.drawnWidth = undefined;
    /** @type {DrawnChart | null} */
    this.drawn = null;
    /** @type {HTMLElement | null} */
    this.cursor = null;
    /** @type {HTMLElement | null} */
    this.dot = null;
    this.shownLegend = "";
    this.unit = chartUnit(signals[0].unit, 0);
    const signal = this.signals[0];
    this.unitLabel = element("span", this.unit.name, "unit");
    this.latest = element("output", "", "latest");
    // Of several runs, a range of their last values has no meaning.
    this.latest.hidden = signal.color !== undefined;
    this.status = element("span", "", "status");
    const table = element("button", "Table", "button quiet small");
    table.type = "button";
    table.setAttribute("aria-pressed", "false");
    table.setAttribute("aria-label", `Show ${this.title} as a table`);
    table.addEventListener("click", () => {
      this.isTable = !this.isTable;
      table.setAttribute("aria-pressed", String(this.isTable));
      this.context.redraw([this]);
    });
    this.pin = element("button", "Pin", "button quiet small");
    this.pin.type = "button";
    this.pin.setAttribute("aria-label", `Pin ${this.title}`);
    if (onPin) this.pin.addEventListener("click", onPin);
    /** @type {PlotElement} */
    this.plot = element("div", "", "plot");
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", this.title);
    this.plot.addEventListener("pointerdown", () => this.context.hold(this), true);
    this.plot.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse") this.#point(event);
    });
    this.plot.addEventListener("pointerleave", () => this.#unpoint());
    // A tap shows values: fingers scroll the page.
    this.plot.addEventListener("click", (event) => {
      if (matchMedia("(pointer: coarse)").matches) this.#point(event);
    });
    this.loading = createLoadingState(this.title, () => this.context.retry());
    this.legend = element("div", "", "legend");
    // The runs of a comparison have one legend for all charts.
    this.legend.hidden = this.signals.length < 2 || signal.color !== undefined;
    const heading = element("h3", this.title);
    if (signal.help) heading.title = signal.help;
    this.element = container(
      "article",
      "chart",
      container(
        "header",
        "",
        heading,
        this.unitLabel,
        this.status,
        container(
          "span",
          "tools",
          onPin && this.pin,
          table,
          createMenu("Save", `Save ${this.title} as a file`, () => chartFiles(this)),
        ),
        this.latest,
      ),
      this.plot,
      this.legend,
    );
    // The search of the page finds charts by this.
    this.element.dataset.signal = this.title;
    this.element.dataset.kind = "chart";
    this.element.dataset.chart = this.names[0];
    this.element.tabIndex = -1;
  }

  // Fade the curves of all runs but the one that is looked at, if it is in this chart.
  showHighlight() {
    const number = this.context.highlighted;
    const isOwn = number !== null && [...this.numbers.values()].includes(number);
    fadeOthers(this.plot, isOwn ? number : null);
  }

  /** @param {boolean} isPinned */
  setPinned(isPinned) {
    this.pin.setAttribute("aria-pressed", String(isPinned));
  }

  /**
   * The severity of the signal's open incidents; the curve itself names them.
   * @param {{ severity: string, detector: string }[]} incidents
   */
  setIncidents(incidents) {
    const worst =
      incidents.find(({ severity }) => severity === "critical") ||
      incidents.find(({ severity }) => severity === "warning") ||
      incidents[0];
    const text = worst ? worst.severity : "";
    if (this.status.textContent === text) return;
    this.status.textContent = text;
    this.status.title = incidents.map(({ detector }) => detector).join(", ");
    this.status.className = "status";
    this.element.className = `chart ${worst ? `open ${severityClass(worst)}` : ""}`;
  }

  /**
   * Draw what is known of the signals over the shown range.
   * @param {MaybePlotly} plotly
   */
  draw(plotly) {
    const { store, view } = this.context;
    const range = this.context.shownRange();
    if (!this.names.every((name) => store.points(name, view.range))) return this.#drawPending(plotly);
    this.plot.classList.remove("waiting");
    const windows = this.#windows(range);
    if (!range || !windows.length) return this.#drawEmpty(plotly);
    this.#describe(windows);
    if (this.isTable) this.#drawTable(plotly, windows);
    else if (plotly) this.#drawPlot(plotly, windows, range);
    else this.#drawSparkline(windows, range);
    this.isBuilt = true;
  }

  /**
   * The points of each signal that has any, and which of them are in a range.
   * @param {Span | null} range
   * @returns {ChartWindow[]}
   */
  #windows(range) {
    const { store, view } = this.context;
    if (!range) return [];
    return this.names.flatMap((name) => {
      const points = store.points(name, view.range);
      return points?.x.length ? [{ name, points, inside: chartWindow(points, range) }] : [];
    });
  }

  /** @param {MaybePlotly} plotly */
  destroy(plotly) {
    if (!this.isBuilt) return;
    if (this.isListening) plotly?.purge(this.plot);
    this.plot.classList.remove("js-plotly-plot");
    this.plot.replaceChildren();
    this.isListening = false;
    this.isBuilt = false;
  }

  /**
   * @param {string} name
   * @param {PlotColors} colors
   */
  #color(name, colors) {
    return colors.series[known(this.numbers, name) % colors.series.length];
  }

  /**
   * The points are under way, or could not be loaded. Those of another range or axis stay until then.
   * @param {MaybePlotly} plotly
   */
  #drawPending(plotly) {
    const problem = this.names.map((name) => this.context.problems.get(name)).find(Boolean);
    this.plot.classList.toggle("waiting", this.isBuilt && !problem);
    if (this.isBuilt && !problem) return;
    this.destroy(plotly);
    if (problem) this.loading.showProblem(problem);
    else this.loading.showLoading();
    this.plot.setAttribute("role", "group");
    this.plot.replaceChildren(this.loading.element);
  }

  /** @param {MaybePlotly} plotly */
  #drawEmpty(plotly) {
    this.destroy(plotly);
    const isBad = this.names.some((name) => this.context.store.overview.get(name)?.bad.length);
    this.plot.setAttribute("aria-label", `${this.title}: ${isBad ? "no finite value" : "no value yet"}`);
    this.plot.replaceChildren(
      element("p", isBad ? "All values are NaN or infinite." : "No value yet.", isBad ? "bad" : "soft"),
    );
    this.isBuilt = true;
  }

  /**
   * Unit, latest value and the text for those who do not see the curve.
   * @param {ChartWindow[]} windows
   */
  #describe(windows) {
    const { store } = this.context;
    const { axis } = store;
    /** @type {Span | null} */
    let extent = null;
    for (const { points, inside } of windows) {
      extent = plotExtent(
        inside.map((index) => points.min[index]),
        extent,
      );
      extent = plotExtent(
        inside.map((index) => points.max[index]),
        extent,
      );
    }
    const [low, high] = extent || [0, 0];
    this.unit = chartUnit(this.signals[0].unit, Math.max(Math.abs(low), Math.abs(high)));
    setText(
      this.unitLabel,
      this.limit ? `of ${chartNumber(this.limit * this.unit.factor)} ${this.unit.name}` : this.unit.name,
    );
    /** @param {number} value */
    const number = (value) => chartNumber(value * this.unit.factor);
    const latest = windows.map(({ name }) => known(store.overview, name).last);
    const [lowest, highest] = plotExtent(latest.filter(Number.isFinite)) ?? [NaN, NaN];
    const isBad = !latest.every(Number.isFinite);
    const text = isBad
      ? "NaN or infinite"
      : lowest === highest
        ? number(lowest)
        : `${number(lowest)} – ${number(highest)}`;
    setText(this.latest, text);
    this.latest.className = isBad ? "latest bad" : "latest";
    const { x } = windows[0].points;
    const unit = this.unit.name ? ` ${this.unit.name}` : "";
    const label =
      extent === null
        ? `${this.title}: no value`
        : `${this.title}: latest ${text}${isBad ? "" : unit} at ${chartPosition(x[x.length - 1], axis)}, ` +
          `minimum ${number(low)}${unit}, maximum ${number(high)}${unit}`;
    if (this.plot.getAttribute("aria-label") !== label) this.plot.setAttribute("aria-label", label);
  }

  /**
   * @param {MaybePlotly} plotly
   * @param {ChartWindow[]} windows
   */
  #drawTable(plotly, windows) {
    this.destroy(plotly);
    const { axis } = this.context.store;
    /** @param {number | null} value */
    const number = (value) => (value === null ? "" : chartNumber(value * this.unit.factor));
    const titles = [
      this.context.axisLabel?.() ?? axis,
      ...(windows.length > 1 ? [this.signals[0].legend ? "run" : "device"] : []),
      "mean",
      "min",
      "max",
      "lowest rank",
      "highest rank",
      "worst rank",
    ];
    const rows = windows.flatMap(({ name, points, inside }) => {
      const step = Math.ceil(inside.length / (CHART_TABLE_ROWS / windows.length));
      return inside
        .filter((_, index) => (inside.length - 1 - index) % step === 0)
        .reverse()
        .map((index) => [
          axis === "time" ? chartPosition(points.x[index], axis) : chartNumber(points.x[index]),
          ...(windows.length > 1 ? [this.legends.get(name)] : []),
          number(points.mean[index]),
          number(points.min[index]),
          number(points.max[index]),
          number(points.rank_min[index]),
          number(points.rank_max[index]),
          points.worst_rank[index] ?? "",
        ]);
    });
    /**
     * @param {Cell[]} cells
     * @param {"th" | "td"} tag
     */
    const row = (cells, tag) => container("tr", "", ...cells.map((cell) => element(tag, String(cell))));
    const table = container(
      "table",
      "",
      container("thead", "", row(titles, "th")),
      container("tbody", "", ...rows.map((cells) => row(cells, "td"))),
    );
    const region = container("div", "table", table);
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", `${this.title} as a table`);
    this.plot.setAttribute("role", "group");
    this.plot.replaceChildren(region);
    this.legend.replaceChildren();
  }

  /**
   * @param {ChartWindow[]} windows
   * @param {Span} range
   */
  #drawSparkline(windows, range) {
    this.plot.setAttribute("role", "img");
    const isSingle = windows.length === 1 && !this.signals[0].legend;
    const curves = windows.map(({ name, points, inside }) => {
      /** @type {<T>(values: T[]) => T[]} */
      const pick = (values) => inside.map((index) => values[index]);
      const smoothed = seriesSmooth(points, this.context.view.smoothing, range[1] - range[0]);
      return {
        x: pick(points.x),
        values: pick(smoothed),
        low: pick(points.min),
        high: pick(points.max),
        number: known(this.numbers, name),
      };
    });
    /** @type {Span | null} */
    let extent = null;
    for (const curve of curves) extent = plotExtent(isSingle ? [...curve.low, ...curve.high] : curve.values, extent);
    extent ??= [0, 0];
    const picture = isSingle
      ? sparkline(curves[0].values, { width: 320, height: 120, low: curves[0].low, high: curves[0].high })
      : sparklineSet(curves, { width: 320, height: 120, range, extent });
    const [low, high] = extent.map((value) => chartNumber(Number((value * this.unit.factor).toPrecision(3))));
    const { axis } = this.context.store;
    this.plot.replaceChildren(
      container(
        "div",
        "spark",
        container("span", "limits", element("span", high, "nowrap"), element("span", low, "nowrap")),
        picture,
      ),
      container(
        "div",
        "ends",
        element("span", chartPosition(range[0], axis)),
        element("span", chartPosition(range[1], axis)),
      ),
    );
    this.#drawLegend(windows);
    this.showHighlight();
  }

  /**
   * @param {Plotly} plotly
   * @param {ChartWindow[]} windows
   * @param {Span} range
   */
  #drawPlot(plotly, windows, range) {
    this.plot.setAttribute("role", "img");
    if (!this.isListening) this.plot.replaceChildren();
    const { colors } = this.context;
    const { traces, layout } = this.#figure(windows, range, {
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      colors,
    });
    this.drawnWidth = layout.width;
    this.drawn = {
      windows,
      range,
      yaxis: layout.yaxis,
      width: layout.width,
      height: layout.height,
      margin: layout.margin,
    };
    plotDraw(plotly, this.plot, traces, layout);
    this.showHighlight();
    if (!this.isListening) this.#listen();
    this.#drawLegend(windows);
  }

  /**
   * What plotly.js draws of the shown range in another size and other colours; null without points.
   * @param {PlotSize} size
   */
  figure(size) {
    const range = this.context.shownRange();
    const windows = this.#windows(range);
    return range && windows.length ? { ...this.#figure(windows, range, size), unit: this.unit.name } : null;
  }

  /**
   * @param {ChartWindow[]} windows
   * @param {Span} range
   * @param {PlotSize} size
   */
  #figure(windows, range, { width, height, colors }) {
    const { context } = this;
    const { axis } = context.store;
    const isSingle = windows.length === 1 && !this.signals[0].legend;
    /** @type {PlotTrace[]} */
    const traces = [];
    /** @type {Span | null} */
    let extent = null;
    for (const window of windows) {
      const curve = this.#curve(window, range, this.#color(window.name, colors), isSingle);
      const number = known(this.numbers, window.name);
      traces.push(...curve.traces.map((trace, index) => ({ ...trace, uid: runTraceId(number, index) })));
      extent = plotExtent(curve.extent || [], extent);
    }
    const thresholds = this.#thresholds(range, extent, colors);
    traces.push(...thresholds.traces);
    extent = plotExtent(thresholds.limits, extent) || [0, 1];
    if (this.limit) extent = [0, Math.max(extent[1], this.limit * this.unit.factor)];
    const bad = this.#nonFinite(windows, range, colors);
    const marks = context.marks.shapes(this.names, axis, range, colors);
    const layout = plotLayout({
      width,
      height,
      axis,
      range,
      colors,
      yaxis: this.#yaxis(extent, windows),
      shapes: [...marks.shapes, ...bad.shapes],
    });
    layout.hovermode = false;
    if (context.store.axisSignal !== null)
      layout.margin = { ...PLOT_MARGIN, b: PLOT_MARGIN.b + CHART_AXIS_TITLE_HEIGHT };
    layout.annotations = [
      ...this.#axisTitle(colors),
      ...marks.annotations,
      ...bad.annotations,
      ...this.#thresholdLabels(thresholds.labels, layout.yaxis, colors),
    ];
    return { traces, layout };
  }

  /**
   * The name of the axis, if it is a signal.
   * @param {PlotColors} colors
   */
  #axisTitle(colors) {
    if (this.context.store.axisSignal === null) return [];
    return [
      {
        x: 0.5,
        xref: "paper",
        xanchor: "center",
        y: 0,
        yref: "paper",
        yanchor: "top",
        yshift: 4 - PLOT_MARGIN.b,
        showarrow: false,
        text: plotText(this.context.axisLabel()),
        font: { color: colors.soft, size: 11 },
        borderpad: 0,
        name: "axis title",
      },
    ];
  }

  /**
   * The traces of one signal: the range of ranks or of the records of a point, the values, and
   * the smoothed values before them. A curve over the values of a signal can go back: it is a path,
   * whose points get stronger with the steps.
   * @param {ChartWindow} window
   * @param {Span} range
   * @param {string} color
   * @param {boolean} isSingle
   */
  #curve({ name, points, inside }, range, color, isSingle) {
    const { store } = this.context;
    const { factor } = this.unit;
    /** @param {number | null | undefined} value */
    const scale = (value) => (value === null || value === undefined ? null : value * factor);
    const isPath = axisSignal(store.axis) !== null && goesBack(points);
    /** @type {Values[]} */
    const [x, mean, low, high] = [[], [], [], []];
    const smoothed = this.#smoothed(points, range);
    /** @type {{ x: Values, y: Values }} */
    const smooth = { x: [], y: [] };
    /** @type {{ x: Values, y: Values }} */
    const past = { x: [], y: [] };
    const band = this.#bandFields(points, inside);
    const isRepeated = seriesRepeated(points);
    inside.forEach((index, position) => {
      const isApart =
        position && (index !== inside[position - 1] + 1 || points.attempt[index] !== points.attempt[index - 1]);
      if (isApart) for (const values of [x, mean, low, high, smooth.x, smooth.y, past.x, past.y]) values.push(null);
      // Steps that a later attempt did again.
      if (isRepeated(index)) {
        past.x.push(plotX(points.x[index], store.axis));
        past.y.push(scale(points.mean[index]));
        return;
      }
      x.push(plotX(points.x[index], store.axis));
      mean.push(scale(points.mean[index]));
      low.push(scale(points[band[0]][index] ?? points.min[index]));
      high.push(scale(points[band[1]][index] ?? points.max[index]));
      if (smoothed) {
        const at = smoothed.x[index];
        smooth.x.push(at === null ? null : plotX(at, store.axis));
        smooth.y.push(scale(smoothed.y[index]));
      }
    });
    const label = plotText(isSingle ? this.title : this.legends.get(name));
    const faint = {
      type: "scatter",
      mode: "lines",
      line: { color: plotFade(color, 0.35), width: 1 },
      hoverinfo: "skip",
      showlegend: false,
    };
    const traces = [];
    if (isSingle && !isPath && x.length > 1 && low.some((value, index) => value !== high[index])) {
      traces.push({
        type: "scatter",
        mode: "lines",
        ...plotBand(x, low, high),
        fill: "toself",
        fillcolor: plotFade(color, 0.17),
        hoverinfo: "skip",
        name: band[0] === "min" ? "range of the values" : "range of the ranks",
        // The outline shows a spike of a single point, which has no width.
        line: { color: plotFade(color, 0.4), width: 0.6 },
      });
    }
    if (past.x.some((position) => position !== null)) traces.push({ ...faint, ...past });
    if (isPath) {
      traces.push({ ...faint, x, y: mean, line: { color: plotFade(color, 0.25), width: 0.8 } });
      traces.push({
        type: "scatter",
        mode: "markers",
        x,
        y: mean,
        hoverinfo: "skip",
        name: smoothed ? `${label}, values` : label,
        marker: {
          color,
          size: 4,
          symbol: runSymbol(known(this.numbers, name)),
          opacity: x.map((_, index) => CHART_PATH_FAINT + (1 - CHART_PATH_FAINT) * (index / (x.length - 1 || 1))),
        },
      });
    } else if (smoothed) traces.push({ ...faint, x, y: mean, name: "values", showlegend: isSingle });
    if (smoothed || !isPath) {
      const count = inside.length;
      traces.push({
        type: "scatter",
        mode: smoothed || count > CHART_MARKED_POINTS ? "lines" : count === 1 ? "markers" : "lines+markers",
        marker: { color, size: count === 1 ? 6 : 4 },
        connectgaps: false,
        hoverinfo: "skip",
        x: smoothed ? smooth.x : x,
        y: smoothed ? smooth.y : mean,
        line: { color, width: isSingle ? 1.6 : 1.2, dash: runDash(known(this.numbers, name)) },
        name: smoothed ? `${label}, smoothed` : label,
      });
    }
    const extent = plotExtent(past.y, isSingle && !isPath ? plotExtent(high, plotExtent(low)) : plotExtent(mean));
    return { traces, extent };
  }

  /**
   * The smoothed points of a curve, or null without smoothing; of a path both coordinates are smoothed.
   * @param {Points} points
   * @param {Span} range
   * @returns {{ x: Values, y: Values } | null}
   */
  #smoothed(points, range) {
    const { view, store } = this.context;
    if (!(view.smoothing > 0)) return null;
    if (axisSignal(store.axis) === null)
      return { x: points.x, y: seriesSmooth(points, view.smoothing, range[1] - range[0]) };
    const steps = points.step ?? points.x;
    const span = steps[steps.length - 1] - steps[0];
    return { x: seriesSmooth(points, view.smoothing, span, points.x), y: seriesSmooth(points, view.smoothing, span) };
  }

  /**
   * The range of ranks, unless it is of another kind than the value: a sum over ranks is above it.
   * @param {Points} points
   * @param {number[]} inside
   * @returns {["rank_min" | "min", "rank_max" | "max"]}
   */
  #bandFields(points, inside) {
    const both = inside.filter((index) => points.rank_max[index] !== null && points.mean[index] !== null);
    const around = both.filter((index) => {
      const mean = points.mean[index] ?? NaN;
      return mean <= (points.rank_max[index] ?? NaN) && mean >= (points.rank_min[index] ?? NaN);
    });
    return both.length && around.length > both.length / 2 ? ["rank_min", "rank_max"] : ["min", "max"];
  }

  /**
   * Dashed lines of the detectors' thresholds, and those values that the y axis should reach.
   * @param {Span} range
   * @param {Span | null} extent
   * @param {PlotColors} colors
   */
  #thresholds(range, extent, colors) {
    const { store, marks } = this.context;
    const lines = this.names
      .flatMap((name) => marks.thresholds.get(name) || [])
      .map((line) => ({ ...line, x: thresholdPlaces(line, store.axis) }))
      .filter(({ x }) => x.length);
    const reach = extent ? (extent[1] - extent[0] || Math.abs(extent[1]) || 1) * CHART_THRESHOLD_REACH : 0;
    /** @type {number[]} */
    const limits = [];
    /** @type {{ detector: string, y: number }[]} */
    const labels = [];
    const traces = lines.map(({ detector, x, value }) => {
      /** @type {number[]} */
      const ends = [];
      /** @type {Values} */
      const values = [];
      value.forEach((each, index) => {
        // Steps that go back begin a new line.
        if (index && x[index] < x[index - 1]) {
          ends.push(x[index - 1]);
          values.push(null);
        }
        ends.push(x[index]);
        values.push(each === null ? null : each * this.unit.factor);
      });
      // A threshold holds until it changes.
      ends.push(Math.max(range[1], x[x.length - 1]));
      values.push(values[values.length - 1]);
      const shown = values
        .filter((_, index) => ends[index] <= range[1] && (ends[index + 1] ?? Infinity) >= range[0])
        .filter((each) => each !== null);
      limits.push(...shown.filter((each) => extent && each >= extent[0] - reach && each <= extent[1] + reach));
      if (shown.length) labels.push({ detector, y: shown[shown.length - 1] });
      return {
        type: "scatter",
        mode: "lines",
        x: ends.map((end) => plotX(end, store.axis)),
        y: values,
        name: `threshold of ${plotText(detector)}`,
        line: { color: colors.threshold, width: 1.2, dash: "dash", shape: "hv" },
        hoverinfo: "skip",
      };
    });
    return { traces, limits, labels };
  }

  /**
   * Names at the right end of thresholds; those beyond the axis get none.
   * @param {{ detector: string, y: number }[]} labels
   * @param {PlotLayout} yaxis
   * @param {PlotColors} colors
   */
  #thresholdLabels(labels, yaxis, colors) {
    const shown = labels
      .map(({ detector, y }) => ({ detector, y: yaxis.type === "log" ? Math.log10(y) : y }))
      .filter(({ y }) => y >= yaxis.range[0] && y <= yaxis.range[1]);
    const height = yaxis.range[1] - yaxis.range[0];
    return shown.map(({ detector, y }) => ({
      x: 1,
      xref: "paper",
      xanchor: "right",
      y,
      showarrow: false,
      text: `threshold of ${plotText(detector)}`,
      yanchor: yaxis.range[1] - y > 0.15 * height ? "bottom" : "top",
      font: { color: colors.threshold, size: 10 },
      bgcolor: plotFade(colors.surface, 0.7),
      borderpad: 0,
    }));
  }

  /**
   * Values that are not finite have no height: lines through the chart mark them. Among several
   * curves they are short, in the colour of their curve, so that they cover no other.
   * @param {ChartWindow[]} windows
   * @param {Span} range
   * @param {PlotColors} colors
   */
  #nonFinite(windows, range, colors) {
    const { axis } = this.context.store;
    const width = (range[1] - range[0]) / CHART_BAD_MARKS;
    const isShared = windows.length > 1;
    const marks = windows
      .map(({ name, points }) => {
        const inRange = points.bad.filter((x) => x >= range[0] && x <= range[1]);
        return { name, places: [...new Map(inRange.map((x) => [Math.floor((x - range[0]) / width), x])).values()] };
      })
      .filter(({ places }) => places.length);
    const shapes = marks.map(({ name, places }) =>
      plotLines(
        places.map((each) => plotX(each, axis)),
        axis,
        isShared ? CHART_BAD_HEIGHT : 1,
        { color: isShared ? this.#color(name, colors) : plotFade(colors.critical, 0.4), width: 1.5 },
      ),
    );
    const annotations = marks.map(({ name, places }, index) => ({
      x: plotX(places[0], axis),
      y: 0,
      yref: "paper",
      yanchor: "bottom",
      showarrow: false,
      yshift: 8 + 12 * index,
      xanchor: places[0] > (range[0] + range[1]) / 2 ? "right" : "left",
      text: isShared ? `${plotText(this.legends.get(name))}: NaN or infinite` : "NaN or infinite",
      font: { color: colors.critical, size: 10 },
      bgcolor: plotFade(colors.surface, 0.75),
      borderpad: 0,
    }));
    return { shapes, annotations };
  }

  /**
   * @param {Span} extent
   * @param {ChartWindow[]} windows
   * @returns {PlotLayout}
   */
  #yaxis([low, high], windows) {
    const isPositive = windows.every(({ points, inside }) =>
      inside.every((index) => (points.min[index] ?? Infinity) > 0),
    );
    const largest = Math.max(Math.abs(low), Math.abs(high));
    const format = { exponentformat: "SI", minexponent: 4, separatethousands: true };
    if (this.context.view.isLog && isPositive && low > 0) {
      const [bottom, top] = [Math.log10(low), Math.log10(high)];
      const pad = (top - bottom || 0.5) * 0.06;
      const ticks = chartLogTicks(bottom - pad, top + pad);
      return { type: "log", range: [bottom - pad, top + pad], tickvals: ticks, ticktext: ticks.map(chartNumber) };
    }
    if (low === 0 && high === 0) return { ...format, type: "linear", range: [-0.04, 1] };
    // Around a constant, so far that ticks have few digits.
    const pad = high === low ? Math.abs(high) * 0.5 : (high - low) * 0.06;
    const isAtZero = low >= 0 && low < 0.15 * high;
    /** @type {Span} */
    const range = [isAtZero ? -0.02 * high : low - pad, high + pad];
    if (largest >= CHART_SMALLEST_SI && largest < CHART_LARGEST_SI) return { ...format, type: "linear", range };
    // plotly.js would write 0.8e-6, and powers of ten with an inline style, which the policy refuses.
    const ticks = chartTicks(...range);
    return { type: "linear", range, tickvals: ticks, ticktext: ticks.map(chartNumber) };
  }

  /** @param {ChartWindow[]} windows */
  #drawLegend(windows) {
    const isNamed = windows.length > 1 || this.signals[0].legend;
    /** @type {[string, number][]} */
    const entries =
      isNamed && !this.legend.hidden && windows.length <= CHART_LEGEND_LIMIT
        ? windows.map(({ name }) => [known(this.legends, name), known(this.numbers, name)])
        : [];
    const key = JSON.stringify(entries);
    if (key === this.shownLegend) return;
    this.shownLegend = key;
    this.legend.replaceChildren(
      ...entries.map(([text, number]) => container("span", "", runSample(number), element("span", text))),
    );
  }

  /**
   * A line at the position at which a chart is looked at; null for none.
   * @param {number | null} position
   */
  showCursor(position) {
    if (position === null || !this.drawn || !this.isListening || this.isTable) {
      this.cursor?.remove();
      return;
    }
    const left = this.#left(position);
    this.cursor ??= element("div", "", "cursor");
    this.cursor.style.transform = `translateX(${left}px)`;
    if (left < PLOT_MARGIN.l || left > this.drawn.width - PLOT_MARGIN.r) this.cursor.remove();
    else if (!this.cursor.isConnected) this.plot.append(this.cursor);
  }

  // What plotly.js drew last.
  #shown() {
    if (!this.drawn) throw new Error(`${this.title} is not drawn.`);
    return this.drawn;
  }

  /**
   * Where a position of the axis and a value are in the plot, in pixels.
   * @param {number} position
   */
  #left(position) {
    const {
      range: [start, end],
      width,
    } = this.#shown();
    return PLOT_MARGIN.l + ((position - start) / (end - start)) * (width - PLOT_MARGIN.l - PLOT_MARGIN.r);
  }

  /** @param {number} value */
  #top(value) {
    const {
      yaxis: {
        range: [low, high],
        type,
      },
      height,
      margin,
    } = this.#shown();
    const place = type === "log" ? Math.log10(value) : value;
    return height - margin.b - ((place - low) / (high - low)) * (height - margin.t - margin.b);
  }

  /**
   * Show the values under the pointer, and their position in all charts.
   * @param {MouseEvent} event
   */
  #point({ clientX, clientY }) {
    if (!this.isListening || this.isTable || !this.drawn) return;
    const {
      windows,
      range: [start, end],
      width,
    } = this.drawn;
    const area = this.plot.getBoundingClientRect();
    const [left, top] = [clientX - area.left, clientY - area.top];
    const position = start + ((left - PLOT_MARGIN.l) / (width - PLOT_MARGIN.l - PLOT_MARGIN.r)) * (end - start);
    const isPath = axisSignal(this.context.store.axis) !== null;
    /**
     * @param {Points} points
     * @param {number} index
     */
    const distance = (points, index) =>
      isPath
        ? Math.hypot(
            this.#left(points.x[index]) - left,
            this.#top((points.mean[index] ?? NaN) * this.unit.factor) - top,
          )
        : Math.abs(points.x[index] - position);
    const found = windows.flatMap(({ name, points, inside }) => {
      /** @type {FoundPoint | null} */
      let best = null;
      for (const index of inside) {
        if (points.mean[index] === null || points.x[index] < start || points.x[index] > end) continue;
        const own = distance(points, index);
        // Of several attempts at one position, the last one.
        if (best === null || own <= best.distance) best = { name, points, index, distance: own };
      }
      return best ?? [];
    });
    if (!found.length) return this.#unpoint();
    const nearest = found.reduce((best, each) => (each.distance < best.distance ? each : best));
    const x = nearest.points.x[nearest.index];
    // A curve that has no point near the others is somewhere else.
    const tolerance = Math.abs(nearest.distance) + (isPath ? 8 : (end - start) / 50);
    const shown = found.filter((each) => each.distance <= tolerance);
    this.#showDot(isPath ? nearest : null);
    showTooltip(this.plot, area.left + this.#left(x), this.#tooltip(nearest, shown, top));
    this.context.showCursor(x);
  }

  /**
   * The point of a path that the tooltip is about: several are at about the same position.
   * @param {FoundPoint | null} found
   */
  #showDot(found) {
    if (!found) {
      this.dot?.remove();
      return;
    }
    this.dot ??= element("div", "", "dot");
    const { points, index } = found;
    const top = this.#top((points.mean[index] ?? NaN) * this.unit.factor);
    this.dot.style.transform = `translate(${this.#left(points.x[index])}px, ${top}px)`;
    if (!this.dot.isConnected) this.plot.append(this.dot);
  }

  #unpoint() {
    this.#showDot(null);
    hideTooltip();
    this.context.showCursor(null);
  }

  /**
   * @param {FoundPoint} nearest
   * @param {FoundPoint[]} shown
   * @param {number} top
   * @returns {Tooltip}
   */
  #tooltip(nearest, shown, top) {
    const { context, names, unit } = this;
    const { axis } = context.store;
    const { points, index } = nearest;
    /** @param {number | null} value */
    const number = (value) => (value === null ? "" : chartNumber(value * unit.factor));
    /** @param {number | null} value */
    const withUnit = (value) => `${number(value)}${unit.name ? ` ${unit.name}` : ""}`;
    const isPath = axisSignal(axis) !== null;
    const title = [
      isPath && `step ${chartNumber(points.step?.[index])}`,
      chartPosition(points.x[index], axis),
      context.store.trainingText(points.attempt[index]),
    ]
      .filter(Boolean)
      .join(", ");
    /** @param {FoundPoint} found */
    const smoothed = ({ points: own, index: at }) => this.#smoothed(own, this.#shown().range)?.y[at] ?? null;
    const isSmooth = context.view.smoothing > 0;
    if (names.length > 1 || this.signals[0].legend) {
      const { rows, others } = closestRows(
        shown.map((each) => {
          const value = each.points.mean[each.index];
          const texts = isSmooth ? [withUnit(smoothed(each)), withUnit(value)] : [withUnit(value)];
          return {
            label: known(this.legends, each.name),
            texts,
            sample: runSample(known(this.numbers, each.name)),
            top: this.#top(((isSmooth ? smoothed(each) : value) ?? NaN) * unit.factor),
          };
        }),
        top,
      );
      return { title, heads: isSmooth ? ["smoothed", "value"] : [], rows, note: others ? `and ${others} more` : "" };
    }
    const isMean = points.max[index] !== points.min[index] && points.min[index] !== null;
    /** @type {TooltipRow[]} */
    const rows = [];
    const color = this.#color(nearest.name, context.colors);
    if (isSmooth) rows.push({ label: "smoothed", texts: [withUnit(smoothed(nearest))], color });
    rows.push({
      label: isMean ? "mean" : "value",
      texts: [withUnit(points.mean[index])],
      color: isSmooth ? plotFade(color, 0.45) : color,
    });
    if (isMean)
      rows.push({ label: "in this interval", texts: [`${number(points.min[index])} to ${number(points.max[index])}`] });
    if (points.rank_max[index] !== null)
      rows.push({ label: "ranks", texts: [`${number(points.rank_min[index])} to ${number(points.rank_max[index])}`] });
    if (points.rank_max[index] !== null && points.worst_rank[index] !== null)
      rows.push({ label: "worst rank", texts: [String(points.worst_rank[index])] });
    for (const { detector, value } of this.#thresholdsAt(points.x[index])) {
      rows.push({
        label: `threshold of ${detector}`,
        texts: [withUnit(value)],
        color: context.colors.threshold,
        dash: true,
      });
    }
    return { title, rows };
  }

  /**
   * The thresholds that hold at a position.
   * @param {number} position
   */
  #thresholdsAt(position) {
    const { store, marks } = this.context;
    return this.names
      .flatMap((name) => marks.thresholds.get(name) || [])
      .flatMap((line) => {
        const index = thresholdPlaces(line, store.axis).findLastIndex((each) => each <= position);
        const value = index < 0 ? null : line.value[index];
        return value === null ? [] : [{ detector: line.detector, value }];
      });
  }

  #listen() {
    this.isListening = true;
    this.plot.on?.("plotly_relayout", (changes) => {
      const [start, end] = [changes["xaxis.range[0]"], changes["xaxis.range[1]"]];
      if (start === undefined || end === undefined) return;
      const { axis } = this.context.store;
      this.context.zoom([plotValue(start, axis), plotValue(end, axis)], this);
    });
    this.plot.on?.("plotly_doubleclick", () => this.context.zoom(null, this));
  }
}

/**
 * The positions of a threshold; it has a step and a time only.
 * @param {Threshold} line
 * @param {string} axis
 */
function thresholdPlaces(line, axis) {
  const places = axis === "step" ? line.x : axis === "time" ? line.time : undefined;
  return places ?? [];
}

/**
 * The outline of the range between two curves, one polygon for each part without gaps.
 * @param {(number | null)[]} x
 * @param {Values} low
 * @param {Values} high
 */
function plotBand(x, low, high) {
  /** @type {{ x: Values, y: Values }} */
  const outline = { x: [], y: [] };
  /** @type {number[]} */
  let part = [];
  const close = () => {
    if (part.length > 1) {
      if (outline.x.length) {
        outline.x.push(null);
        outline.y.push(null);
      }
      for (const index of part) {
        outline.x.push(x[index]);
        outline.y.push(high[index]);
      }
      for (const index of part.toReversed()) {
        outline.x.push(x[index]);
        outline.y.push(low[index]);
      }
    }
    part = [];
  };
  for (let index = 0; index < x.length; index += 1) {
    if (x[index] === null || low[index] === null || high[index] === null) close();
    else part.push(index);
  }
  close();
  return outline;
}
