// Metadata and settings of the run, and which integrations patched what.
import {
  container,
  createTable,
  element,
  emptyState,
  formatCount,
  formatNumber,
  formatRanks,
  setAttributes,
} from "../dom.js";

/** @returns {Section<RunState>} */
export function createSettings() {
  const filter = setAttributes(element("input", "", "input"), {
    type: "search",
    placeholder: "Filter by name or value",
    "aria-label": "Filter settings",
  });
  const table = createTable("Metadata and settings", ["Name", { title: "Value", className: "long" }]);
  const empty = emptyState("None reported. The integration of a framework reports its configuration at the start.");
  const none = element("p", "No name or value contains this.", "soft");
  const patches = createTable("Patches", ["Integration", "Status", "Ranks"]);
  const patchHeading = element("h3", "Patches", "group");
  /** @type {[string, Setting][]} */
  let entries = [];
  const show = () => {
    const words = filter.value.toLowerCase();
    const rows = entries.filter(([name, value]) => !words || `${name} ${value}`.toLowerCase().includes(words));
    table.setRows(rows.map(([name, value]) => [name, formatNumber(value)]));
    table.element.hidden = !rows.length;
    none.hidden = !entries.length || rows.length > 0;
  };
  filter.addEventListener("input", show);
  return {
    id: "settings",
    title: "Settings",
    isClosed: true,
    element: container("div", "", filter, table.element, none, empty, patchHeading, patches.element),
    note: (run) => formatCount(Object.keys(run.metadata).length, "setting"),
    update(run) {
      entries = Object.entries(run.metadata).sort(([a], [b]) => (a < b ? -1 : 1));
      empty.hidden = entries.length > 0;
      filter.hidden = entries.length < 8;
      show();
      const rows = Object.entries(run.patches ?? {}).flatMap(([name, ranksByStatus]) =>
        Object.entries(ranksByStatus).map(([status, ranks]) => [
          name,
          element("span", status, status === "on" ? "good" : "warn"),
          formatRanks(ranks),
        ]),
      );
      patches.setRows(rows);
      patches.element.hidden = patchHeading.hidden = !rows.length;
    },
    urgency: () => 0,
  };
}
