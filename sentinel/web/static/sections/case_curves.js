// Small curves of the signals of a case around its onset, beside its evidence.
import { container, element, isNumber, setAttributes, severityClass, svgElement } from "../dom.js";
import { seriesLast } from "../charts/series.js";
import { chartNumber, chartUnit } from "../charts/units.js";

const CASE_SIGNALS = 4;
const CASE_POINTS = 120;
const CASE_CURVE_SIZE = [300, 46];
const CASE_REFRESH_SECONDS = 10;
const CASE_RETRY_MS = 5000;
// Steps before the onset, as a share of those since then, and at least.
const CASE_MARGIN = 0.6;
const CASE_MIN_MARGIN = 30;

/** @type {Map<string, { node: HTMLElement, key: string, loadedAt: number, step?: number | null }>} */
const caseCurveElements = new Map();
/** @type {Promise<Signal[]> | null} */
let signalFacts = null;

/**
 * The steps of a case, with some before and after it.
 * @param {CaseSteps} steps
 * @param {RunState | null} run
 * @returns {Span}
 */
export function rangeOfCase({ onset_step: onset, opened_step: opened, resolved_step: resolved }, run) {
  const end = resolved ?? Math.max(opened ?? onset, run?.step ?? onset);
  const margin = Math.max(CASE_MIN_MARGIN, Math.round(CASE_MARGIN * (end - onset)));
  return [Math.max(0, onset - margin), Math.min(end + (resolved ? margin : 0), run?.step ?? end)];
}

/**
 * The curves of a case with these incidents; the same element each time, so that it stays drawn.
 * @param {Page} page
 * @param {Case} openCase
 * @param {Incident[]} incidents
 */
export function caseCurves(page, openCase, incidents) {
  const names = openCase.incidents ?? [openCase.name];
  const signals = [...new Set(names.flatMap((name) => incidents.find((each) => each.name === name)?.signal || []))];
  if (!signals.length) return null;
  const known = caseCurveElements.get(openCase.name);
  const entry = known ?? { node: element("div", "", "case-curves"), key: "", loadedAt: 0, step: null };
  if (!known) caseCurveElements.set(openCase.name, entry);
  const key = JSON.stringify([signals, openCase.severity, openCase.onset_step, openCase.resolved_step]);
  const isDue =
    Date.now() / 1000 - entry.loadedAt > CASE_REFRESH_SECONDS && entry.step !== page.run?.step && !openCase.resolution;
  if (key !== entry.key || isDue) {
    Object.assign(entry, { key, loadedAt: Date.now() / 1000, step: page.run?.step });
    loadCaseCurves(page, entry.node, openCase, signals.slice(0, CASE_SIGNALS));
  }
  return entry.node;
}

/**
 * @param {Page} page
 * @param {HTMLElement} node
 * @param {Case} openCase
 * @param {string[]} signals
 */
async function loadCaseCurves(page, node, openCase, signals) {
  const [from, to] = rangeOfCase(openCase, page.run);
  const query = new URLSearchParams([
    ...signals.map((name) => ["signals", name]),
    ["points", String(CASE_POINTS)],
    ["from", String(from)],
    ["to", String(to)],
  ]);
  try {
    signalFacts ??= page.source.getJson("api/signals");
    /** @type {[Signal[], SeriesAnswers]} */
    const [facts, { series }] = await Promise.all([signalFacts ?? [], page.source.getJson(`api/series?${query}`)]);
    const known = new Map(facts.map((signal) => [signal.name, signal]));
    node.replaceChildren(
      ...signals.flatMap((name) => {
        const curve = series[name];
        return curve && curve.x.length > 1
          ? [caseCurve(page, openCase, known.get(name) ?? { name }, curve, [from, to])]
          : [];
      }),
    );
  } catch {
    // The charts show why the curves are missing.
    signalFacts = null;
    if (!page.source.isReport)
      setTimeout(() => node.isConnected && loadCaseCurves(page, node, openCase, signals), CASE_RETRY_MS);
  }
}

/**
 * One curve, which leads to its chart.
 * @param {Page} page
 * @param {Case} openCase
 * @param {ChartSignal} signal
 * @param {SeriesAnswer} curve
 * @param {Span} range
 */
function caseCurve(page, openCase, { name, label = name, unit }, { x, mean, bad, last }, range) {
  const before = mean
    .filter((_, index) => x[index] < openCase.onset_step)
    .filter(isNumber)
    .sort((a, b) => a - b);
  // A case that lasts is judged by the newest value itself, the end of an earlier one by its interval.
  const isLasting = (openCase.resolved_step ?? Infinity) >= (page.run?.step ?? Infinity);
  const end = seriesLast({ x, mean, bad, ...(isLasting && { last }) });
  const values = [before.length ? before[Math.floor(before.length / 2)] : null, end].filter(isNumber);
  const { factor, name: unitName } = chartUnit(unit, Math.max(...values.map(Math.abs)));
  const numbers = values.map((value) => chartNumber(value * factor));
  const text = !isNumber(end)
    ? [before.length ? `${numbers[0]} ${unitName}`.trim() : "", "NaN or infinite"].filter(Boolean).join(" → ")
    : `${numbers.join(" → ")} ${unitName}`.trim();
  const node = setAttributes(element("button", "", `case-curve ${severityClass(openCase)}`), { type: "button" });
  node.title = "Show in charts";
  node.append(
    container("span", "row", element("span", label), element("span", text, "end number")),
    caseCurveDrawing(x, mean, range, openCase),
  );
  node.addEventListener("click", () => {
    page.view.set({ axis: "step", range: rangeOfCase(openCase, page.run) });
    page.reveal("curves");
    document.querySelector(`[data-chart="${CSS.escape(name)}"]`)?.scrollIntoView({ block: "center" });
  });
  return node;
}

/**
 * The part since the onset is tinted.
 * @param {number[]} x
 * @param {Values} values
 * @param {Span} range
 * @param {CaseSteps} steps
 */
function caseCurveDrawing(x, values, [from, to], { onset_step: onset, resolved_step: resolved }) {
  const [width, height] = CASE_CURVE_SIZE;
  const known = values.filter(isNumber);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  /** @param {number} step */
  const place = (step) => (width * (Math.min(to, Math.max(from, step)) - from)) / (to - from || 1);
  // A constant is in the middle.
  /** @param {number} value */
  const level = (value) => height - 2 - (high > low ? (value - low) / (high - low) : 0.5) * (height - 4);
  const path = values
    .map((value, index) =>
      isNumber(value)
        ? `${isNumber(values[index - 1]) ? "L" : "M"}${place(x[index]).toFixed(1)} ${level(value).toFixed(1)}`
        : "",
    )
    .join("");
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const start = place(onset);
  svg.append(
    svgElement("rect", { x: start, y: 0, width: Math.max(1, place(resolved ?? to) - start), height }),
    svgElement("path", { d: path, "vector-effect": "non-scaling-stroke" }),
  );
  return svg;
}
