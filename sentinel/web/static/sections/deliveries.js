// Notifications and how far each is, by sink.
import {
  container,
  createTable,
  element,
  emptyState,
  formatCount,
  formatTime,
  formatDuration,
  isActive,
  isNumber,
} from "../dom.js";
import { createLoader } from "../loading.js";

/** @type {Record<string, string>} */
const STATE_CLASSES_OF_DELIVERY = { delivered: "good", dead: "bad", sending: "warn", queued: "warn", withheld: "soft" };

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createDeliveries(page) {
  const table = createTable("Deliveries", [
    "Sink",
    "State",
    "Reason",
    "Severity",
    "Incident",
    { title: "Tries", className: "right" },
    "Created",
    "Next try or end",
    { title: "Last error", className: "long" },
  ]);
  const empty = emptyState(
    "No notification was due. Sinks are set under `[sinks]` in sentinel.toml; " + "`sentinel notify test` sends one.",
  );
  /** @type {Delivery[]} */
  let rows = [];
  let shownFor = "";
  const loader = createLoader(
    "the notifications",
    async () => {
      rows = await page.source.getJson("api/deliveries");
      table.setRows(
        rows.map((row) => [
          row.sink,
          element("span", row.state, STATE_CLASSES_OF_DELIVERY[row.state] ?? "soft"),
          row.reason,
          row.severity,
          String(row.incident ?? "")
            .split("/")
            .pop(),
          row.tries,
          formatTime(row.created),
          nextText(row, page.source.now()),
          row.last_error ?? "",
        ]),
      );
      table.element.hidden = !rows.length;
      empty.hidden = rows.length > 0;
    },
    () => page.frame.refresh("deliveries"),
  );
  table.element.hidden = empty.hidden = true;
  // A retry changes no incident, so the list is asked for now and then while one is waiting.
  setInterval(() => {
    if (!document.hidden && !page.source.isReport && rows.some(({ state }) => ["queued", "sending"].includes(state)))
      loader.request();
  }, 5000);
  return {
    id: "deliveries",
    title: "Notifications",
    isClosed: true,
    element: container("div", "", loader.element, table.element, empty),
    note: () => (loader.isLoaded ? deliveriesNote(rows) : ""),
    update(run) {
      const key = JSON.stringify([
        run.state,
        run.delivery_problems,
        run.cases.map(({ name, severity, diagnosis }) => [name, severity, diagnosis?.cause]),
        run.incidents.map(({ name, acknowledged, silenced }) => [name, acknowledged, silenced]),
      ]);
      if (key === shownFor) return;
      shownFor = key;
      loader.request();
      // The agent sends a moment after the case opens.
      if (isActive(run) && !page.source.isReport) setTimeout(loader.request, 2500);
    },
    urgency: (run) => (run.delivery_problems?.length ? 50 : 0),
  };
}

/** @param {Delivery[]} rows */
function deliveriesNote(rows) {
  if (!rows.length) return "none";
  const counts = new Map();
  for (const { state } of rows) counts.set(state, (counts.get(state) ?? 0) + 1);
  return counts.size === 1
    ? `${formatCount(rows.length, "notification")}, ${rows[0].state}`
    : [...counts].map(([state, count]) => `${count} ${state}`).join(", ");
}

/**
 * @param {Delivery} delivery
 * @param {number} now
 */
function nextText({ state, next_at: next, finished_at: finished }, now) {
  if (isNumber(finished)) return formatTime(finished);
  if (!isNumber(next) || !["queued", "withheld"].includes(state)) return "";
  return next > now ? `in ${formatDuration(next - now)}` : "now";
}
