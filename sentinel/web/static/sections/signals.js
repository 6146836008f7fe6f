// The latest value of each signal, over ranks where there are several, and of every other logged key.
import {
  NATURAL_ORDER,
  container,
  createTable,
  element,
  emptyState,
  formatCount,
  isNumber,
  setAttributes,
} from "../dom.js";
import { createLoader } from "../loading.js";
import { chartContext } from "../charts/context.js";

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createSignals(page) {
  const table = createTable("Signals", [
    "Signal",
    { title: "Value", className: "right" },
    "Unit",
    { title: "Lowest rank", className: "right by-rank" },
    { title: "Highest rank", className: "right by-rank" },
    { title: "Worst rank", className: "right by-rank" },
  ]);
  const empty = emptyState("No value yet. The first training step that logs one is shown here.");
  const names = new Map();
  const context = chartContext(page);
  // The state has a limited number of logged keys; the history and the rows of a live run have all.
  const others = new Map();
  const refresh = () => {
    page.frame.refresh("signals");
    if (page.run && table.element.closest("details")?.open) show(page.run);
  };
  const loader = createLoader(
    "the signals",
    async () => {
      for (const { name, latest, event, count, bad_count: badCount } of await context.signals()) {
        if (event !== "heartbeat" && count + badCount > 0 && !others.has(name)) others.set(name, latest ?? "NaN");
      }
    },
    refresh,
  );
  context.signalListeners.add(loader.request);
  loader.request();
  page.source.subscribe({
    rows({ values, bad = {} }) {
      for (const [name, column] of Object.entries(values)) {
        const newest = column.findLastIndex((value) => value !== null);
        const isBad = (bad[name] ?? []).some((place) => place > newest);
        if (isBad || newest >= 0) others.set(name, isBad ? "NaN" : column[newest]);
      }
    },
  });
  /** @param {RunState} run */
  const hidden = (run) =>
    [...others].filter(([name]) => stateNames(name).every((each) => !(each in run.signals) && !(each in run.logged)));
  /** @param {RunState} run */
  const show = (run) => {
    const rows = [
      ...latestValues(run.signals).map(([name, { value, unit, help, min, max, worst_rank: worst }]) => [
        signalName(names, name, help),
        latestText(value),
        unit.replaceAll("_", " "),
        min,
        max,
        worst,
      ]),
      ...[...latestValues(run.logged), ...hidden(run)]
        .sort(([a], [b]) => NATURAL_ORDER(a, b))
        .map(([name, value]) => [signalName(names, name, "logged by the run"), latestText(value), "", "", "", ""]),
    ];
    table.setRows(rows);
    table.element.classList.toggle(
      "one-rank",
      rows.every(([, , , lowest]) => !isNumber(lowest)),
    );
    table.element.hidden = !rows.length;
    empty.hidden = rows.length > 0 || !loader.isLoaded;
  };
  return {
    id: "signals",
    title: "Latest values",
    isClosed: true,
    element: container("div", "", loader.element, table.element, empty),
    note: (run) =>
      formatCount(latestValues(run.signals).length + latestValues(run.logged).length + hidden(run).length, "value"),
    isShown: (run) => run.cluster?.role !== "follower",
    update: show,
    urgency: () => 0,
  };
}

/**
 * The names that a signal can have in the state, which has no control characters in them.
 * @param {string} name
 */
function stateNames(name) {
  return [name, name.replace(/^eval\//, "eval_"), name.normalize("NFC").replace(/\p{C}/gu, "")];
}

/**
 * The axis of charts is no value; logs have it in each row.
 * @template T
 * @param {Record<string, T>} values
 */
function latestValues(values) {
  return Object.entries(values).filter(([name]) => !["global_step", "step", "time"].includes(name));
}

/**
 * JSON has no NaN: such values are texts.
 * @param {number | string | null} value
 */
function latestText(value) {
  return value === "nan" ? "NaN" : value;
}

/**
 * @param {Map<string, HTMLElement>} names
 * @param {string} name
 * @param {string | undefined} help
 */
function signalName(names, name, help) {
  if (!names.has(name)) {
    const node = setAttributes(element("span", name), { title: help, "data-signal": name, tabindex: -1 });
    names.set(name, node);
  }
  return names.get(name);
}
