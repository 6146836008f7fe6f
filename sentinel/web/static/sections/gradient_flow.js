// Gradient flow: a heat map of layers over steps, and the curve and the histogram of one layer.
import {
  choice,
  container,
  element,
  errorMessage,
  formatCount,
  formatNumber,
  isNumber,
  setAttributes,
  setText,
} from "../dom.js";
import { chartContext } from "../charts/context.js";
import { PlotChart } from "../charts/plot_chart.js";
import { logarithmicTicks, withColorBar } from "../charts/color_bar.js";
import { PLOT_SCALE, plotFade, plotLayout, plotText, plotValue } from "../charts/plot.js";
import { exponentsPicture, linesPicture } from "../charts/lines.js";
import { chartNumber } from "../charts/units.js";
import { insightOrder, loadInsight } from "./insight_items.js";

const FLOW_COLUMNS = 240;
// The name of what the run measured while it trained.
const FLOW_TRAINING = "+";
const FLOW_REFRESH_MS = 30000;
const FLOW_MAX_TICKS = 24;
// Widest range of the colours, in powers of ten.
const FLOW_MAX_DECADES = 12;
const FLOW_ZERO = "#2fb9d6";
const FLOW_BAD = "#c8202e";
// Brown for opposite directions, green for the same one.
/** @type {ColorScale} */
const FLOW_DIVERGING = [
  [0, "#7b3f00"],
  [0.25, "#c59b5f"],
  [0.5, "#e8e8e8"],
  [0.75, "#66aa9f"],
  [1, "#00574f"],
];
// Title, its meaning in a sentence, and its range if it is not logarithmic.
/** @type {Record<string, { title: string, noun: string, range?: Span }>} */
const FLOW_STATISTICS = {
  layer_grad_norm: { title: "Gradient norm", noun: "gradient norm" },
  layer_grad_zero_share: { title: "Share of zeros", noun: "share of zeros", range: [0, 1] },
  layer_update_ratio: { title: "Update / weight", noun: "ratio of update to weight" },
  layer_grad_cosine: { title: "Cosine to the last gradient", noun: "cosine to the last gradient", range: [-1, 1] },
  layer_noise_scale: { title: "Gradient noise scale", noun: "gradient noise scale" },
};

/**
 * `refresh()` shows the note again. Returns { element, show(items), note() }.
 * @param {InsightPage} page
 * @param {() => void} refresh
 * @returns {InsightView}
 */
export function createGradientFlow(page, refresh) {
  const view = new GradientFlowView(page, refresh);
  return { element: view.element, show: (items) => view.show(items), note: () => view.note };
}

/**
 * What `api/layers` answers, made of results of `sentinel.insight.gradient_flow`: one column each.
 * @param {InsightResult[]} results
 * @param {string} statistic
 * @returns {LayerGrid}
 */
function snapshotGrid(results, statistic) {
  /**
   * @param {StoredJson} values
   * @returns {string[]}
   */
  const names = (values) => (Array.isArray(values) ? values.map(String) : []);
  const known = results.filter(({ data }) => names(data.layers).length).slice(-FLOW_COLUMNS);
  const layers = known.length ? names(known[known.length - 1].data.layers) : [];
  /**
   * @param {InsightResult} result
   * @returns {Values}
   */
  const column = ({ data }) => {
    const values = Array.isArray(data[statistic]) ? data[statistic] : [];
    const byName = new Map(names(data.layers).map((name, index) => [name, values[index]]));
    return layers.map((name) => {
      const value = byName.get(name);
      return isNumber(value) ? value : null;
    });
  };
  const columns = known.map(column);
  const hasSteps = known.every(({ step }) => isNumber(step));
  const x = known.map(({ step }, index) => (hasSteps ? (step ?? NaN) : index + 1));
  return {
    statistic,
    layers,
    statistics: Object.keys(FLOW_STATISTICS).filter((name) => known.some(({ data }) => Array.isArray(data[name]))),
    x,
    values: layers.map((_, index) => columns.map((values) => values[index])),
    bad: layers.map(() => []),
    histograms: {
      x: x[x.length - 1] ?? null,
      layer: known.length ? (known[known.length - 1].data.histograms ?? {}) : {},
    },
  };
}

