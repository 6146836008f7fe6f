// First, last, best and extreme values of each metric, as the report was made.
import {
  container,
  createTable,
  element,
  emptyState,
  formatCount,
  formatNumber,
  verdictClass,
  isNumber,
  textWithCode,
} from "../dom.js";
import { chartText } from "../charts/units.js";

/**
 * @param {ResultRow[]} results
 * @returns {Section}
 */
export function createResults(results) {
  /** @param {string} title */
  const right = (title) => ({ title, className: "right" });
  const table = createTable("Metrics", [
    { title: "Metric", className: "key" },
    right("First"),
    right("Last"),
    right("Best"),
    right("At step"),
    right("Lowest"),
    right("Highest"),
    right("NaN or infinite"),
  ]);
  const known = results.filter(({ last }) => last !== null);
  table.setRows(
    known.map((each) => {
      /**
       * As JSON, a value that is not finite is a text.
       * @param {JsonNumber} value
       */
      const text = (value) => (isNumber(value) || value === null ? chartText(value, each.unit) : "NaN");
      return [
        each.label,
        text(each.first),
        text(each.last),
        each.better ? text(each.best) : "",
        each.better ? formatNumber(each.best_x) : "",
        text(each.min),
        text(each.max),
        each.bad_count ? formatCount(each.bad_count, "value") : "",
      ];
    }),
  );
  table.element.hidden = !known.length;
  const none = emptyState("The run logged no metric.");
  none.hidden = known.length > 0;
  return {
    id: "results",
    title: "Metrics",
    element: container("div", "", table.element, none),
    update: () => {},
    note: () => formatCount(known.length, "metric"),
    urgency: () => 0,
  };
}

/**
 * The verdict in parts: what happened, why, what to do, and how far the run came.
 * @param {ReportedRun} run
 */
export function verdictElement({ verdict, verdict_parts: parts, progress }) {
  const severity = verdictClass(verdict);
  return container(
    "section",
    `report-verdict ${severity}`,
    container("h2", "", element("span", verdict.title, `pill ${severity}`), " ", element("span", verdict.sentence)),
    ...parts.map(([label, text]) => container("p", "", element("strong", `${label}: `), textWithCode("span", text))),
    progress && element("p", progress),
  );
}
