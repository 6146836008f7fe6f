// The page that compares the runs of its address: ?run=a&run=b.
import { container, element, emptyState, encodeName, setAttributes } from "./dom.js";
import { startComparison } from "./compare_page.js";
import { getJson } from "./source.js";

function comparePath({ axis = "step", signals = [], start = null, end = null, points = null } = {}) {
  const query = new URLSearchParams();
  for (const run of new URLSearchParams(location.search).getAll("run")) query.append("run", run);
  query.set("axis", axis);
  for (const signal of signals) query.append("signals", signal);
  if (start !== null) query.set("from", start);
  if (end !== null) query.set("to", end);
  if (points !== null) query.set("points", points);
  return `api/compare?${query}`;
}

async function startComparePage() {
  const page = document.getElementById("page");
  const runs = new URLSearchParams(location.search).getAll("run");
  const list = setAttributes(element("a", "Runs", "crumb"), { href: "./" });
  document.getElementById("topbar").replaceChildren(container("div", "name", list, element("h1", "Comparison")));
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
    page.replaceChildren(element("p", error.message, "bad"));
  }
}

startComparePage();
