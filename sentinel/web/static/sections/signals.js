// The latest value of each signal, over ranks where there are several, and of every other logged key.
import { container, createTable, element, emptyState, formatCount, setAttributes } from "../dom.js";

export function createSignals() {
  const table = createTable("Signals", ["Signal", { title: "Value", className: "right" }, "Unit",
    { title: "Lowest rank", className: "right" }, { title: "Highest rank", className: "right" },
    { title: "Worst rank", className: "right" }]);
  const empty = emptyState("No value yet. The first training step that logs one is shown here.");
  const names = new Map();
  return {
    id: "signals",
    title: "Latest values",
    isClosed: true,
    element: container("div", "", table.element, empty),
    note: (run) => formatCount(Object.keys(run.signals).length + Object.keys(run.logged).length, "value"),
    isShown: (run) => run.cluster?.role !== "follower",
    update(run) {
      const rows = [
        ...Object.entries(run.signals).map(([name, s]) =>
          [signalName(names, name, s.help), s.value, s.unit, s.min, s.max, s.worst_rank]),
        ...Object.entries(run.logged).map(([name, value]) => [signalName(names, name, "logged by the run"), value, "", "", "", ""]),
      ];
      table.setRows(rows);
      table.element.hidden = !rows.length;
      empty.hidden = rows.length > 0;
    },
    urgency: () => 0,
  };
}

function signalName(names, name, help) {
  if (!names.has(name)) {
    const node = setAttributes(element("span", name), { title: help, "data-signal": name, tabindex: -1 });
    names.set(name, node);
  }
  return names.get(name);
}
