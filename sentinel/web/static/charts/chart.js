// One chart: a card with the name of a signal, its latest value, its curve, and a table on request.
import { container, element, setText, severityClass } from "../dom.js";
import { PLOT_MARGIN, plotDraw, plotFade, plotLayout, plotLines, plotText, plotValue, plotX } from "./plot.js";
import { fadeOthers, runDash, runSample, runTraceId } from "./run_lines.js";
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
// A threshold further away than this many heights of the curve would flatten it.
const CHART_THRESHOLD_REACH = 2;

// The first and the last index of points that matter for `range`: one beyond each end.
function chartWindow(points, range) {
  const inside = [];
  const { x } = points;
  for (let index = 0; index < x.length; index += 1) {
    const isIn = x[index] >= range[0] && x[index] <= range[1];
    const isNeighbour = !isIn && ((x[index + 1] >= range[0] && x[index] < range[0]) || (x[index - 1] <= range[1] && x[index] > range[1]));
    if (isIn || isNeighbour) inside.push(index);
  }
  return inside;
}

// Smallest and largest of the values that are numbers, or null.
function chartExtent(values, known = null) {
  let [low, high] = known || [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

// Round values of the y axis, at most five.
function chartTicks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].find((digit) => digit * power >= rough) * power;
  const ticks = [];
  for (let number = Math.ceil(low / size); number * size <= high; number += 1) ticks.push(Number((number * size).toPrecision(12)));
  return ticks;
}

// Round values between two powers of ten.
function chartLogTicks(bottom, top) {
  const step = Math.max(1, Math.ceil((top - bottom) / CHART_LOG_TICKS));
  const digits = top - bottom > 2.5 ? [1] : top - bottom > 1.2 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(bottom); power <= top; power += step) ticks.push(...digits.map((digit) => digit * 10 ** power));
  const shown = ticks.filter((tick) => Math.log10(tick) >= bottom && Math.log10(tick) <= top);
  return shown.length > 1 ? shown : [bottom, (bottom + top) / 2, top].map((power) => Number((10 ** power).toPrecision(2)));
}

export class Chart {
  // `signals` are entries of api/signals: one, or the same quantity of several devices or runs, which
  // may have a `legend`, and in `color` the number of a colour. `limit` is the largest possible value,
  // if the chart should show how much of it is used.
  constructor(context, signals, { title = signals[0].label || signals[0].name, limit = null, onPin = null } = {}) {
    this.context = context;
    this.signals = signals;
    this.names = signals.map(({ name }) => name);
    this.legends = new Map(signals.map(({ name, legend }) => [name, legend ?? (name.split("/")[1] || name)]));
    this.numbers = new Map(signals.map(({ name, color }, index) => [name, color ?? index]));
    this.title = title;
    this.limit = limit;
    this.isBuilt = false;
    this.isTable = false;
    this.isListening = false;
    this.unit = chartUnit(signals[0].unit, 0);
    this.#makeCard(onPin);
  }

