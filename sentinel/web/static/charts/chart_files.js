// A chart as a file: a picture, or the points of the shown range as CSV.
import { element, errorMessage, isNumber, showToast } from "../dom.js";
import { joinByStep } from "./horizontal_axis.js";
import { plotColors, plotFade, plotText } from "./plot.js";
import { seriesPoints } from "./series.js";

const FILE_PICTURE_SIZE = { width: 960, height: 540 };
const FILE_PICTURE_SCALE = 2;
// What a request returns at most of one signal.
const FILE_MAX_POINTS = 5000;
const FILE_MAX_NAME_CHARS = 80;
/** @type {Record<string, string>} */
const FILE_AXES = {
  step: "step",
  time: "time (UTC)",
  tokens: "tokens",
  hours: "hours from the start of each run",
};

/**
 * What the menu of a chart offers: [text, action].
 * @param {Chart} chart
 * @returns {[string, () => void][]}
 */
export function chartFiles(chart) {
  /** @param {(chart: Chart) => Promise<void>} write */
  const save = (write) => async () => {
    try {
      await write(chart);
    } catch (error) {
      showToast(`The file could not be made: ${errorMessage(error)}`);
    }
  };
  /** @type {[string, () => void][]} */
  const pictures = [
    ["PNG picture", save((each) => savePicture(each, "png"))],
    ["SVG picture", save((each) => savePicture(each, "svg"))],
  ];
  return [...(chart.context.plotly ? pictures : []), ["CSV of the shown range", save(saveCsv)]];
}

/**
 * @param {Chart} chart
 * @param {"png" | "svg"} format
 */
async function savePicture(chart, format) {
  const { plotly } = chart.context;
  if (!plotly) throw new Error("The chart library is not loaded.");
  const colors = lightColors();
  const figure = chart.figure({ ...FILE_PICTURE_SIZE, colors });
  if (!figure) throw new Error("The chart has no value.");
  const layout = pictureLayout(chart, figure, colors);
  const text = await plotly.toImage(
    { data: figure.traces, layout, config: {} },
    { format, ...FILE_PICTURE_SIZE, scale: format === "png" ? FILE_PICTURE_SCALE : 1, imageDataOnly: true },
  );
  const body =
    format === "svg" ? new Blob([text], { type: "image/svg+xml" }) : new Blob([bytesOf(text)], { type: "image/png" });
  download(`${fileName(chart)}.${format}`, body);
}

// Pictures are for paper and other pages: light, whatever the theme of this page is.
function lightColors() {
  const root = document.documentElement;
  const theme = root.getAttribute("data-theme");
  root.setAttribute("data-theme", "light");
  const colors = plotColors();
  if (theme === null) root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", theme);
  return colors;
}

/**
 * The layout of a chart with a title, titles of its axes, and a legend.
 * @param {Chart} chart
 * @param {{ traces: PlotTrace[], layout: PlotLayout, unit: string }} figure
 * @param {PlotColors} colors
 */
function pictureLayout({ title, context }, { traces, layout, unit }, colors) {
  const font = { family: "system-ui, sans-serif", size: 14, color: colors.text };
  const { isLog, smoothing } = context.view;
  const details = [
    runTitle(context),
    smoothing > 0 && `smoothing ${smoothing}`,
    isLog && layout.yaxis.type === "log" && "logarithmic scale",
  ].filter(Boolean);
  const named = traces.filter(({ name, showlegend }) => name && showlegend !== false);
  return {
    ...layout,
    font,
    width: FILE_PICTURE_SIZE.width,
    height: FILE_PICTURE_SIZE.height,
    paper_bgcolor: colors.surface,
    plot_bgcolor: colors.surface,
    margin: { l: 80, r: 30, t: 76, b: 64 },
    title: {
      text: plotText(title),
      x: 0,
      xref: "paper",
      xanchor: "left",
      y: 1,
      yref: "container",
      yanchor: "top",
      pad: { t: 20 },
      font: { ...font, size: 20 },
    },
    showlegend: true,
    legend: {
      orientation: named.length > 5 ? "v" : "h",
      x: named.length > 5 ? 1.01 : 1,
      xanchor: named.length > 5 ? "left" : "right",
      y: named.length > 5 ? 1 : 1.02,
      yanchor: named.length > 5 ? "top" : "bottom",
      font: { ...font, size: 13 },
      bgcolor: plotFade(colors.surface, 0.8),
    },
    xaxis: {
      ...layout.xaxis,
      title: { text: plotText(axisTitle(context)), font, standoff: 10 },
      tickfont: { ...font, size: 13 },
      showline: true,
      linecolor: colors.edge,
    },
    yaxis: {
      ...layout.yaxis,
      title: { text: plotText(unit ? `${title} (${unit})` : title), font, standoff: 12 },
      tickfont: { ...font, size: 13 },
      showline: true,
      linecolor: colors.edge,
    },
    annotations: [
      ...layout.annotations
        .filter((/** @type {PlotLayout} */ { name }) => name !== "axis title")
        .map((/** @type {PlotLayout} */ each) => ({ ...each, font: { ...each.font, size: 12 } })),
      {
        text: plotText(details.join(", ")),
        x: 0,
        xref: "paper",
        xanchor: "left",
        y: 1,
        yref: "paper",
        yanchor: "bottom",
        yshift: 6,
        showarrow: false,
        font: { ...font, size: 13, color: colors.soft },
      },
    ],
  };
}

