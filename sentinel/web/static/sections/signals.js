// The latest value of each signal, over ranks where there are several, and of every other logged key.
import { container, createTable, element, emptyState, formatCount, isNumber, setAttributes } from "../dom.js";

export function createSignals() {
  const table = createTable("Signals", ["Signal", { title: "Value", className: "right" }, "Unit",
    { title: "Lowest rank", className: "right by-rank" }, { title: "Highest rank", className: "right by-rank" },
    { title: "Worst rank", className: "right by-rank" }]);
  const empty = emptyState("No value yet. The first training step that logs one is shown here.");
  const names = new Map();
  return {
    id: "signals",
    title: "Latest values",
    isClosed: true,
    element: container("div", "", table.element, empty),
    note: (run) => formatCount(latestValues(run.signals).length + latestValues(run.logged).length, "value"),
    isShown: (run) => run.cluster?.role !== "follower",
    update(run) {
      const rows = [
        ...latestValues(run.signals).map(([name, { value, unit, help, min, max, worst_rank: worst }]) =>
          [signalName(names, name, help), latestText(value), unit.replaceAll("_", " "), min, max, worst]),
        ...latestValues(run.logged).map(([name, value]) => [signalName(names, name, "logged by the run"), latestText(value), "", "", "", ""]),
      ];
      table.setRows(rows);
      table.element.classList.toggle("one-rank", rows.every(([, , , lowest]) => !isNumber(lowest)));
      table.element.hidden = !rows.length;
      empty.hidden = rows.length > 0;
    },
    urgency: () => 0,
  };
}

// The axis of charts is no value; logs have it in each row.
function latestValues(values) {
  return Object.entries(values).filter(([name]) => !["global_step", "step", "time"].includes(name));
}

// JSON has no NaN: such values are texts.
function latestText(value) {
  return value === "nan" ? "NaN" : value;
}

function signalName(names, name, help) {
  if (!names.has(name)) {
    const node = setAttributes(element("span", name), { title: help, "data-signal": name, tabindex: -1 });
    names.set(name, node);
  }
  return names.get(name);
}
