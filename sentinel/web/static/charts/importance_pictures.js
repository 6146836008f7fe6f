// Pictures of the importance of settings: bars with intervals, partial dependence, and the runs as
// lines over the axes of their settings.
import { formatNumber, isNumber } from "../dom.js";
import { PLOT_SCALE, plotBase, plotExtent, plotFade, plotFont, plotText } from "./plot.js";
import { chartNumber } from "./units.js";

// Axes of settings that stand beside each other; more cannot be distinguished.
export const PARALLEL_SETTINGS = 8;
// Colours of the lines of runs, by their outcome.
const PARALLEL_COLORS = 12;
const PARALLEL_NOT_SET = -0.12;
const IMPORTANCE_NAME_CHARS = 26;

/**
 * A result as of `sentinel.insight.importance`, in which anything may be missing or wrong.
 * @param {StoredJson} data
 * @returns {ImportanceResult}
 */
export function readImportance(data) {
  /**
   * @param {StoredJson} value
   * @returns {StoredJson[]}
   */
  const list = (value) => (Array.isArray(value) ? value : []);
  const settings = list(data.settings)
    .filter((each) => each && typeof each.name === "string")
    .map(readSetting);
  const columns = list(data.table?.columns).map(String);
  const rows = list(data.table?.rows).filter((row) => Array.isArray(row) && row.length === columns.length);
  return {
    outcome: String(data.outcome ?? "outcome"),
    better: data.better,
    runs: data.runs,
    settings,
    columns,
    rows,
    score: isNumber(data.score?.r2) ? data.score : null,
    notes: list(data.note).map(String),
    constant: list(data.constant).filter((each) => each && typeof each.name === "string"),
  };
}

/**
 * @param {StoredJson} each
 * @returns {SettingImportance}
 */
function readSetting(each) {
  const curve = each.partial_dependence;
  const lists = curve && ["x", "y", "low", "high"].map((key) => curve[key]);
  const isCurve =
    lists && lists.every((/** @type {StoredJson} */ list) => Array.isArray(list) && list.length === lists[0].length);
  const same = Array.isArray(each.same_as) ? each.same_as.map(String) : [];
  return {
    ...each,
    label: [each.name, ...same].join(", "),
    curve: isCurve ? curve : null,
    isLog: each.scale === "log",
  };
}

/**
 * A value of a setting as text.
 * @param {Setting} value
 */
export function settingText(value) {
  if (value === null || value === undefined) return "not set";
  return isNumber(value) ? chartNumber(value) : String(value);
}

/**
 * @param {PlotSize} size
 * @param {PlotLayout} changes
 */
function importanceLayout(size, changes) {
  return { ...plotBase(size), margin: { l: 52, r: 12, t: 8, b: 26, pad: 0 }, ...changes };
}

/** @param {string} name */
function shortName(name) {
  return name.length > IMPORTANCE_NAME_CHARS ? `${name.slice(0, IMPORTANCE_NAME_CHARS - 1)}…` : name;
}

/**
 * Bars of a value with its interval, one per setting, from top to bottom. `keys` names the value and
 * the ends of its interval.
 * @param {SettingImportance[]} settings
 * @param {[ImportanceKey, ImportanceKey, ImportanceKey]} keys
 * @param {string} label
 * @returns {Picture}
 */
export function barPicture(settings, keys, label) {
  const [value, low, high] = keys;
  const shown = settings.filter((each) => isNumber(each[value]));
  return (size) => {
    const { colors } = size;
    /** @param {SettingImportance} setting */
    const isSure = ({ [low]: least, [high]: most }) => least > 0 || most < 0;
    const values = shown.map((each) => each[value]);
    const ends = shown.flatMap((each) => [each[low], each[high], each[value]]).filter(isNumber);
    const range = [Math.min(0, ...ends), Math.max(0, ...ends)];
    const pad = 0.03 * (range[1] - range[0] || 1);
    return {
      label: `${label}: ${shown
        .slice(0, 5)
        .map((each) => `${each.name} ${each[value].toFixed(2)}`)
        .join(", ")}`,
      traces: [
        {
          type: "bar",
          orientation: "h",
          x: values,
          y: shown.map((_, index) => index),
          width: 0.62,
          marker: { color: shown.map((each) => (isSure(each) ? colors.series[0] : plotFade(colors.series[0], 0.35))) },
          error_x: {
            type: "data",
            symmetric: false,
            color: colors.text,
            thickness: 1.2,
            width: 3,
            array: shown.map((each) => Math.max(0, each[high] - each[value])),
            arrayminus: shown.map((each) => Math.max(0, each[value] - each[low])),
          },
          text: shown.map(
            (each) =>
              `${plotText(each.label)}<br>` +
              `${each[value].toFixed(3)} (${each[low].toFixed(3)} to ${each[high].toFixed(3)})`,
          ),
          textposition: "none",
          hovertemplate: "%{text}<extra></extra>",
        },
      ],
      layout: importanceLayout(size, {
        margin: { l: 150, r: 12, t: 4, b: 24, pad: 4 },
        xaxis: {
          range: [range[0] - pad, range[1] + pad],
          fixedrange: true,
          gridcolor: colors.grid,
          zeroline: true,
          zerolinecolor: colors.edge,
          nticks: 6,
          ticks: "",
        },
        yaxis: {
          range: [shown.length - 0.4, -0.6],
          fixedrange: true,
          showgrid: false,
          zeroline: false,
          ticks: "",
          tickvals: shown.map((_, index) => index),
          ticktext: shown.map((each) => plotText(shortName(each.label))),
        },
      }),
    };
  };
}