/** @param {ChartContext} context */
function axisTitle(context) {
  return FILE_AXES[context.store.axis] ?? context.axisLabel();
}

/** @param {ChartContext} context */
function runTitle({ page }) {
  return page.run ? page.run.name || page.run.run : "";
}

/**
 * All records of the shown range, or means of them where they are too many for one answer.
 * @param {Chart} chart
 */
async function saveCsv(chart) {
  const { context, names, signals, title } = chart;
  const { store, source } = context;
  const range = context.shownRange();
  if (!range) throw new Error("The shown range has no value.");
  const axisName = store.axisSignal;
  const stored = context.view.range && store.storedRange(context.view.range);
  const query = new URLSearchParams(
    [...new Set(axisName === null ? names : names.flatMap((name) => [name, store.axisCurve(name)]))]
      .map((name) => ["signals", name])
      .concat([
        ["points", String(FILE_MAX_POINTS)],
        ["axis", store.storedAxis],
        ["exact", "1"],
        ...(stored
          ? [
              ["from", String(stored[0])],
              ["to", String(stored[1])],
            ]
          : []),
      ]),
  );
  /** @type {SeriesAnswers} */
  const { series } = await source.getJson(`api/series?${query}`);
  const curves = names.flatMap((name) => {
    const answer = series[name];
    if (!answer) return [];
    const points = seriesPoints(answer);
    const positions = series[store.axisCurve(name)] ?? { x: [], mean: [] };
    return [{ name, points: axisName === null ? points : joinByStep(points, positions) }];
  });
  const isMean = curves.some(({ points }) => !points.isRaw);
  const hasRanks = curves.some(({ points }) => points.rank_max.some((value) => value !== null));
  const hasAttempts = curves.some(({ points }) => points.attempt.some((attempt) => attempt !== points.attempt[0]));
  const isSingle = signals.length === 1 && !signals[0].legend;
  const unit = signals[0].unit ? ` [${signals[0].unit}]` : "";
  const name = isSingle ? names[0] : title;
  const head = [
    ...(isSingle ? [] : [signals[0].legend ? "run" : "device"]),
    ...(hasAttempts ? ["attempt"] : []),
    ...(axisName === null ? [] : ["step"]),
    store.axis === "time"
      ? "time [UTC]"
      : axisName === null
        ? store.axis
        : `${axisName}${context.signalUnit(axisName) && ` [${context.signalUnit(axisName)}]`}`,
    ...(isMean ? [`${name} mean${unit}`, `${name} min${unit}`, `${name} max${unit}`] : [`${name}${unit}`]),
    ...(hasRanks ? [`lowest rank${unit}`, `highest rank${unit}`, "worst rank"] : []),
  ];
  const rows = curves.flatMap(({ name: curve, points }) =>
    points.x.flatMap((x, index) =>
      x < range[0] || x > range[1]
        ? []
        : [
            [
              ...(isSingle ? [] : [chart.legends.get(curve)]),
              ...(hasAttempts ? [points.attempt[index]] : []),
              ...(axisName === null ? [] : [points.step?.[index]]),
              store.axis === "time" ? new Date(x * 1000).toISOString() : x,
              points.mean[index] ?? "NaN",
              ...(isMean ? [points.min[index] ?? "NaN", points.max[index] ?? "NaN"] : []),
              ...(hasRanks ? [points.rank_min[index], points.rank_max[index], points.worst_rank[index]] : []),
            ],
          ],
    ),
  );
  if (!rows.length) throw new Error("The shown range has no value.");
  const text = [head, ...rows].map((cells) => cells.map(csvCell).join(",")).join("\r\n");
  download(`${fileName(chart)}.csv`, new Blob([`${text}\r\n`], { type: "text/csv" }));
  if (isMean)
    showToast(
      "The range has too many records for one file: its rows are means of several. A smaller range has the records.",
    );
}

/**
 * A text that a spreadsheet would take for a formula begins with an apostrophe.
 * @param {Cell} value
 */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (isNumber(value)) return String(value);
  const plain = String(value);
  const text = /^[=+\-@\t]/.test(plain) ? `'${plain}` : plain;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {Chart} chart */
function fileName({ names, title, signals, context }) {
  const chart = signals.length > 1 || signals[0].legend ? title : names[0];
  return [runTitle(context), chart]
    .filter(Boolean)
    .join("-")
    .replace(/[^\p{L}\p{N}._-]+/gu, "-")
    .slice(0, FILE_MAX_NAME_CHARS);
}

/** @param {string} base64 */
function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/**
 * @param {string} name
 * @param {Blob} body
 */
function download(name, body) {
  const link = element("a");
  link.href = URL.createObjectURL(body);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
