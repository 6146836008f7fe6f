// How the curves of many runs differ: each has its own pair of a colour and a dash, in charts, in
// the legend and in tables. The one that is looked at stays, and the others fade.
import { setAttributes, svgElement } from "../dom.js";

const RUN_COLORS = 8;
// The dash of plotly.js, and that of SVG: the first eight runs are solid lines.
/** @type {[string, string | null][]} */
const RUN_DASHES = [
  ["solid", null],
  ["dash", "6 3"],
  ["dot", "1.5 2.5"],
  ["dashdot", "6 2.5 1.5 2.5"],
];

const RUN_SYMBOLS = ["circle", "diamond", "x-thin-open", "square-open"];

/**
 * The dash of the curve with this number, as plotly.js names it.
 * @param {number} number
 */
export function runDash(number) {
  return RUN_DASHES[Math.floor(number / RUN_COLORS) % RUN_DASHES.length][0];
}

/**
 * What stands for a dash where the points of a curve are marked.
 * @param {number} number
 */
export function runSymbol(number) {
  return RUN_SYMBOLS[Math.floor(number / RUN_COLORS) % RUN_SYMBOLS.length];
}

/**
 * The attributes of a curve with this number in a picture of SVG.
 * @param {number} number
 */
export function runStroke(number) {
  return {
    stroke: `var(--series-${(number % RUN_COLORS) + 1})`,
    "stroke-dasharray": RUN_DASHES[Math.floor(number / RUN_COLORS) % RUN_DASHES.length][1],
  };
}

/**
 * A short line that looks as the curve with this number.
 * @param {number} number
 */
export function runSample(number) {
  const svg = svgElement("svg", { viewBox: "0 0 22 8", class: "run-sample", "aria-hidden": "true" });
  const { stroke, ...dash } = runStroke(number);
  const line = setAttributes(svgElement("line", { x1: 1, y1: 4, x2: 21, y2: 4 }), dash);
  line.style.setProperty("stroke", stroke);
  svg.append(line);
  return svg;
}

/**
 * Let the curves with this number stay in all charts of a page while the others fade; null for none.
 * @param {ChartContext} context
 * @param {number | null} number
 */
export function highlightRun(context, number) {
  if (context.highlighted === number) return;
  context.highlighted = number;
  for (const chart of context.charts.values()) chart.showHighlight?.();
}

/**
 * A name for the traces of a curve, by which they are found in the picture of plotly.js.
 * @param {number} number
 * @param {number} index
 */
export function runTraceId(number, index) {
  return `run${number}-${index}`;
}

/**
 * Fade the curves in a plot that do not have this number; null shows all of them.
 * @param {HTMLElement} plot
 * @param {number | null} number
 */
export function fadeOthers(plot, number) {
  for (const node of plot.querySelectorAll(".scatterlayer > .trace, path[data-run]")) {
    const own = node.getAttribute("data-run") ?? /tracerun(\d+)-/.exec(node.getAttribute("class") ?? "")?.[1];
    node.classList.toggle("faded", number !== null && own !== undefined && Number(own) !== number);
    node.classList.toggle("highlighted", number !== null && Number(own) === number);
  }
}