/**
 * How the outcome depends on one setting, with the band of its interval.
 * @param {ExplainedSetting} setting
 * @param {Span} limits
 * @param {string} outcome
 * @returns {Picture}
 */
export function dependencePicture(setting, limits, outcome) {
  return (size) => {
    const { colors } = size;
    const color = colors.series[0];
    const { x, y, low, high } = setting.curve;
    const places = x.map((_, index) => index).filter((index) => isNumber(y[index]));
    /** @param {number} index */
    const text = (index) =>
      `${plotText(setting.name)} ${plotText(settingText(x[index]))}<br>` +
      `${plotText(outcome)} ${chartNumber(y[index])} (${chartNumber(low[index])} to ${chartNumber(high[index])})`;
    const isNumeric = setting.kind === "number";
    const traces = isNumeric ? curveTraces(setting, places, color, text) : levelTraces(setting, places, color, text);
    const xaxis = isNumeric
      ? setting.isLog
        ? { type: "log", ...logDecades(x.filter(isNumber)) }
        : { nticks: 5, exponentformat: "e" }
      : {
          tickvals: places,
          ticktext: places.map((index) => plotText(shortName(settingText(x[index])).slice(0, 12))),
          range: [-0.5, x.length - 0.5],
        };
    const extent = plotExtent(places.map((index) => y[index])) ?? [NaN, NaN];
    return {
      label: `${outcome} by ${setting.name}: from ${chartNumber(extent[0])} to ${chartNumber(extent[1])}`,
      traces,
      layout: importanceLayout(size, {
        xaxis: { fixedrange: true, showgrid: false, zeroline: false, ticks: "", ...xaxis },
        yaxis: { range: limits, fixedrange: true, gridcolor: colors.grid, zeroline: false, ticks: "", nticks: 5 },
      }),
    };
  };
}

/**
 * Ticks at the powers of ten. plotly.js would write them with an inline style, which the policy
 * refuses.
 * @param {number[]} values
 */
function logDecades(values) {
  const [first, last] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  const tickvals = [];
  for (let power = Math.ceil(first); power <= last; power += Math.ceil((last - first) / 6)) tickvals.push(10 ** power);
  const shown = tickvals.length > 1 ? tickvals : [10 ** first, 10 ** last];
  return { tickvals: shown, ticktext: shown.map((value) => chartNumber(Number(value.toPrecision(2)))) };
}

/**
 * @param {ExplainedSetting} setting
 * @param {number[]} places
 * @param {string} color
 * @param {(index: number) => string} text
 */
function curveTraces(setting, places, color, text) {
  const { x, y, low, high } = setting.curve;
  const on = places.filter((index) => isNumber(x[index]));
  /**
   * @param {(number | null)[]} values
   * @param {PlotTrace} [more]
   */
  const line = (values, more = {}) => ({
    type: "scatter",
    mode: "lines",
    x: on.map((index) => x[index]),
    y: on.map((index) => values[index]),
    line: { color, width: 0 },
    hoverinfo: "skip",
    ...more,
  });
  const traces = [
    line(low),
    line(high, { fill: "tonexty", fillcolor: plotFade(color, 0.2) }),
    line(y, {
      mode: "lines+markers",
      line: { color, width: 1.8 },
      marker: { color, size: 4 },
      text: on.map(text),
      hoverinfo: "text",
      hovertemplate: "%{text}<extra></extra>",
    }),
  ];
  // Runs without the setting have no place on the axis: a line across it.
  for (const index of places.filter((each) => !isNumber(x[each]))) {
    traces.push(
      line([], {
        x: on.map((each) => x[each]),
        y: on.map(() => y[index]),
        line: { color, width: 1.2, dash: "dot" },
        text: on.map(() => text(index)),
        hoverinfo: "text",
        hovertemplate: "%{text}<extra></extra>",
      }),
    );
  }
  return traces;
}

