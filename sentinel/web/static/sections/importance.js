// Which settings explain an outcome over many runs.
import {
  button,
  container,
  createTable,
  element,
  errorMessage,
  formatCount,
  formatNumber,
  isNumber,
  setText,
} from "../dom.js";
import { chartContext } from "../charts/context.js";
import {
  barPicture,
  dependenceLimits,
  dependencePicture,
  parallelPicture,
  PARALLEL_SETTINGS,
  readImportance,
  settingText,
} from "../charts/importance_pictures.js";
import { PlotChart } from "../charts/plot_chart.js";
import { chartNumber } from "../charts/units.js";
import { InsightChoice, loadInsight } from "./insight_items.js";

const IMPORTANCE_BARS = 30;
const IMPORTANCE_CURVES = 8;
const IMPORTANCE_ROW_PX = 24;

/**
 * The section of a run with a stored result. Returns { element, show(items), note() }.
 * @param {InsightPage} page
 * @param {() => void} refresh
 * @returns {InsightView}
 */
export function createImportance(page, refresh) {
  const view = new ImportanceView(page);
  const problem = element("p", "", "bad");
  const chooser = new InsightChoice("Result", async (item) => {
    try {
      const { data } = await loadInsight(page.source, item);
      if (item !== chooser.item) return;
      view.show(data);
      setText(problem, "");
    } catch (error) {
      setText(problem, errorMessage(error));
    }
    refresh();
  });
  return {
    element: container("div", "", chooser.element, problem, view.element),
    show: (items) => chooser.set(items),
    note: () => view.note,
  };
}