class GradientFlowView {
  /**
   * @param {InsightPage} page
   * @param {() => void} refresh
   */
  constructor(page, refresh) {
    this.page = page;
    this.refresh = refresh;
    this.context = chartContext(page);
    this.note = "";
    this.statistic = Object.keys(FLOW_STATISTICS)[0];
    this.layer = "";
    this.grid = snapshotGrid([], this.statistic);
    /** @type {Span} */
    this.limits = [0.1, 1];
    this.loadedKey = "";
    this.loadedAt = 0;
    this.statisticChoice = choice("Statistic of the layers", [], (statistic) => {
      this.statistic = statistic;
      this.load(true);
    });
    this.source = "";
    /** @type {InsightItem[]} */
    this.snapshots = [];
    this.sourceChoice = choice("Measured", [], (name) => {
      this.source = name;
      this.load(true);
    });
    this.layerChoice = choice("Layer", [], (layer) => this.#select(layer));
    /**
     * @param {string} className
     * @param {string} text
     */
    const swatch = (className, text) => container("span", "flow-key", element("i", "", className), text);
    this.zeroKey = swatch("flow-zero", "zero");
    this.missingKey = swatch("flow-missing", "not measured");
    this.badKey = swatch("flow-bad", "NaN or infinite");
    this.key = container("span", "row soft", this.zeroKey, this.badKey, this.missingKey);
    this.summary = element("p", "", "summary");
    this.problem = element("p", "", "bad");
    this.problem.hidden = true;
    this.map = new PlotChart(this.context, { className: "flow-map", onBuild: (_, plot) => this.#listen(plot) });
    this.curve = new PlotChart(this.context, { title: "Layer" });
    this.histogram = new PlotChart(this.context, { title: "Sizes of gradient elements" });
    this.detail = container("div", "charts", this.curve.element, this.histogram.element);
    this.element = container(
      "div",
      "",
      container("div", "row insight-controls", this.sourceChoice, this.statisticChoice, this.layerChoice, this.key),
      this.problem,
      this.summary,
      this.map.element,
      this.detail,
    );
    this.context.listeners.add(() => this.load());
  }

  /**
   * `items` are the stored results, and one without an id if the run measured its layers.
   * @param {InsightItem[]} items
   */
  show(items) {
    this.snapshots = items.filter(({ id }) => id);
    /** @type {Option[]} */
    const options = [...new Set(this.snapshots.map(({ name }) => name))].map((name) => [
      `=${name}`,
      name || "measured on request",
    ]);
    if (items.some(({ id }) => !id)) options.unshift([FLOW_TRAINING, "during training"]);
    if (!options.some(([name]) => name === this.source)) [[this.source]] = options;
    showOptions(this.sourceChoice, options, this.source);
    this.sourceChoice.hidden = options.length < 2;
    this.load(true);
  }

  /**
   * @param {Span | null} range
   * @returns {Promise<LayerGrid>}
   */
  async #read(range) {
    if (this.source !== FLOW_TRAINING) {
      const items = this.snapshots.filter(({ name }) => `=${name}` === this.source).sort(insightOrder);
      const results = await Promise.all(items.map((item) => loadInsight(this.page.source, item).catch(() => null)));
      return snapshotGrid(
        results.filter((result) => result !== null),
        this.statistic,
      );
    }
    const query = new URLSearchParams({ statistic: this.statistic, columns: String(FLOW_COLUMNS) });
    if (range) {
      query.set("from", String(range[0]));
      query.set("to", String(range[1]));
    }
    return this.page.source.getJson(`api/layers?${query}`);
  }

  /**
   * Fetch the map again if the range has changed, or after a while of a live run.
   * @param {boolean} [isForced]
   */
  async load(isForced = false) {
    const range = this.context.shownSteps();
    const key = JSON.stringify([range, this.source, this.statistic]);
    if (!isForced && key === this.loadedKey && performance.now() - this.loadedAt < FLOW_REFRESH_MS) return;
    if (!isForced && !this.context.visible.has(this.map)) return;
    this.loadedKey = key;
    this.loadedAt = performance.now();
    try {
      const grid = await this.#read(range);
      if (key !== this.loadedKey) return;
      this.grid = grid;
      this.problem.hidden = true;
    } catch (error) {
      setText(this.problem, errorMessage(error));
      this.problem.hidden = false;
      return;
    }
    this.#draw();
  }

  // The words for the chosen statistic, and its range.
  #described() {
    return FLOW_STATISTICS[this.statistic] ?? { title: this.statistic, noun: this.statistic };
  }

  #draw() {
    const { layers, statistics, x, values, bad } = this.grid;
    const isEmpty = !layers.length || !x.length;
    if (!isEmpty && statistics.length && !statistics.includes(this.statistic)) {
      [this.statistic] = statistics;
      this.load(true);
      return;
    }
    this.map.element.hidden = isEmpty;
    this.detail.hidden = isEmpty;
    showOptions(
      this.statisticChoice,
      statistics.map((name) => [name, FLOW_STATISTICS[name]?.title ?? name.replaceAll("_", " ")]),
      this.statistic,
    );
    if (isEmpty) {
      setText(this.summary, "No measurement of the layers in this range.");
      return;
    }
    const { range, noun } = this.#described();
    const isBad = values.map((row, index) => new Set(bad[index] ?? []));
    const limits = range ?? logLimits(values);
    this.limits = limits;
    const summary = flowSummary({ layers, x, values, isBad, noun });
    setText(this.summary, summary.text);
    if (!layers.includes(this.layer)) this.layer = summary.layer;
    showOptions(
      this.layerChoice,
      layers.map((name) => [name, layerText(name)]),
      this.layer,
    );
    this.zeroKey.hidden = Boolean(range) || !values.some((row) => row.includes(0));
    this.badKey.hidden = !isBad.some((columns) => columns.size);
    this.missingKey.hidden = !values.some((row, index) =>
      row.some((value, column) => value === null && !isBad[index].has(column)),
    );
    this.note = formatCount(layers.length, "layer");
    this.#drawMap(summary.text, isBad);
    this.#drawLayer();
    this.refresh();
  }

