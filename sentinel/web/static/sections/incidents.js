// Every incident of the run, the newest first.
import { container, createTable, element, emptyState, formatCount, severityClass } from "../dom.js";
import { createLoader } from "../loading.js";

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createIncidents(page) {
  const table = createTable("All incidents", [
    "Incident",
    "Severity",
    "State",
    { title: "Cause", className: "long" },
    { title: "Began at step", className: "right" },
    { title: "Detected at step", className: "right" },
    { title: "Resolved at step", className: "right" },
    "Because",
    { title: "Flaps", className: "right" },
  ]);
  const empty = emptyState("None. Detectors look at every step; what they find is kept here.");
  /** @type {Incident[]} */
  let incidents = [];
  let shownFor = "";
  const loader = createLoader(
    "the incidents",
    async () => {
      incidents = await page.source.getJson("api/incidents");
      page.setIncidents(incidents);
      table.setRows(
        incidents.map((each) => [
          each.name.split("/").pop(),
          element("span", each.severity, `pill ${severityClass(each)}`),
          each.state,
          each.diagnosis ? each.diagnosis.title : "",
          each.onset_step,
          each.opened_step,
          each.resolved_step,
          each.resolution || "",
          each.flaps,
        ]),
      );
      table.element.hidden = !incidents.length;
      empty.hidden = incidents.length > 0;
    },
    () => page.frame.refresh("incidents"),
  );
  table.element.hidden = empty.hidden = true;
  return {
    id: "incidents",
    title: "All incidents",
    isClosed: true,
    element: container("div", "", loader.element, table.element, empty),
    note: () => (incidents.length ? formatCount(incidents.length, "incident") : loader.isLoaded ? "none" : ""),
    update(run) {
      // Asked for again only when an open one changed.
      const key = JSON.stringify([
        run.state,
        run.incidents.map(({ name, state, severity, diagnosis }) => [name, state, severity, diagnosis?.cause]),
      ]);
      if (key === shownFor) return;
      shownFor = key;
      loader.request();
    },
    urgency: () => 0,
  };
}
