// Loads plotly.js, and draws with the colours of the page.
import { axisSignal } from "./horizontal_axis.js";
import { CHART_AXIS_NOUNS, chartNumber, chartShortNumber } from "./units.js";

const PLOT_CONFIG = {
  displayModeBar: false,
  doubleClick: false,
  showTips: false,
  responsive: false,
  scrollZoom: false,
  // By default four pixels are drawn for each, which takes half a second without a GPU.
  plotGlPixelRatio: Math.min(2, Math.max(1, devicePixelRatio)),
};
// Cividis: even in lightness, and the same for people who see few colours.
/** @type {ColorScale} */
export const PLOT_SCALE = [
  [0, "#00224e"],
  [0.25, "#35456c"],
  [0.5, "#7c7b78"],
  [0.75, "#bcae6c"],
  [1, "#fee838"],
];
export const PLOT_MARGIN = { l: 52, r: 12, t: 8, b: 24, pad: 0 };

/** @type {Promise<Plotly | null> | null} */
let plotLoading = null;

// The library, once it is loaded; null if the server does not have it.
export function loadPlotly() {
  plotLoading ??= globalThis.Plotly ? Promise.resolve(globalThis.Plotly) : plotLoad();
  return plotLoading;
}

// plotly.js adds its rules to the style sheet with this id. In an element of its own the content
// security policy would refuse them; rules that a script inserts into an existing sheet are allowed.
// Other style elements, which are for maps, are dropped.
/** @returns {Promise<Plotly | null>} */
function plotLoad() {
  const page = document.querySelector("script[type=module][src]");
  const style = document.querySelector("link[rel=stylesheet], style");
  if (!(page instanceof HTMLScriptElement) || !style) return Promise.resolve(null);
  style.id = "plotly.js-style-global";
  const script = document.createElement("script");
  script.src = new URL("plotly.min.js", page.src).href;
  const { head } = document;
  return new Promise((resolve) => {
    const finish = () => {
      restoreAppendChild();
      resolve(globalThis.Plotly || null);
    };
    script.addEventListener("load", finish);
    script.addEventListener("error", finish);
    head.appendChild(script);
    head.appendChild = (node) => {
      if (document.currentScript !== script || !(node instanceof HTMLStyleElement))
        Node.prototype.appendChild.call(head, node);
      return node;
    };
  });
}

/** The `appendChild` of the head is that of every node again. */
export function restoreAppendChild() {
  Reflect.deleteProperty(document.head, "appendChild");
}

/**
 * The font of the texts in charts.
 * @param {PlotColors} colors
 */
export function plotFont(colors) {
  return { color: colors.soft, size: 11, family: "system-ui, sans-serif" };
}

/**
 * What the layouts of all pictures have in common.
 * @param {PlotSize} size
 * @returns {PlotLayout}
 */
export function plotBase({ width, height, colors }) {
  const font = plotFont(colors);
  return {
    width,
    height,
    autosize: false,
    showlegend: false,
    hovermode: "closest",
    dragmode: false,
    font,
    hoverlabel: {
      bgcolor: colors.surface,
      bordercolor: colors.edge,
      font: { ...font, color: colors.text },
      align: "left",
      namelength: -1,
    },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
  };
}

/**
 * Lowest and highest of the values that are numbers, and of a range that is known already; null without any.
 * @param {(number | null | undefined)[]} values
 * @param {Span | null} [known]
 * @returns {Span | null}
 */