  /**
   * @param {string} text
   * @param {Set<number>[]} isBad
   */
  #drawMap(text, isBad) {
    const { layers, x, values } = this.grid;
    const { range, title } = this.#described();
    const [low, high] = range ?? this.limits.map(Math.log10);
    /** @param {number} value */
    const place = (value) => ((range ? value : Math.log10(Math.abs(value))) - low) / (high - low || 1);
    // Values have 0 to 1; zero and what is no number have colours below.
    const z = values.map((row, index) =>
      row.map((value, column) => {
        if (isBad[index].has(column)) return -0.2;
        if (value === null) return null;
        if (value === 0 && !range) return -0.1;
        return Math.min(1, Math.max(0, place(value)));
      }),
    );
    const texts = values.map((row, index) =>
      row.map((value, column) => (isBad[index].has(column) ? "NaN or infinite" : chartNumber(value))),
    );
    const stops = range && range[0] < 0 ? FLOW_DIVERGING : PLOT_SCALE;
    const colorscale = [
      [0, FLOW_BAD],
      [0.05, FLOW_BAD],
      [0.05, FLOW_ZERO],
      [1 / 6 - 1e-6, FLOW_ZERO],
      ...stops.map(([at, color]) => [(at + 0.2) / 1.2, color]),
    ];
    const selected = layers.indexOf(this.layer);
    this.map.element.style.setProperty("--rows", String(layers.length));
    this.map.setTitle(title, range ? "" : "logarithmic colours");
    this.map.show(({ width, height, colors }) => {
      const longest = Math.max(...layers.map((name) => name.length));
      const left = Math.min(Math.max(70, width * 0.25), 10 + 6.2 * longest);
      const span = this.context.shownSteps() ?? [x[0], x[x.length - 1]];
      const layout = plotLayout({
        width,
        height,
        axis: "step",
        range: span[0] === span[1] ? [span[0] - 0.5, span[1] + 0.5] : span,
        colors,
        yaxis: {
          autorange: false,
          range: [layers.length - 0.5, -0.5],
          showgrid: false,
          ...layerTicks(layers, height, left),
        },
        shapes:
          selected < 0
            ? []
            : [
                {
                  type: "rect",
                  xref: "x domain",
                  x0: 0,
                  x1: 1,
                  y0: selected - 0.5,
                  y1: selected + 0.5,
                  line: { color: colors.text, width: 1.5 },
                  fillcolor: "rgba(0,0,0,0)",
                },
              ],
      });
      layout.margin = { ...layout.margin, l: left, b: 42 };
      layout.xaxis.title = { text: "step", standoff: 6, font: layout.font };
      layout.hovermode = "closest";
      layout.plot_bgcolor = plotFade(colors.grid, 1);
      return withColorBar(
        {
          traces: [
            {
              type: "heatmap",
              x,
              y: layers.map((_, index) => index),
              z,
              customdata: texts,
              text: layers.map((name) => x.map(() => plotText(name))),
              zmin: -0.2,
              zmax: 1,
              colorscale,
              showscale: false,
              hoverongaps: false,
              // Without a gap plotly.js scales a small image with an inline style, which the policy refuses.
              ygap: layers.length <= 48 ? 1 : 0.2,
              xgap: 0.01,
              hovertemplate: "%{text}<br>step %{x:,d}<br>%{customdata}<extra></extra>",
            },
          ],
          layout,
          label: `Heat map of ${title.toLowerCase()} of ${formatCount(layers.length, "layer")} over steps. ${text}`,
        },
        flowBar(title, range, this.limits, stops),
      );
    });
  }

  #drawLayer() {
    const { layers, x, values, histograms } = this.grid;
    const index = layers.indexOf(this.layer);
    const { range, title } = this.#described();
    this.curve.setTitle(layerText(this.layer), title.toLowerCase());
    this.curve.show(
      linesPicture([{ name: this.layer, x, y: values[index], color: 0 }], {
        title: `${title} of ${this.layer}`,
        value: title.toLowerCase(),
        range: this.context.shownSteps() ?? [x[0], x[x.length - 1]],
        isLog: !range,
      }),
    );
    const sketch = histograms?.layer?.[this.layer];
    const isSketch = Array.isArray(sketch) && sketch.length > 1 && sketch.every(Number.isFinite);
    this.histogram.element.hidden = !isSketch;
    if (!histograms || !isSketch) return;
    this.histogram.setTitle("Sizes of gradient elements", `step ${formatNumber(histograms.x)}`);
    this.histogram.show(
      exponentsPicture(
        { first: sketch[0], counts: sketch.slice(1) },
        { title: `Sizes of gradient elements of ${this.layer}` },
      ),
    );
  }

  /** @param {string} layer */
  #select(layer) {
    this.layer = layer;
    this.#draw();
  }

  /** @param {PlotElement} plot */
  #listen(plot) {
    plot.on?.("plotly_click", ({ points }) => {
      const row = points[0]?.pointIndex?.[0] ?? points[0]?.y;
      if (this.grid.layers[row] !== undefined) this.#select(this.grid.layers[row]);
    });
    plot.on?.("plotly_relayout", (changes) => {
      const [start, end] = [changes["xaxis.range[0]"], changes["xaxis.range[1]"]];
      if (start === undefined || end === undefined) return;
      const steps = /** @type {Span} */ ([plotValue(start, "step"), plotValue(end, "step")]);
      const range = this.context.marks.positions(steps, this.page.view.axis);
      if (range) this.context.zoom(range);
    });
    plot.on?.("plotly_doubleclick", () => this.context.zoom(null));
  }
}