/**
 * @param {ExplainedSetting} setting
 * @param {number[]} places
 * @param {string} color
 * @param {(index: number) => string} text
 */
function levelTraces(setting, places, color, text) {
  const { y, low, high } = setting.curve;
  return [
    {
      type: "scatter",
      mode: "markers",
      x: places,
      y: places.map((index) => y[index]),
      marker: { color, size: 8 },
      error_y: {
        type: "data",
        symmetric: false,
        color,
        thickness: 1.4,
        width: 4,
        array: places.map((index) => high[index] - y[index]),
        arrayminus: places.map((index) => y[index] - low[index]),
      },
      text: places.map(text),
      hovertemplate: "%{text}<extra></extra>",
    },
  ];
}

/**
 * Lowest and highest value of all curves, so that they can be compared.
 * @param {ExplainedSetting[]} settings
 * @returns {Span}
 */
export function dependenceLimits(settings) {
  const values = settings.flatMap(({ curve }) => [...curve.low, ...curve.high]).filter(isNumber);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = 0.05 * (high - low || 1);
  return [low - pad, high + pad];
}

/**
 * The axes of the parallel coordinates: each has its name, where a value stands (0 to 1), and ticks.
 * @param {ImportanceResult} result
 */
export function parallelAxes({ settings, columns, rows, outcome }) {
  const shown = settings.filter(({ name }) => columns.includes(name)).slice(0, PARALLEL_SETTINGS);
  return [
    ...shown.map((setting) => parallelAxis(setting.name, columns.indexOf(setting.name), rows, setting)),
    parallelAxis(outcome, columns.length - 1, rows, { kind: "number", isLog: false }),
  ];
}

/**
 * @param {string} name
 * @param {number} column
 * @param {Setting[][]} rows
 * @param {{ kind?: string, isLog: boolean }} setting
 * @returns {ParallelAxis}
 */
function parallelAxis(name, column, rows, { kind, isLog }) {
  const values = rows.map((row) => row[column]).filter((value) => value !== null);
  if (kind !== "number") {
    const levels = [...new Set(values.map(String))].sort();
    /** @param {Setting} value */
    const place = (value) =>
      value === null ? PARALLEL_NOT_SET : levels.length > 1 ? levels.indexOf(String(value)) / (levels.length - 1) : 0.5;
    return { name, column, place, ticks: levels.slice(0, 12).map((level) => [place(level), level]) };
  }
  const scale = isLog ? Math.log : (/** @type {number} */ value) => value;
  const numbers = values.filter(isNumber);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  /** @param {Setting} value */
  const place = (value) =>
    !isNumber(value) ? PARALLEL_NOT_SET : high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5;
  const distinct = [...new Set(numbers)];
  const shown = distinct.length <= 6 ? distinct : [low, isLog ? Math.sqrt(low * high) : (low + high) / 2, high];
  return {
    name,
    column,
    place,
    ticks: shown.map((value) => [place(value), chartNumber(Number(value.toPrecision(3)))]),
  };
}

/**
 * Each run as a line over its settings, coloured by its outcome. `chosen` is a set of places in the
 * rows that stand out; null for all.
 * @param {ImportanceResult} importance
 * @param {Set<number> | null} chosen
 * @returns {Picture}
 */
