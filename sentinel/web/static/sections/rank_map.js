// Heat map of ranks: one row per rank, one column per part of the run.
import { choice, container, element, emptyState, isActive, setText } from "../dom.js";
import { createLoadingState } from "../loading.js";
import { chartContext } from "../charts/context.js";
import { PLOT_SCALE, plotDraw, plotLayout, plotText, plotValue } from "../charts/plot.js";
import { chartNumber, chartUnit } from "../charts/units.js";

const RANK_MAP_COLUMNS = 240;
const RANK_MAP_REFRESH_MS = 30000;
const RANK_MAP_RETRY_MS = 5000;
const RANK_MAP_SIGNALS = ["step_time", "grad_norm", "loss"];
/** @type {Record<string, string>} */
const RANK_MAP_UNITS = { step_time: "seconds", data_time: "seconds" };

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createRankMap(page) {
  const context = chartContext(page);
  const map = new RankMap(page, context);
  context.add(map);
  context.listeners.add(() => map.refresh());
  return {
    id: "rank-map",
    title: "Heat map of ranks",
    element: map.element,
    update: () => map.refresh(),
    // Few logs have values of ranks.
    isEmpty: (run) =>
      Boolean(run.log) ||
      run.metadata?.world_size === 1 ||
      (!isActive(run) && (map.grid?.ranks.length ?? Infinity) < 2),
    urgency: () => 0,
  };
}

// Behaves as a chart of the context, with data of its own.
class RankMap {
  /**
   * @param {Page} page
   * @param {ChartContext} context
   */
  constructor(page, context) {
    this.page = page;
    this.context = context;
    /** @type {string[]} */
    this.names = [];
    this.signal = RANK_MAP_SIGNALS[0];
    this.isBuilt = false;
    this.loaded = -Infinity;
    /** @type {RankGrid | null} */
    this.grid = null;
    this.key = "";
    this.receivedAt = 0;
    this.shown = "";
    this.shownNames = "";
    this.isListening = false;
    /** @type {number | undefined} */
    this.drawnWidth = undefined;
    /** @type {Span} */
    this.limits = [0, 1];
    this.unit = chartUnit(undefined, 0);
    this.select = choice("Signal of the ranks", [], (signal) => {
      this.signal = signal;
      this.loaded = -Infinity;
      this.refresh();
    });
    this.summary = element("p", "", "soft summary");
    this.low = element("span");
    this.high = element("span");
    this.scale = container("span", "scale soft", this.low, element("i"), this.high);
    /** @type {PlotElement} */
    this.plot = element("div", "", "plot");
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", "Heat map of ranks");
    this.plot.addEventListener("pointerdown", () => context.hold(this), true);
    this.empty = emptyState("");
    this.loading = createLoadingState("the values of ranks", () => {
      this.loaded = -Infinity;
      this.refresh();
    });
    this.controls = container("div", "row", this.select, this.scale);
    this.card = container("div", "chart rank-map", this.controls, this.summary, this.plot);
    this.element = container("div", "", this.loading.element, this.card, this.empty);
    this.card.hidden = true;
    this.empty.hidden = true;
  }

  // Fetch the map again if the range has changed, or after a while of a live run.
  refresh() {
    const shown = this.context.shownSteps();
    const key = JSON.stringify([shown, this.signal]);
    const isNew = key !== this.key || this.loaded === -Infinity;
    if (!this.context.visible.has(this) || (!isNew && performance.now() - this.loaded < RANK_MAP_REFRESH_MS)) return;
    this.key = key;
    this.loaded = performance.now();
    this.#load(shown, key);
  }

  /**
   * @param {Span | null} range
   * @param {string} key
   */
  async #load(range, key) {
    const query = new URLSearchParams({ signal: this.signal, columns: String(RANK_MAP_COLUMNS) });
    if (range) {
      query.set("from", String(range[0]));
      query.set("to", String(range[1]));
    }
    try {
      const grid = await this.page.source.getJson(`api/ranks?${query}`);
      if (key !== this.key) return;
      this.grid = grid;
      this.receivedAt = performance.now();
      this.loading.hide();
      this.context.redraw([this]);
    } catch (error) {
      if (key !== this.key) return;
      this.loading.showProblem(error);
      if (!this.page.source.isReport) setTimeout(() => key === this.key && this.#load(range, key), RANK_MAP_RETRY_MS);
    }
  }

