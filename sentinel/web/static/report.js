// A report: one file with the data of one or several runs. Several are compared, and each has its
// page under ?run=<number>.
import { button, container, element, formatDate, pageElement } from "./dom.js";
import { startComparison } from "./compare_page.js";
import { startPage } from "./run.js";
import { openReport } from "./source.js";
import { restoreAppendChild } from "./charts/plot.js";
import "./sections/insight_drawings.js";
import { createResults, verdictElement } from "./sections/results.js";

const isRunChosen = new URLSearchParams(location.search).has("run");

function startReport() {
  // A prelude keeps style elements of the chart library out of the page; it is loaded now.
  restoreAppendChild();
  // Before the event reaches the charts, which measure their columns.
  preparePrint();
  const { report } = openReport();
  const isComparison = report.comparison !== null && !isRunChosen;
  if (report.comparison && isComparison) startReportedComparison(report, report.comparison);
  else startReportedRun();
  pageElement("topbar").append(
    container(
      "span",
      "row report-tools",
      report.comparison && !isComparison && backLink(),
      button("Print", () => window.print(), "small"),
    ),
  );
  pageElement("page").append(element("p", `Made by sentinel, ${formatDate(report.generated)}`, "soft report-foot"));
  if (location.hash === "#picture") reportHeight();
}

/**
 * @param {Report} report
 * @param {Comparison} comparison
 */
function startReportedComparison(report, comparison) {
  const { axis: own, series, other_axes: others } = comparison;
  /** @param {ComparisonQuery} query */
  const load = async ({ axis = own }) => ({ series: axis === own ? series : (others[axis] ?? {}) });
  startComparison(
    comparison,
    load,
    (_run, index) => `?run=${index}`,
    async (_run, index, path) => {
      const { [path]: answer } = report.runs[index].answers;
      if (!answer) throw new Error("The report has no room for this result.");
      return answer;
    },
  );
}

function startReportedRun() {
  const { run: reported } = openReport();
  const { header } = startPage([() => createResults(reported.results)]);
  header.element.querySelector(".verdict")?.replaceWith(verdictElement(reported));
}

function backLink() {
  const link = element("a", "All runs", "button small");
  link.href = location.pathname;
  return link;
}

// On paper everything is open.
function preparePrint() {
  /** @type {Set<HTMLDetailsElement>} */
  const opened = new Set();
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) {
      if (details.open) continue;
      details.open = true;
      opened.add(details);
    }
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
    opened.clear();
  });
}

// Give the height of the page to the program that takes a picture, once its charts are drawn.
function reportHeight() {
  const observer = new ResizeObserver(() => {
    document.documentElement.dataset.height = String(Math.ceil(document.documentElement.scrollHeight));
  });
  observer.observe(pageElement("page"));
}

startReport();