export function parallelPicture(importance, chosen) {
  const axes = parallelAxes(importance);
  const { rows, columns, better } = importance;
  const last = axes[axes.length - 1];
  return (size) => {
    const { colors, width } = size;
    /** @type {number[][]} */
    const bins = Array.from({ length: PARALLEL_COLORS }, () => []);
    /** @type {number[]} */
    const faded = [];
    rows.forEach((row, index) => {
      if (chosen && !chosen.has(index)) faded.push(index);
      else
        bins[
          Math.min(PARALLEL_COLORS - 1, Math.max(0, Math.floor(last.place(row[last.column]) * PARALLEL_COLORS)))
        ].push(index);
    });
    // The best ones are drawn last, and lie on the others.
    /** @type {[number[], string][]} */
    const order = bins.map((indexes, bin) => [indexes, scaleColor((bin + 0.5) / PARALLEL_COLORS)]);
    if (better === "lower") order.reverse();
    const opacity = Math.max(0.25, Math.min(0.9, 60 / Math.max(1, rows.length)));
    /** @param {Setting[]} row */
    const text = (row) =>
      [
        plotText(row[0]),
        ...axes.map(({ name, column }) => `${plotText(name)}: ${plotText(settingText(row[column]))}`),
      ].join("<br>");
    /** @type {[number[], string, number][]} */
    const drawn = [[faded, colors.soft, 0.06]];
    for (const [indexes, color] of order) drawn.push([indexes, color, opacity]);
    const traces = drawn
      .filter(([indexes]) => indexes.length)
      .map(([indexes, color, share]) => parallelTrace(indexes, rows, axes, color, share, text));
    const size12 = { ...plotFont(colors), color: colors.text };
    const space = (width - 80) / Math.max(1, axes.length - 1);
    const letters = Math.max(5, Math.floor(space / 6.2));
    const annotations = axes.flatMap(({ name, ticks }, place) => [
      {
        x: place,
        y: 1.09,
        text: plotText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name),
        showarrow: false,
        font: size12,
        xanchor: "center",
      },
      ...ticks.map(([y, label]) => ({
        x: place,
        y,
        text: plotText(label.slice(0, 12)),
        showarrow: false,
        font: { ...size12, size: 10 },
        bgcolor: plotFade(colors.surface, 0.75),
        xanchor: place === axes.length - 1 ? "right" : "left",
        xshift: place === axes.length - 1 ? -4 : 4,
      })),
    ]);
    return {
      label: `${formatNumber(rows.length)} runs as lines over ${axes
        .slice(0, -1)
        .map(({ name }) => name)
        .join(", ")} and ${columns[columns.length - 1]}`,
      traces,
      layout: importanceLayout(size, {
        margin: { l: 16, r: 16, t: 4, b: 4, pad: 0 },
        annotations,
        dragmode: matchMedia("(pointer: coarse)").matches ? false : "select",
        shapes: axes.map((_, place) => ({
          type: "line",
          x0: place,
          x1: place,
          y0: PARALLEL_NOT_SET,
          y1: 1,
          line: { color: colors.edge, width: 1 },
        })),
        xaxis: { range: [-0.15, axes.length - 0.85], visible: false },
        yaxis: { range: [PARALLEL_NOT_SET - 0.05, 1.16], visible: false },
        selections: [],
        newselection: { line: { color: colors.text, width: 1, dash: "dot" } },
      }),
    };
  };
}

/**
 * @param {number[]} indexes
 * @param {Setting[][]} rows
 * @param {ParallelAxis[]} axes
 * @param {string} color
 * @param {number} opacity
 * @param {(row: Setting[]) => string} text
 */
function parallelTrace(indexes, rows, axes, color, opacity, text) {
  /** @type {Values[]} */
  const [x, y, customdata] = [[], [], []];
  /** @type {string[]} */
  const texts = [];
  for (const index of indexes) {
    const shown = text(rows[index]);
    axes.forEach(({ column, place }, position) => {
      x.push(position);
      y.push(place(rows[index][column]));
      customdata.push(index);
      texts.push(shown);
    });
    x.push(null);
    y.push(null);
    customdata.push(null);
    texts.push("");
  }
  return {
    type: "scatter",
    mode: "lines+markers",
    x,
    y,
    customdata,
    text: texts,
    opacity,
    line: { color, width: 1.2 },
    marker: { color, size: 3 },
    connectgaps: false,
    hovertemplate: "%{text}<extra></extra>",
    selected: { marker: { opacity: 1 } },
    unselected: { marker: { opacity: 1 } },
  };
}

/** @param {number} share */
function scaleColor(share) {
  const at = PLOT_SCALE.findIndex(([place]) => place >= share);
  const [[from, first], [to, second]] = [PLOT_SCALE[Math.max(0, at - 1)], PLOT_SCALE[at]];
  const part = to > from ? (share - from) / (to - from) : 0;
  const mixed = [1, 3, 5].map((start) => {
    const [a, b] = [first, second].map((color) => parseInt(color.slice(start, start + 2), 16));
    return Math.round(a + (b - a) * part)
      .toString(16)
      .padStart(2, "0");
  });
  return `#${mixed.join("")}`;
}