/**
 * @param {HTMLSelectElement} select
 * @param {Option[]} options
 * @param {string} value
 */
function showOptions(select, options, value) {
  const text = options.join("\n");
  if (select.dataset.options !== text) {
    select.dataset.options = text;
    select.replaceChildren(...options.map(([name, label]) => setAttributes(element("option", label), { value: name })));
  }
  select.value = value;
}

/**
 * The colours of values: a range from low to high, or powers of ten.
 * @param {string} title
 * @param {Span | undefined} range
 * @param {Span} limits
 * @param {ColorScale} colorscale
 * @returns {ColorBar}
 */
function flowBar(title, range, limits, colorscale) {
  const [low, high] = limits;
  const values = range ? [0, 1, 2, 3, 4].map((index) => low + ((high - low) * index) / 4) : logarithmicTicks(low, high);
  const place = (/** @type {number} */ value) => (range ? value : Math.log10(value));
  return {
    colorscale,
    range: limits.map(place),
    title: `${title.toLowerCase()}${range ? "" : " (logarithmic)"}`,
    tickvals: values.map(place),
    ticktext: values.map((value) => chartNumber(Number(value.toPrecision(3)))),
  };
}

/**
 * Ends of a logarithmic scale: the lowest and the highest size but zero.
 * @param {Values[]} values
 * @returns {Span}
 */
