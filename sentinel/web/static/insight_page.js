// Results of insight in a file of their own: one section for each kind.
import { container, element, formatDate, pageElement } from "./dom.js";
import { createFrame } from "./frame.js";
import { openReport, source } from "./source.js";
import { createThemeChoice, createView } from "./view.js";
import { restoreAppendChild } from "./charts/plot.js";
import { createInsightSections } from "./sections/insight.js";
import "./sections/insight_drawings.js";

function startInsightPage() {
  // A prelude keeps style elements of the chart library out of the page; it is loaded now.
  restoreAppendChild();
  const view = createView();
  const { report, run: reported } = openReport();
  const run = { run: reported.name, metadata: {}, ...reported.answers["api/run"] };
  const page = /** @type {InsightPage} */ (/** @type {Partial<InsightPage>} */ ({ source, view, run }));
  const frame = createFrame(createInsightSections(page));
  page.frame = frame;
  const theme = createThemeChoice(view);
  pageElement("topbar").append(container("div", "name", element("h1", report.title)), theme);
  pageElement("page").replaceChildren(
    frame.element,
    element("p", `Made by sentinel, ${formatDate(report.generated)}`, "soft report-foot"),
  );
  frame.update(run);
}

startInsightPage();
