// A small curve as SVG, for pages without plotly.js and for lists.
import { setAttributes, svgElement } from "../dom.js";
import { runStroke } from "./run_lines.js";

/**
 * The curve of `values`, with gaps for null, and with the range between `low` and `high` behind it.
 * @param {Values} values
 * @param {{ width?: number, height?: number, low?: Values | null, high?: Values | null }} [size]
 */
export function sparkline(values, { width = 120, height = 28, low = null, high = null } = {}) {
  const known = [...values, ...(low || []), ...(high || [])].filter((value) => typeof value === "number");
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "sparkline",
    "aria-hidden": "true",
    preserveAspectRatio: "none",
  });
  if (!known.length) return svg;
  let [bottom, top] = [Infinity, -Infinity];
  for (const value of known) [bottom, top] = [Math.min(bottom, value), Math.max(top, value)];
  /** @param {number} index */
  const x = (index) => ((index / Math.max(1, values.length - 1)) * (width - 2) + 1).toFixed(1);
  /** @param {number} value */
  const y = (value) => (height - 2 - ((value - bottom) / (top - bottom || 1)) * (height - 4)).toFixed(1);
  if (low && high) {
    const shown = values.map((_, index) => index).filter((index) => low[index] !== null && high[index] !== null);
    const points = [
      ...shown.map((index) => `${x(index)},${y(high[index] ?? NaN)}`),
      ...shown.reverse().map((index) => `${x(index)},${y(low[index] ?? NaN)}`),
    ];
    svg.append(svgElement("polygon", { points: points.join(" "), class: "band" }));
  }
  const path = values
    .map((value, index) =>
      typeof value === "number" ? `${typeof values[index - 1] === "number" ? "L" : "M"}${x(index)} ${y(value)}` : "",
    )
    .join("");
  svg.append(svgElement("path", { d: path, "vector-effect": "non-scaling-stroke" }));
  return svg;
}

/**
 * Several curves over one axis: each has positions in `x`, `values` and the `number` of its colour.
 * @param {SparkCurve[]} curves
 * @param {{ width: number, height: number, range: Span, extent: Span }} size
 */
export function sparklineSet(curves, { width, height, range, extent }) {
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "sparkline",
    "aria-hidden": "true",
    preserveAspectRatio: "none",
  });
  /** @param {number} value */
  const x = (value) => (((value - range[0]) / (range[1] - range[0] || 1)) * (width - 2) + 1).toFixed(1);
  /** @param {number} value */
  const y = (value) => (height - 2 - ((value - extent[0]) / (extent[1] - extent[0] || 1)) * (height - 4)).toFixed(1);
  for (const curve of curves) {
    const path = curve.values
      .map((value, index) =>
        typeof value === "number"
          ? `${typeof curve.values[index - 1] === "number" ? "L" : "M"}${x(curve.x[index])} ${y(value)}`
          : "",
      )
      .join("");
    const { stroke, ...dash } = runStroke(curve.number);
    const part = setAttributes(
      svgElement("path", { d: path, "vector-effect": "non-scaling-stroke", "data-run": curve.number }),
      dash,
    );
    part.style.setProperty("stroke", stroke);
    svg.append(part);
  }
  return svg;
}
