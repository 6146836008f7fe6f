// Results of insight in a file of their own: one section for each kind.
import { choice, container, element, formatDate } from "./dom.js";
import { createFrame } from "./frame.js";
import { report, reportedRun, source } from "./source.js";
import { createView } from "./view.js";
import { createInsightSections } from "./sections/insight.js";
import "./sections/insight_drawings.js";

function startInsightPage() {
  // A prelude keeps style elements of the chart library out of the page; it is loaded now.
  delete document.head.appendChild;
  const view = createView();
  const run = { run: reportedRun.name, metadata: {}, ...reportedRun.answers["api/run"] };
  const page = { source, view, run };
  const frame = createFrame(createInsightSections(page));
  page.frame = frame;
  const theme = choice(
    "Theme",
    [
      ["auto", "Auto"],
      ["dark", "Dark"],
      ["light", "Light"],
    ],
    (value) => view.set({ theme: value }),
  );
  theme.value = view.theme;
  document.getElementById("topbar").append(container("div", "name", element("h1", report.title)), theme);
  document
    .getElementById("page")
    .replaceChildren(
      frame.element,
      element("p", `Made by sentinel, ${formatDate(report.generated)}`, "soft report-foot"),
    );
  frame.update(run);
}

startInsightPage();