  /** @param {MaybePlotly} plotly */
  draw(plotly) {
    if (!this.grid) {
      this.refresh();
      return;
    }
    const { ranks, signals } = this.grid;
    const isShown = ranks.length > 1;
    setText(
      this.empty,
      ranks.length === 1
        ? "This run has one rank. With several, this map shows which of them is slow or differs."
        : "No values of ranks yet. With those of several ranks, this map shows which of them is slow or differs.",
    );
    this.card.hidden = !isShown;
    this.empty.hidden = isShown;
    if (!isShown) return;
    this.#showChoices(signals);
    this.#summarise(this.grid);
    if (!plotly) {
      this.plot.hidden = true;
      return;
    }
    // Other charts are drawn again and again; a map only when it would change.
    const shown = JSON.stringify([
      this.key,
      this.receivedAt,
      this.plot.clientWidth,
      this.page.view.theme,
      this.context.colors.text,
    ]);
    if (this.isBuilt && shown === this.shown) return;
    this.shown = shown;
    this.#drawPlot(plotly, this.grid);
    this.isBuilt = true;
  }

  /** @param {MaybePlotly} plotly */
  destroy(plotly) {
    if (plotly && this.isBuilt) plotly.purge(this.plot);
    this.isBuilt = false;
    this.isListening = false;
  }

  /** @param {string[]} signals */
  #showChoices(signals) {
    const names = [
      ...RANK_MAP_SIGNALS.filter((name) => signals.includes(name)),
      ...signals.filter((name) => !RANK_MAP_SIGNALS.includes(name)),
    ];
    const text = names.join();
    if (text === this.shownNames) return;
    this.shownNames = text;
    this.select.replaceChildren(
      ...names.map((name) => {
        const option = element("option", name.replaceAll("_", " "));
        option.value = name;
        return option;
      }),
    );
    this.select.value = this.signal;
  }

  /**
   * The rank that differs most, in words.
   * @param {RankGrid} grid
   */
  #summarise({ ranks, values, signal }) {
    const known = values.map((row) => row.filter((value) => value !== null));
    const all = known.flat().sort((a, b) => a - b);
    const median = all[Math.floor(all.length / 2)] ?? 0;
    this.limits = [all[Math.floor(all.length * 0.01)] ?? 0, all[Math.ceil(all.length * 0.995) - 1] ?? 1];
    this.unit = chartUnit(RANK_MAP_UNITS[signal], Math.abs(this.limits[1]));
    /** @param {number} value */
    const number = (value) => `${chartNumber(value * this.unit.factor)}${this.unit.name ? ` ${this.unit.name}` : ""}`;
    const means = known.map((row) => (row.length ? row.reduce((sum, value) => sum + value, 0) / row.length : median));
    const worst = means.reduce(
      (best, mean, index) => (Math.abs(mean - median) > Math.abs(means[best] - median) ? index : best),
      0,
    );
    const text =
      `Rank ${ranks[worst]} differs most: ${number(means[worst])} on average, ` +
      `median of all ranks ${number(median)}.`;
    setText(this.summary, text);
    setText(this.low, number(this.limits[0]));
    setText(this.high, number(this.limits[1]));
    this.plot.setAttribute(
      "aria-label",
      `Heat map of ${signal.replaceAll("_", " ")} of ${ranks.length} ranks. ${text}`,
    );
  }

  /**
   * @param {Plotly} plotly
   * @param {RankGrid} grid
   */
  #drawPlot(plotly, { x, ranks, values }) {
    const { factor, name } = this.unit;
    const [low, high] = this.limits.map((value) => value * factor);
    const trace = {
      type: "heatmap",
      x,
      y: ranks,
      z: values.map((row) => row.map((value) => (value === null ? null : value * factor))),
      zmin: low,
      zmax: high > low ? high : low + 1,
      colorscale: PLOT_SCALE,
      showscale: false,
      // Without a gap plotly.js scales a small image with an inline style, which the policy refuses.
      ygap: ranks.length <= 32 ? 1 : 0.2,
      xgap: 0.01,
      hovertemplate: `rank %{y}<br>step %{x:,d}<br>%{z:.4~g} ${plotText(name)}<extra></extra>`,
    };
    const range = this.context.shownSteps() ?? [x[0], x[x.length - 1]];
    const layout = plotLayout({
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      axis: "step",
      range,
      colors: this.context.colors,
      yaxis: { autorange: false, range: [ranks.length - 0.5, -0.5], showgrid: false, tickformat: "d", nticks: 8 },
    });
    layout.hovermode = "closest";
    layout.plot_bgcolor = PLOT_SCALE[0][1];
    layout.yaxis.tickvals = ranks.filter((_, index) => index % Math.ceil(ranks.length / 8) === 0);
    this.drawnWidth = layout.width;
    plotDraw(plotly, this.plot, [trace], layout);
    if (this.isListening) return;
    this.isListening = true;
    this.plot.on?.("plotly_relayout", (changes) => {
      const [start, end] = [changes["xaxis.range[0]"], changes["xaxis.range[1]"]];
      if (start === undefined || end === undefined) return;
      const steps = /** @type {Span} */ ([plotValue(start, "step"), plotValue(end, "step")]);
      const range = this.context.marks.positions(steps, this.page.view.axis);
      if (range) this.context.zoom(range);
    });
    this.plot.on?.("plotly_doubleclick", () => this.context.zoom(null));
  }
}