export class ImportanceView {
  /** @param {ChartPage} page */
  constructor(page) {
    this.context = chartContext(page);
    this.note = "";
    /** @type {Set<number> | null} */
    this.chosen = null;
    this.importance = readImportance({});
    this.summary = element("p", "", "summary");
    this.notes = element("div", "", "importance-notes");
    this.bars = new PlotChart(this.context, { title: "Importance", className: "importance-bars" });
    this.correlations = new PlotChart(this.context, { title: "Rank correlation", className: "importance-bars" });
    this.curves = container("div", "importance-curves");
    /** @type {PlotChart[]} */
    this.curveCharts = [];
    this.lines = new PlotChart(this.context, {
      title: "Runs",
      className: "importance-lines",
      onBuild: (_, plot) => this.#listen(plot),
    });
    this.all = button("Show all runs", () => this.#choose(null), "small");
    this.hint = element("span", "", "soft");
    this.table = createTable(
      "Settings",
      ["Setting", "Importance", "95 %", "Rank correlation", "95 %", "Values", "Not set"].map((title, index) => ({
        title,
        className: index ? "number" : "key",
      })),
    );
    this.constant = element("p", "", "soft");
    this.curvesTitle = element("h3", "How the outcome depends on each setting");
    this.element = container(
      "div",
      "importance",
      this.summary,
      this.notes,
      container("div", "insight-body", this.bars.element, this.correlations.element),
      this.curvesTitle,
      this.curves,
      this.lines.element,
      container("p", "row", this.all, this.hint),
      this.table.element,
      this.constant,
    );
  }

  /** @param {StoredJson} data */
  show(data) {
    this.importance = readImportance(data);
    const { settings, score, notes, constant, outcome, runs } = this.importance;
    setText(this.summary, importanceSummary(this.importance));
    this.notes.replaceChildren(...notes.map((note) => element("p", note, "soft")));
    const shown = settings.slice(0, IMPORTANCE_BARS);
    const hasForest = shown.some(({ importance }) => isNumber(importance));
    this.bars.element.hidden = !hasForest;
    this.#showBars(
      this.bars,
      shown.filter(({ importance }) => isNumber(importance)),
      ["importance", "low", "high"],
      "Importance",
    );
    this.bars.setTitle("Importance", "share of the variance");
    this.#showBars(
      this.correlations,
      shown.filter(({ correlation }) => isNumber(correlation)),
      ["correlation", "correlation_low", "correlation_high"],
      "Rank correlation",
    );
    this.correlations.setTitle("Rank correlation", "");
    this.#showCurves(
      settings.flatMap((each) => (each.curve ? [{ ...each, curve: each.curve }] : [])).slice(0, IMPORTANCE_CURVES),
    );
    this.chosen = null;
    this.#showLines();
    this.table.setRows(
      settings.map((each) => [
        each.label,
        ...estimate(each, "importance", "low", "high"),
        ...estimate(each, "correlation", "correlation_low", "correlation_high"),
        each.values_seen,
        each.missing || "",
      ]),
    );
    setText(
      this.constant,
      constant.length
        ? `Equal in all runs: ${constant.map(({ name, value }) => `${name} ${settingText(value)}`).join(", ")}.`
        : "",
    );
    this.note = [outcome, isNumber(runs) && formatCount(runs, "run"), score && `R2 ${score.r2.toFixed(2)}`]
      .filter(Boolean)
      .join(", ");
  }

  /**
   * @param {PlotChart} chart
   * @param {SettingImportance[]} settings
   * @param {[ImportanceKey, ImportanceKey, ImportanceKey]} keys
   * @param {string} label
   */
  #showBars(chart, settings, keys, label) {
    chart.plot.style.setProperty("height", `${IMPORTANCE_ROW_PX * settings.length + 32}px`);
    chart.element.hidden = !settings.length;
    chart.show(barPicture(settings, keys, label));
  }

  /** @param {ExplainedSetting[]} settings */
  #showCurves(settings) {
    for (const chart of this.curveCharts) this.context.remove(chart);
    /** @type {Span} */
    const limits = settings.length ? dependenceLimits(settings) : [0, 1];
    this.curveCharts = settings.map((setting) => {
      const chart = new PlotChart(this.context, { title: setting.label, className: "importance-curve" });
      chart.setTitle(setting.label, setting.isLog ? "log scale" : "");
      chart.show(dependencePicture(setting, limits, this.importance.outcome));
      return chart;
    });
    this.curvesTitle.hidden = !settings.length;
    setText(this.curvesTitle, `How ${this.importance.outcome} depends on each setting, with intervals at 95 %`);
    this.curves.replaceChildren(...this.curveCharts.map((chart) => chart.element));
  }

  #showLines() {
    const { rows, settings, outcome } = this.importance;
    this.lines.element.hidden = rows.length < 2;
    this.lines.show(parallelPicture(this.importance, this.chosen));
    const most =
      settings.length > PARALLEL_SETTINGS ? `the ${PARALLEL_SETTINGS} most important settings` : "their settings";
    this.lines.setTitle("Runs", `over ${most}; yellow: high ${outcome}`);
    this.all.hidden = !this.chosen;
    setText(
      this.hint,
      this.chosen
        ? `${formatNumber(this.chosen.size)} of ${formatCount(rows.length, "run")} stand out.`
        : "Draw a box around a part of an axis: the runs that pass through it stand out.",
    );
  }

  /**
   * The runs whose points lie in the box that was drawn.
   * @param {PlotElement} plot
   */
  #listen(plot) {
    plot.on?.("plotly_selected", (event) => {
      /** @type {{ customdata: unknown }[]} */
      const points = event?.points ?? [];
      const found = new Set(points.map(({ customdata }) => customdata).filter(isNumber));
      // Drawing the choice takes the box away, which plotly.js reports as an empty one.
      if (found.size) this.#choose(found);
    });
  }

  /** @param {Set<number> | null} chosen */
  #choose(chosen) {
    this.chosen = chosen;
    this.#showLines();
  }
}

/**
 * @param {SettingImportance} row
 * @param {ImportanceKey} value
 * @param {ImportanceKey} low
 * @param {ImportanceKey} high
 */
function estimate(row, value, low, high) {
  /** @param {number} number */
  const digits = (number) => (Number(number.toFixed(2)) + 0).toFixed(2);
  if (![value, low, high].every((key) => isNumber(row[key]))) return ["", ""];
  return [digits(row[value]), `${digits(row[low])} to ${digits(row[high])}`];
}

/**
 * The result in words, in one or two sentences.
 * @param {ImportanceResult} result
 */
export function importanceSummary({ settings, score, outcome, runs }) {
  const count = isNumber(runs) ? `${formatCount(runs, "run")}. ` : "";
  if (!score) return `${count}No forest was fitted.`;
  const sure = settings.filter(({ low }) => low > 0);
  const names = sure
    .slice(0, 3)
    .map(({ label, importance }) => `${label} (${importance.toFixed(2)})`)
    .join(", ");
  const what =
    score.low > 0 && sure.length
      ? `What matters most for ${outcome}: ${names}.`
      : `No setting is shown to matter for ${outcome}.`;
  const fit = `${chartNumber(Number(score.r2.toFixed(2)))} (${score.low.toFixed(2)} to ${score.high.toFixed(2)})`;
  return `${count}${what} On runs that it has not seen, the forest has an R2 of ${fit}.`;
}
