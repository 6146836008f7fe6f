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

const caseCurveElements = new Map();
let signalFacts = null;

// The steps of a case, with some before and after it.
export function rangeOfCase({ onset_step: onset, opened_step: opened, resolved_step: resolved }, run) {
  const end = resolved ?? Math.max(opened ?? onset, run?.step ?? onset);
  const margin = Math.max(CASE_MIN_MARGIN, Math.round(CASE_MARGIN * (end - onset)));
  return [Math.max(0, onset - margin), Math.min(end + (resolved ? margin : 0), run?.step ?? end)];
}

// The curves of a case with these incidents; the same element each time, so that it stays drawn.
export function caseCurves(page, openCase, incidents) {
  const names = openCase.incidents ?? [openCase.name];
  const signals = [
    ...new Set(names.map((name) => incidents.find((each) => each.name === name)?.signal).filter(Boolean)),
  ];
  if (!signals.length) return null;
  if (!caseCurveElements.has(openCase.name)) {
    caseCurveElements.set(openCase.name, { node: element("div", "", "case-curves"), key: "", loadedAt: 0 });
  }
  const entry = caseCurveElements.get(openCase.name);
  const key = JSON.stringify([signals, openCase.severity, openCase.onset_step, openCase.resolved_step]);
  const isDue =
    Date.now() / 1000 - entry.loadedAt > CASE_REFRESH_SECONDS && entry.step !== page.run?.step && !openCase.resolution;
  if (key !== entry.key || isDue) {
    Object.assign(entry, { key, loadedAt: Date.now() / 1000, step: page.run?.step });
    loadCaseCurves(page, entry.node, openCase, signals.slice(0, CASE_SIGNALS));
  }
  return entry.node;
}

async function loadCaseCurves(page, node, openCase, signals) {
  const [from, to] = rangeOfCase(openCase, page.run);
  const query = new URLSearchParams([
    ...signals.map((name) => ["signals", name]),
    ["points", CASE_POINTS],
    ["from", from],
    ["to", to],
  ]);
  try {
    signalFacts ??= page.source.getJson("api/signals");
    const [facts, { series }] = await Promise.all([signalFacts, page.source.getJson(`api/series?${query}`)]);
    const known = new Map(facts.map((signal) => [signal.name, signal]));
    node.replaceChildren(
      ...signals
        .filter((name) => series[name]?.x.length > 1)
        .map((name) => caseCurve(page, openCase, known.get(name) ?? { name }, series[name], [from, to])),
    );
  } catch {
    // The charts show why the curves are missing.
    signalFacts = null;
    if (!page.source.isReport)
      setTimeout(() => node.isConnected && loadCaseCurves(page, node, openCase, signals), CASE_RETRY_MS);
  }
}

// One curve, which leads to its chart.
function caseCurve(page, openCase, { name, label = name, unit }, { x, mean, bad, last }, range) {
  const before = mean.filter((value, index) => isNumber(value) && x[index] < openCase.onset_step).sort((a, b) => a - b);
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

// The part since the onset is tinted.
function caseCurveDrawing(x, values, [from, to], { onset_step: onset, resolved_step: resolved }) {
  const [width, height] = CASE_CURVE_SIZE;
  const known = values.filter(isNumber);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const place = (step) => (width * (Math.min(to, Math.max(from, step)) - from)) / (to - from || 1);
  const level = (value) => height - 2 - ((value - low) / (high - low || 1)) * (height - 4);
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
