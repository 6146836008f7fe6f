// Units of charts: the factor and the name under which the values of a signal are shown.
import { formatTime } from "../dom.js";
import { axisSignal } from "./horizontal_axis.js";

/** @type {Record<string, [number, string][]>} */
const CHART_PREFIXES = {
  seconds: [
    [1e-6, "µs"],
    [1e-3, "ms"],
    [1, "s"],
    [60, "min"],
    [3600, "h"],
  ],
  bytes: [
    [1, "B"],
    [2 ** 10, "KiB"],
    [2 ** 20, "MiB"],
    [2 ** 30, "GiB"],
    [2 ** 40, "TiB"],
  ],
  bytes_per_second: [
    [1, "B/s"],
    [1e3, "kB/s"],
    [1e6, "MB/s"],
    [1e9, "GB/s"],
  ],
};
/** @type {[number, string][]} */
const CHART_SHORT_PREFIXES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
/** @type {Record<string, string>} */
const CHART_UNIT_NAMES = { ratio: "%", watts: "W", celsius: "°C", tokens_per_second: "tokens/s" };

// What a position on an axis counts; runs are compared over hours from their starts.
/** @type {Record<string, string>} */
export const CHART_AXIS_NOUNS = { step: "step", tokens: "token", hours: "hour" };

/**
 * How values of a unit are shown if the largest of them is `largest`: { factor, name }.
 * @param {string | undefined} unit
 * @param {number} largest
 */
export function chartUnit(unit, largest) {
  const prefixes = CHART_PREFIXES[unit ?? ""];
  if (prefixes) {
    // Ten times the next prefix, so that 90 s is not 1.5 min.
    const enough = unit === "seconds" ? 3 : 1;
    const fitting = prefixes.filter(([size]) => largest >= size * (size > 1 ? enough : 1));
    const [size, name] = fitting[fitting.length - 1] || prefixes[unit === "seconds" ? 2 : 0];
    return { factor: 1 / size, name };
  }
  if (unit === "ratio") return { factor: 100, name: "%" };
  return { factor: 1, name: CHART_UNIT_NAMES[unit ?? ""] || (unit || "").replaceAll("_", " ") };
}

/**
 * The name of a unit whose values are shown as they are.
 * @param {string | undefined} unit
 */
export function chartUnitName(unit) {
  const name = unit === "ratio" ? "" : CHART_UNIT_NAMES[unit ?? ""];
  return name || (unit || "").replaceAll("_", " ");
}

/**
 * A number with four significant digits, as short as it can be: 0.25, 12,345, 1.3e-5.
 * @param {unknown} value
 */
export function chartNumber(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) {
    return value
      .toExponential(2)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  }
  if (size >= 1000) return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
  return String(Number(value.toPrecision(4)));
}

/**
 * A large round number with the prefix of its size: 20M, 1.5G.
 * @param {number} value
 */
export function chartShortNumber(value) {
  const [size, prefix] = CHART_SHORT_PREFIXES.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${Number((value / size).toPrecision(4))}${prefix}`;
}

/**
 * A value of a signal with its unit.
 * @param {number | null} value
 * @param {string} unit
 */
export function chartText(value, unit) {
  const { factor, name } = chartUnit(unit, Math.abs(value || 0));
  const number = chartNumber(typeof value === "number" ? value * factor : value);
  return number && name ? `${number} ${name}` : number;
}

/**
 * A position on the axis of charts.
 * @param {number} value
 * @param {string} axis
 */
export function chartPosition(value, axis) {
  if (axis === "time") return formatTime(value);
  return `${CHART_AXIS_NOUNS[axis] ?? axisSignal(axis)} ${chartNumber(value)}`;
}