export function plotExtent(values, known = null) {
  let [low, high] = known ?? [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

// The colours of charts, from the design tokens of the page's style sheet.
export function plotColors() {
  const style = getComputedStyle(document.documentElement);
  /** @param {string} name */
  const token = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    series: [1, 2, 3, 4, 5, 6, 7, 8].map((number) => token(`series-${number}`)),
    text: token("text"),
    soft: token("soft"),
    edge: token("line"),
    grid: token("grid"),
    surface: token("surface"),
    threshold: token("series-2"),
    save: token("good"),
    critical: token("bad"),
    warning: token("warn"),
    info: token("info"),
  };
}

/**
 * A colour of the form #rrggbb with an opacity.
 * @param {string} color
 * @param {number} opacity
 */
export function plotFade(color, opacity) {
  const value = parseInt(color.slice(1), 16);
  return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${opacity})`;
}

/**
 * Names come from training code; plotly.js reads some HTML in its texts.
 * @param {Setting} text
 */
export function plotText(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "% {");
}

/**
 * The position of plotly.js, which has milliseconds and shows UTC.
 * @param {number} value
 * @param {string} axis
 */
export function plotX(value, axis) {
  return axis === "time" ? value * 1000 : value;
}

/**
 * The inverse of `plotX`, for what plotly.js reports of a zoom.
 * @param {number | string} position
 * @param {string} axis
 */
export function plotValue(position, axis) {
  if (axis !== "time") return Number(position);
  return (typeof position === "number" ? position : Date.parse(`${position.replace(" ", "T")}Z`)) / 1000;
}

/**
 * One line for each tick: plotly.js would write dates below times.
 * @param {number} seconds
 */
function plotTimeFormat(seconds) {
  if (seconds < 600) return "%H:%M:%S";
  if (seconds < 86400) return "%H:%M";
  return seconds < 6 * 86400 ? "%d %b %H:%M" : "%d %b";
}

/**
 * Round positions of ticks, none of whose labels is cut off at the right. plotly.js finds such ones
 * too, by measuring every label.
 * @param {Span} range
 * @param {number} width
 * @param {boolean} isFine
 */
function plotTicks([start, end], width, isFine) {
  const pixel = (end - start) / Math.max(1, width - PLOT_MARGIN.l - PLOT_MARGIN.r);
  const rough = (end - start) / Math.max(2, Math.floor(width / 75));
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = Math.max(
    isFine ? 0 : 1,
    ([1, 2, 2.5, 5, 10].find((digit) => digit * power >= rough && (isFine || power > 1 || digit !== 2.5)) ?? 10) *
      power,
  );
  const tickvals = [];
  for (let tick = Math.ceil(start / size) * size; tick <= end; tick += size)
    tickvals.push(Number(tick.toPrecision(12)));
  const ticktext = tickvals.map((tick) => {
    const text = end > 2e6 && size >= 1000 ? chartShortNumber(tick) : chartNumber(tick);
    return (end - tick) / pixel + PLOT_MARGIN.r < 3.4 * text.length ? "" : text;
  });
  return { tickvals, ticktext };
}

/**
 * The layout of a chart over `range` of an axis; values of `axes` replace its own.
 * @param {PlotSize & { axis: string, range: Span, yaxis: PlotLayout, shapes?: PlotLayout[] }} chart
 * @returns {PlotLayout}
 */
export function plotLayout({ width, height, axis, range, colors, yaxis, shapes = [] }) {
  const span = range[1] - range[0];
  const line = { gridcolor: colors.grid, zeroline: false, showline: false, ticks: "", automargin: false };
  const isFine = axis === "hours" || axisSignal(axis) !== null;
  return {
    ...plotBase({ width, height, colors }),
    shapes,
    margin: PLOT_MARGIN,
    hovermode: "x unified",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: {
      ...line,
      ticklabeloverflow: axis === "time" ? "hide past div" : "allow",
      showgrid: false,
      range: range.map((value) => plotX(value, axis)),
      autorange: false,
      type: axis === "time" ? "date" : "linear",
      ...(axis === "time"
        ? { tickformat: plotTimeFormat(span), nticks: Math.max(2, Math.floor(width / (span > 86400 ? 110 : 65))) }
        : plotTicks(range, width, isFine)),
      showspikes: false,
      unifiedhovertitle: {
        text:
          axis === "time"
            ? "%{x|%Y-%m-%d %H:%M:%S} UTC"
            : `${CHART_AXIS_NOUNS[axis] ?? "step"} %{x:${isFine ? ".3~f" : ",d"}}`,
      },
    },
    yaxis: { ...line, ticklabeloverflow: "allow", fixedrange: true, nticks: 5, ...yaxis },
  };
}

/**
 * Vertical lines at these positions, up to a share of the height, as one shape.
 * @param {number[]} positions
 * @param {string} axis
 * @param {number} top
 * @param {{ color: string, width: number, dash?: string }} line
 */
export function plotLines(positions, axis, top, line) {
  /**
   * Inside a path dates are written out, with _ instead of the space.
   * @param {number} x
   */
  const written = (x) => (axis === "time" ? new Date(x).toISOString().slice(0, -1).replace("T", "_") : x);
  const path = positions.map((x) => `M${written(x)},0L${written(x)},${top}`).join("");
  return { type: "path", layer: top === 1 ? "below" : "above", yref: "paper", path, line };
}

/**
 * @param {Plotly} plotly
 * @param {HTMLElement} element
 * @param {PlotTrace[]} traces
 * @param {PlotLayout} layout
 */
export function plotDraw(plotly, element, traces, layout) {
  return plotly.react(element, traces, layout, PLOT_CONFIG);
}
