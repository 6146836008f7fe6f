// The ranks that are shown singly: where each one is.
import {
  container,
  createTable,
  element,
  emptyState,
  formatDuration,
  formatRanks,
  formatTime,
  isActive,
  isNumber,
} from "../dom.js";

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createRanks(page) {
  const table = createTable("Ranks", [
    { title: "Rank", className: "right" },
    "Up",
    { title: "Step", className: "right" },
    { title: "Step time", className: "right" },
    "Last step",
  ]);
  const empty = emptyState("No rank reported yet. Ranks appear with their first step.");
  const more = element("p", "", "soft");
  const stacks = element("div");
  return {
    id: "ranks",
    title: "Ranks",
    isClosed: true,
    element: container("div", "", stacks, table.element, more, empty),
    note: ranksNote,
    update(run) {
      const rows = Object.entries(run.ranks ?? {});
      table.setRows(
        rows.map(([rank, { up, step, step_time: seconds, last_step_time: time }]) => [
          rank,
          element("span", up ? "yes" : isActive(run) ? "no" : "ended", up || !isActive(run) ? "" : "bad"),
          step,
          isNumber(seconds) ? formatDuration(seconds) : "",
          formatTime(time),
        ]),
      );
      table.element.hidden = !rows.length;
      empty.hidden = rows.length > 0;
      more.textContent = run.ranks_hidden ? `${run.ranks_hidden} other ranks are not shown singly.` : "";
      more.hidden = !run.ranks_hidden;
      // Where the ranks are while no step completes.
      stacks.replaceChildren(...(run.stacks ?? []).map(stackElement));
    },
    isShown: (run) => (!page.source.isReport && !run.log && isActive(run)) || Object.keys(run.ranks ?? {}).length > 0,
    urgency: (run) => (downRanks(run).length && isActive(run) ? 30 : 0),
  };
}

/** @param {RunState} run */
function downRanks(run) {
  return Object.entries(run.ranks ?? {})
    .filter(([, { up }]) => !up)
    .map(([rank]) => Number(rank));
}

/** @param {RunState} run */
function ranksNote(run) {
  const down = downRanks(run);
  const count = Object.keys(run.ranks ?? {}).length + (run.ranks_hidden ?? 0);
  if (!count) return "";
  return down.length && isActive(run) ? `${formatRanks(down)} down, of ${count}` : String(count);
}

/** @param {RankStack} stack */
function stackElement(stack) {
  const ranks = `Rank${stack.ranks.length > 1 ? "s" : ""} ${formatRanks(stack.ranks)}`;
  return container("p", "soft", element("span", `${ranks}: `), element("code", stackText(stack)));
}

/** @param {RankStack} stack */
function stackText({ frames, text }) {
  return Array.isArray(frames)
    ? frames.map((frame) => (typeof frame === "string" ? frame : Object.values(frame).join(":"))).join(" < ")
    : (text ?? "");
}
