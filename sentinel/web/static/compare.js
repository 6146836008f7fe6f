// The page that compares the runs of its address: ?run=a&run=b.
import { container, element, emptyState, encodeName, errorMessage, pageElement, setAttributes } from "./dom.js";
import { startComparison } from "./compare_page.js";
import { getJson } from "./source.js";

/** @param {ComparisonQuery} [query] */
function comparePath({ axis = "step", signals = [], start = null, end = null, points = null } = {}) {
  const query = new URLSearchParams();
  for (const run of new URLSearchParams(location.search).getAll("run")) query.append("run", run);
  query.set("axis", axis);
  for (const signal of signals) query.append("signals", signal);
  if (start !== null) query.set("from", String(start));
  if (end !== null) query.set("to", String(end));
  if (points !== null) query.set("points", String(points));
  return `api/compare?${query}`;
}

async function startComparePage() {
  const page = pageElement("page");
  const runs = new URLSearchParams(location.search).getAll("run");
  const list = setAttributes(element("a", "Runs", "crumb"), { href: "./" });
  pageElement("topbar").replaceChildren(container("div", "name", list, element("h1", "Comparison")));
  if (!runs.length) {
    page.replaceChildren(emptyState("No run is chosen. Choose two or more in the list of runs, and compare them."));
    return;
  }
  page.replaceChildren(element("p", "Loading the runs.", "soft"));
  try {
    const comparison = await getJson(comparePath());
    startComparison(
      comparison,
      (query) => getJson(comparePath(query)),
      (compared) => `runs/${encodeName(compared.run)}/`,
      (compared, _index, path) => getJson(`runs/${encodeName(compared.run)}/${path}`),
      list,
    );
  } catch (error) {
    page.replaceChildren(element("p", errorMessage(error), "bad"));
  }
}

startComparePage();