  #makeCard(onPin) {
    const signal = this.signals[0];
    this.unitLabel = element("span", this.unit.name, "unit");
    this.latest = element("output", "", "latest");
    // Of several runs, a range of their last values says nothing.
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
    this.pin.addEventListener("click", () => onPin(this));
    this.plot = element("div", "", "plot");
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", this.title);
    this.plot.addEventListener("pointerdown", () => this.context.hold(this), true);
    this.legend = element("div", "", "legend");
    // The runs of a comparison have one legend for all charts.
    this.legend.hidden = this.signals.length < 2 || signal.color !== undefined;
    const heading = element("h3", this.title);
    if (signal.help) heading.title = signal.help;
    this.element = container("article", "chart",
      container("header", "", heading, this.unitLabel, this.status,
        container("span", "tools", onPin && this.pin, table), this.latest),
      this.plot, this.legend);
    // The search of the page finds charts by this.
    this.element.dataset.signal = this.title;
    this.element.dataset.kind = "chart";
    this.element.dataset.chart = this.names[0];
    this.element.tabIndex = -1;
  }

  // Fade the curves of all runs but the one that is looked at.
  showHighlight() {
    fadeOthers(this.plot, this.context.highlighted ?? null);
  }

  setPinned(isPinned) {
    this.pin.setAttribute("aria-pressed", String(isPinned));
  }

  // The severity of the signal's open incidents; the curve itself names them.
  setIncidents(incidents) {
    const worst = incidents.find(({ severity }) => severity === "critical") || incidents.find(({ severity }) => severity === "warning") || incidents[0];
    const text = worst ? worst.severity : "";
    if (this.status.textContent === text) return;
    this.status.textContent = text;
    this.status.title = incidents.map(({ detector }) => detector).join(", ");
    this.status.className = "status";
    this.element.className = `chart ${worst ? `open ${severityClass(worst)}` : ""}`;
  }

  // Draw what is known of the signals over the shown range.
  draw(plotly) {
    const { store, view } = this.context;
    const range = this.context.shownRange();
    const all = this.names.map((name) => ({ name, points: store.points(name, view.range) })).filter(({ points }) => points && points.x.length);
    if (!all.length || !range) return this.#drawEmpty(plotly);
    const windows = all.map(({ name, points }) => ({ name, points, inside: chartWindow(points, range) }));
    this.#describe(all, windows);
    if (this.isTable) this.#drawTable(plotly, windows);
    else if (plotly) this.#drawPlot(plotly, windows, range);
    else this.#drawSparkline(windows, range);
    this.isBuilt = true;
  }

  destroy(plotly) {
    if (!this.isBuilt) return;
    if (this.isListening) plotly.purge(this.plot);
    this.plot.classList.remove("js-plotly-plot");
    this.plot.replaceChildren();
    this.isListening = false;
    this.isBuilt = false;
  }

  #color(name, colors) {
    return colors.series[this.numbers.get(name) % colors.series.length];
  }

  #drawEmpty(plotly) {
    if (!this.names.every((name) => this.context.store.overview.has(name))) return;
    this.destroy(plotly);
    const isBad = this.names.some((name) => this.context.store.overview.get(name).bad.length);
    this.plot.setAttribute("aria-label", `${this.title}: ${isBad ? "no finite value" : "no value yet"}`);
    this.plot.replaceChildren(element("p", isBad ? "All values are NaN or infinite." : "No value yet.", isBad ? "bad" : "soft"));
    this.isBuilt = true;
  }

  // Unit, latest value and the text for those who do not see the curve.
  #describe(all, windows) {
    const { store } = this.context;
    const { axis } = store;
    let extent = null;
    for (const { points, inside } of windows) {
      extent = chartExtent(inside.map((index) => points.min[index]), extent);
      extent = chartExtent(inside.map((index) => points.max[index]), extent);
    }
    const [low, high] = extent || [0, 0];
    this.unit = chartUnit(this.signals[0].unit, Math.max(Math.abs(low), Math.abs(high)));
    setText(this.unitLabel, this.limit ? `of ${chartNumber(this.limit * this.unit.factor)} ${this.unit.name}` : this.unit.name);
    const number = (value) => chartNumber(value * this.unit.factor);
    const latest = all.map(({ name }) => store.overview.get(name).last);
    const [lowest, highest] = chartExtent(latest.filter(Number.isFinite)) || [null, null];
    const isBad = !latest.every(Number.isFinite);
    const text = isBad ? "NaN or infinite" : lowest === highest ? number(lowest) : `${number(lowest)} – ${number(highest)}`;
    setText(this.latest, text);
    this.latest.className = isBad ? "latest bad" : "latest";
    const last = all[0].points.x[all[0].points.x.length - 1];
    const unit = this.unit.name ? ` ${this.unit.name}` : "";
    const label = extent === null ? `${this.title}: no value`
      : `${this.title}: latest ${text}${isBad ? "" : unit} at ${chartPosition(last, axis)}, minimum ${number(low)}${unit}, maximum ${number(high)}${unit}`;
    if (this.plot.getAttribute("aria-label") !== label) this.plot.setAttribute("aria-label", label);
  }

  #drawTable(plotly, windows) {
    this.destroy(plotly);
    const { axis } = this.context.store;
    const number = (value) => (value === null ? "" : chartNumber(value * this.unit.factor));
    const titles = [axis, ...(windows.length > 1 ? [this.signals[0].legend ? "run" : "device"] : []), "mean", "min", "max", "lowest rank", "highest rank", "worst rank"];
    const rows = windows.flatMap(({ name, points, inside }) => {
      const step = Math.ceil(inside.length / (CHART_TABLE_ROWS / windows.length));
      return inside.filter((_, index) => (inside.length - 1 - index) % step === 0).reverse().map((index) => [
        axis === "time" ? chartPosition(points.x[index], axis) : chartNumber(points.x[index]), ...(windows.length > 1 ? [this.legends.get(name)] : []),
        number(points.mean[index]), number(points.min[index]), number(points.max[index]),
        number(points.rank_min[index]), number(points.rank_max[index]), points.worst_rank[index] ?? ""]);
    });
    const row = (cells, tag) => container("tr", "", ...cells.map((cell) => element(tag, String(cell))));
    const table = container("table", "", container("thead", "", row(titles, "th")), container("tbody", "", ...rows.map((cells) => row(cells, "td"))));
    const region = container("div", "table", table);
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", `${this.title} as a table`);
    this.plot.setAttribute("role", "group");
    this.plot.replaceChildren(region);
    this.legend.replaceChildren();
  }

  #drawSparkline(windows, range) {
    this.plot.setAttribute("role", "img");
    const isSingle = windows.length === 1 && !this.signals[0].legend;
    const curves = windows.map(({ name, points, inside }) => {
      const pick = (values) => inside.map((index) => values[index]);
      const smoothed = seriesSmooth(points, this.context.view.smoothing, range[1] - range[0]);
      return { x: pick(points.x), values: pick(smoothed), low: pick(points.min), high: pick(points.max), number: this.numbers.get(name) };
    });
    let extent = null;
    for (const curve of curves) extent = chartExtent(isSingle ? [...curve.low, ...curve.high] : curve.values, extent);
    extent ??= [0, 0];
    const picture = isSingle ? sparkline(curves[0].values, { width: 320, height: 120, low: curves[0].low, high: curves[0].high })
      : sparklineSet(curves, { width: 320, height: 120, range, extent });
    const [low, high] = extent.map((value) => chartNumber(Number((value * this.unit.factor).toPrecision(3))));
    const { axis } = this.context.store;
    this.plot.replaceChildren(
      container("div", "spark", container("span", "limits", element("span", high, "nowrap"), element("span", low, "nowrap")),
        picture),
      container("div", "ends", element("span", chartPosition(range[0], axis)), element("span", chartPosition(range[1], axis))));
    this.#drawLegend(windows);
    this.showHighlight();
  }

  #drawPlot(plotly, windows, range) {
    const { context } = this;
    const { axis } = context.store;
    const colors = context.colors;
    this.plot.setAttribute("role", "img");
    if (!this.isListening) this.plot.replaceChildren();
    const isSingle = windows.length === 1 && !this.signals[0].legend;
    const traces = [];
    let extent = null;
    windows.forEach((window) => {
      const curve = this.#curve(window, range, this.#color(window.name, colors), isSingle);
      const number = this.numbers.get(window.name);
      traces.push(...curve.traces.map((trace, index) => ({ ...trace, uid: runTraceId(number, index) })));
      extent = chartExtent(curve.extent || [], extent);
    });
    const thresholds = this.#thresholds(range, extent, colors);
    traces.push(...thresholds.traces);
    extent = chartExtent(thresholds.limits, extent) || [0, 1];
    if (this.limit) extent = [0, Math.max(extent[1], this.limit * this.unit.factor)];
    const bad = this.#nonFinite(windows, range, colors);
    const marks = context.marks.shapes(this.names, axis, range, colors);
    const layout = plotLayout({
      width: this.plot.clientWidth, height: this.plot.clientHeight, axis, range, colors,
      yaxis: this.#yaxis(extent, windows), shapes: [...marks.shapes, ...bad.shapes],
    });
    layout.annotations = [...marks.annotations, ...bad.annotations, ...this.#thresholdLabels(thresholds.labels, layout.yaxis, colors)];
    this.drawnWidth = layout.width;
    plotDraw(plotly, this.plot, traces, layout);
    this.showHighlight();
    if (!this.isListening) this.#listen(plotly);
    this.#drawLegend(windows);
  }

  // The traces of one signal: the range of ranks or of the records of a point, the values, and
  // the smoothed values before them.
  #curve({ name, points, inside }, range, color, isSingle) {
    const { view, store } = this.context;
    const { factor } = this.unit;
    const scale = (value) => (value === null || value === undefined ? null : value * factor);
    const [x, mean, low, high, texts] = [[], [], [], [], []];
    const smoothed = view.smoothing > 0 ? seriesSmooth(points, view.smoothing, range[1] - range[0]) : null;
    const smooth = [];
    const past = { x: [], y: [] };
    const band = this.#bandFields(points, inside);
    const isRepeated = seriesRepeated(points);
    inside.forEach((index, position) => {
      if (position && points.attempt[index] !== points.attempt[inside[position - 1]]) {
        for (const values of [x, mean, low, high, texts, smooth, past.x, past.y]) values.push(null);
      }
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
      texts.push(this.#hoverText(points, index));
      if (smoothed) smooth.push(scale(smoothed[index]));
    });
    const mode = x.length === 1 ? "markers" : x.length <= CHART_MARKED_POINTS ? "lines+markers" : "lines";
    const line = { type: "scatter", mode, marker: { color, size: x.length === 1 ? 6 : 4 }, connectgaps: false };
    const label = plotText(isSingle ? this.title : this.legends.get(name));
    const hover = `%{y:.4~g}${this.unit.name && isSingle ? ` ${this.unit.name}` : ""}`;
    const main = {
      ...line, x, y: smoothed ? smooth : mean, line: { color, width: isSingle ? 1.6 : 1.2, dash: runDash(this.numbers.get(name)) }, name: label,
      hovertemplate: isSingle ? `${hover}%{text}<extra></extra>` : `${label}: ${hover}<extra></extra>`,
      ...(isSingle && { text: texts }),
    };
    const traces = [];
    if (isSingle && x.length > 1 && low.some((value, index) => value !== high[index])) {
      traces.push({
        type: "scatter", mode: "lines", ...plotBand(x, low, high), fill: "toself", fillcolor: plotFade(color, 0.17), hoverinfo: "skip",
        // The outline shows a spike of a single point, which has no width.
        line: { color: plotFade(color, 0.4), width: 0.6 },
      });
    }
    const faint = { type: "scatter", mode: "lines", line: { color: plotFade(color, 0.35), width: 1 }, hoverinfo: "skip" };
    if (past.x.some((position) => position !== null)) traces.push({ ...faint, ...past });
    if (smoothed) traces.push({ ...faint, x, y: mean });
    const extent = chartExtent(past.y, isSingle ? chartExtent(high, chartExtent(low)) : chartExtent(mean));
    return { traces: [...traces, main], extent };
  }

  // The range of ranks, unless it is of another kind than the value: a sum over ranks is above it.
  #bandFields(points, inside) {
    const known = inside.filter((index) => points.rank_max[index] !== null && points.mean[index] !== null);
    const around = known.filter((index) => points.mean[index] <= points.rank_max[index] && points.mean[index] >= points.rank_min[index]);
    return known.length && around.length > known.length / 2 ? ["rank_min", "rank_max"] : ["min", "max"];
  }

  #hoverText(points, index) {
    const number = (value) => chartNumber(value * this.unit.factor);
    const isRange = points.max[index] !== points.min[index] && points.min[index] !== null;
    const training = this.context.store.trainingText(points.attempt[index]);
    const range = (training && `<br>${training}`)
      + (isRange ? `<br>${number(points.min[index])} to ${number(points.max[index])} in this interval` : "");
    if (points.rank_max[index] === null) return range;
    const ranks = `<br>ranks ${number(points.rank_min[index])} to ${number(points.rank_max[index])}`;
    return `${range}${ranks}${points.worst_rank[index] === null ? "" : `<br>worst rank ${points.worst_rank[index]}`}`;
  }

  // Dashed lines of the detectors' thresholds, and those values that the y axis should reach.
  #thresholds(range, extent, colors) {
    const { store, marks } = this.context;
    const lines = this.names.flatMap((name) => marks.thresholds.get(name) || [])
      .map((line) => ({ ...line, x: { step: line.x, time: line.time }[store.axis] })).filter(({ x }) => x && x.length);
    const reach = extent ? (extent[1] - extent[0] || Math.abs(extent[1]) || 1) * CHART_THRESHOLD_REACH : 0;
    const limits = [];
    const labels = [];
    const traces = lines.map(({ detector, x, value }) => {
      const [ends, values] = [[], []];
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
      const shown = values.filter((each, index) => each !== null && (ends[index] <= range[1] && (ends[index + 1] ?? Infinity) >= range[0]));
      limits.push(...shown.filter((each) => extent && each >= extent[0] - reach && each <= extent[1] + reach));
      if (shown.length) labels.push({ detector, y: shown[shown.length - 1] });
      return {
        type: "scatter", mode: "lines", x: ends.map((end) => plotX(end, store.axis)), y: values, name: plotText(detector), line: { color: colors.threshold, width: 1.2, dash: "dash", shape: "hv" },
        hovertemplate: `threshold of ${plotText(detector)} %{y:.4~g}<extra></extra>`,
      };
    });
    return { traces, limits, labels };
  }

  // Names at the right end of thresholds; those beyond the axis get none.
  #thresholdLabels(labels, yaxis, colors) {
    const shown = labels.map(({ detector, y }) => ({ detector, y: yaxis.type === "log" ? Math.log10(y) : y }))
      .filter(({ y }) => y >= yaxis.range[0] && y <= yaxis.range[1]);
    const height = yaxis.range[1] - yaxis.range[0];
    return shown.map(({ detector, y }) => ({
      x: 1, xref: "paper", xanchor: "right", y, showarrow: false, text: `threshold of ${plotText(detector)}`,
      yanchor: yaxis.range[1] - y > 0.15 * height ? "bottom" : "top", font: { color: colors.threshold, size: 10 },
      bgcolor: plotFade(colors.surface, 0.7), borderpad: 0,
    }));
  }

  // Values that are not finite have no height: lines through the chart mark them. Among several
  // curves they are short, in the colour of their curve, so that they cover no other.
  #nonFinite(windows, range, colors) {
    const { axis } = this.context.store;
    const width = (range[1] - range[0]) / CHART_BAD_MARKS;
    const isShared = windows.length > 1;
    const marks = windows.map(({ name, points }) => {
      const inRange = points.bad.filter((x) => x >= range[0] && x <= range[1]);
      return { name, places: [...new Map(inRange.map((x) => [Math.floor((x - range[0]) / width), x])).values()] };
    }).filter(({ places }) => places.length);
    const shapes = marks.map(({ name, places }) => plotLines(places.map((each) => plotX(each, axis)), axis, isShared ? CHART_BAD_HEIGHT : 1,
      { color: isShared ? this.#color(name, colors) : plotFade(colors.critical, 0.4), width: 1.5 }));
    const annotations = marks.map(({ name, places }, index) => ({
      x: plotX(places[0], axis), y: 0, yref: "paper", yanchor: "bottom", showarrow: false, yshift: 8 + 12 * index,
      xanchor: places[0] > (range[0] + range[1]) / 2 ? "right" : "left",
      text: isShared ? `${plotText(this.legends.get(name))}: NaN or infinite` : "NaN or infinite",
      font: { color: colors.critical, size: 10 }, bgcolor: plotFade(colors.surface, 0.75), borderpad: 0,
    }));
    return { shapes, annotations };
  }

  #yaxis([low, high], windows) {
    const isPositive = windows.every(({ points, inside }) => inside.every((index) => points.min[index] === null || points.min[index] > 0));
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
    const range = [isAtZero ? -0.02 * high : low - pad, high + pad];
    if (largest >= CHART_SMALLEST_SI && largest < CHART_LARGEST_SI) return { ...format, type: "linear", range };
    // plotly.js would write 0.8e-6, and powers of ten with an inline style, which the policy refuses.
    const ticks = chartTicks(...range);
    return { type: "linear", range, tickvals: ticks, ticktext: ticks.map(chartNumber) };
  }

  #drawLegend(windows) {
    const isNamed = windows.length > 1 || this.signals[0].legend;
    const entries = isNamed && !this.legend.hidden && windows.length <= CHART_LEGEND_LIMIT
      ? windows.map(({ name }) => [this.legends.get(name), this.numbers.get(name)]) : [];
    const key = JSON.stringify(entries);
    if (key === this.shownLegend) return;
    this.shownLegend = key;
    this.legend.replaceChildren(...entries.map(([text, number]) => container("span", "", runSample(number), element("span", text))));
  }

  // A line at the position at which another chart is looked at; null for none.
  showCursor(position) {
    if (position === null || position === undefined || !this.isListening || this.isTable) {
      this.cursor?.remove();
      return;
    }
    const range = this.context.shownRange();
    const share = (position - range[0]) / (range[1] - range[0]);
    const width = this.drawnWidth - PLOT_MARGIN.l - PLOT_MARGIN.r;
    this.cursor ??= element("div", "", "cursor");
    this.cursor.style.transform = `translateX(${PLOT_MARGIN.l + share * width}px)`;
    if (share < 0 || share > 1) this.cursor.remove();
    else if (!this.cursor.isConnected) this.plot.append(this.cursor);
  }

  #listen(plotly) {
    this.isListening = true;
    // A tap shows values: fingers scroll the page.
    this.plot.onclick = ({ clientX }) => {
      if (!this.isListening || !matchMedia("(pointer: coarse)").matches) return;
      const [start, end] = this.context.shownRange();
      const share = (clientX - this.plot.getBoundingClientRect().left - PLOT_MARGIN.l) / (this.drawnWidth - PLOT_MARGIN.l - PLOT_MARGIN.r);
      plotly.Fx.hover(this.plot, { xval: plotX(start + share * (end - start), this.context.store.axis) }, ["xy"]);
    };
    this.plot.on("plotly_relayout", (changes) => {
      const [start, end] = [changes["xaxis.range[0]"], changes["xaxis.range[1]"]];
      if (start === undefined || end === undefined) return;
      const { axis } = this.context.store;
      this.context.zoom([plotValue(start, axis), plotValue(end, axis)], this);
    });
    this.plot.on("plotly_doubleclick", () => this.context.zoom(null, this));
    this.plot.on("plotly_hover", ({ points }) =>
      this.context.showCursor(points.length ? plotValue(points[0].x, this.context.store.axis) : null, this));
    this.plot.on("plotly_unhover", () => this.context.showCursor(null, this));
  }
}

// The outline of the range between two curves, one polygon for each part without gaps.
function plotBand(x, low, high) {
  const outline = { x: [], y: [] };
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