function logLimits(values) {
  let [low, high] = [Infinity, 0];
  for (const row of values) {
    for (const value of row) {
      const size = Math.abs(value ?? 0);
      if (size === 0) continue;
      if (size < low) low = size;
      if (size > high) high = size;
    }
  }
  if (!(low <= high)) return [0.1, 1];
  return [Math.max(low, high / 10 ** FLOW_MAX_DECADES), high > low ? high : low * 10];
}

/**
 * Names at the left, as many as fit, and the ends of those that are too long.
 * @param {string[]} layers
 * @param {number} height
 * @param {number} left
 */
function layerTicks(layers, height, left) {
  const step = Math.max(1, Math.ceil(layers.length / Math.min(FLOW_MAX_TICKS, Math.max(2, height / 16))));
  const length = Math.max(6, Math.floor((left - 8) / 6));
  const tickvals = layers.map((_, index) => index).filter((index) => index % step === 0);
  return {
    tickvals,
    ticktext: tickvals.map((index) =>
      plotText(layers[index].length > length ? `…${layers[index].slice(1 - length)}` : layers[index]),
    ),
  };
}

/**
 * Layers of a sequence have numbers as their names.
 * @param {string} name
 */
function layerText(name) {
  return /^[\d.]+$/.test(name) ? `layer ${name}` : name;
}

/**
 * The newest measurement in a sentence, and the layer that is named first: { text, layer }.
 * @param {{ layers: string[], x: number[], values: Values[], isBad: Set<number>[], noun: string }} flow
 */
function flowSummary({ layers, x, values, isBad, noun }) {
  const last = x.length - 1;
  const rows = layers.map((name, index) => ({ name, value: values[index][last], isBad: isBad[index].has(last) }));
  const bad = rows.filter((row) => row.isBad);
  const zero = rows.filter(({ value }) => value === 0);
  const known = rows
    .flatMap(({ name, value, isBad: isOut }) => (isOut || value === null || value === 0 ? [] : [{ name, value }]))
    .sort((a, b) => a.value - b.value);
  /** @param {{ name: string }[]} list */
  const names = (list) =>
    `${list
      .slice(0, 3)
      .map(({ name }) => layerText(name))
      .join(", ")}${list.length > 3 ? ` and ${list.length - 3} more` : ""}`;
  const none = rows.filter((row) => !row.isBad && row.value === null);
  const parts = [];
  if (known.length) {
    const [lowest, highest] = [known[0], known[known.length - 1]];
    parts.push(
      known.length === 1
        ? `is ${chartNumber(lowest.value)} in ${layerText(lowest.name)}`
        : `goes from ${chartNumber(lowest.value)} in ${layerText(lowest.name)} ` +
            `to ${chartNumber(highest.value)} in ${layerText(highest.name)}`,
    );
  }
  if (zero.length) parts.push(`is zero in ${names(zero)}`);
  if (bad.length) parts.push(`is NaN or infinite in ${names(bad)}`);
  // A layer has no value where no gradient reached it.
  if (parts.length && none.length) parts.push(`is missing in ${names(none)}`);
  const text = parts.length
    ? `At step ${formatNumber(x[last])}, the ${noun} ${parts.join("; it ")}.`
    : `At step ${formatNumber(x[last])}, no layer has a ${noun}.`;
  return { text, layer: (bad[0] ?? zero[0] ?? known[0] ?? rows[0]).name };
}
