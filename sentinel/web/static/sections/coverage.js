// What of the run no detector reads, with the setting that changes it.
import {
  button,
  capitalize,
  container,
  createChangeCheck,
  createTable,
  element,
  emptyState,
  showToast,
  textWithCode,
} from "../dom.js";

/** @returns {Section<RunState>} */
export function createCoverage() {
  const text = element("p");
  const list = element("div");
  const root = container("div", "", text, list);
  const isNew = createChangeCheck();
  return {
    id: "coverage",
    title: "What is monitored",
    isClosed: true,
    element: root,
    note: coverageNote,
    update(run) {
      if (!isNew([run.monitored, run.unmonitored, run.coverage])) return;
      const { monitored = [], unmonitored = [], coverage = "" } = run;
      text.textContent = coverage ? `${capitalize(coverage)}.` : "";
      text.hidden = !coverage;
      list.replaceChildren(
        ...[
          monitored.length > 0 && element("h3", "Monitored outcomes", "group"),
          monitored.length > 0 && element("p", monitored.join(", ")),
          unmonitored.length > 0 && element("h3", "Not monitored", "group"),
          unmonitored.length > 0 && unmonitoredTable(unmonitored),
          unmonitored.length > 0 && mapping(unmonitored),
          !monitored.length &&
            !unmonitored.length &&
            emptyState("Not known yet: the first steps show which keys the run logs."),
        ].filter((each) => each !== false),
      );
    },
    urgency: (run) => (run.coverage && !run.monitored?.length ? 60 : 0),
  };
}

/** @param {RunState} run */
function coverageNote({ monitored = [], unmonitored = [] }) {
  if (unmonitored.length) {
    const [{ key, signal }] = unmonitored;
    const rest = unmonitored.length > 1 ? ` and ${unmonitored.length - 1} more` : "";
    return `not monitored: ${key}${signal ? `; nearest: ${signal}` : ""}${rest}`;
  }
  return monitored.length
    ? monitored.slice(0, 6).join(", ") + (monitored.length > 6 ? ` and ${monitored.length - 6} more` : "")
    : "";
}

/** @param {UnmonitoredKey[]} keys */
function unmonitoredTable(keys) {
  const table = createTable("Keys that are not monitored", ["Logged key", "Nearest signal"]);
  table.setRows(keys.map(({ key, signal }) => [element("code", key), signal || "none"]));
  return table.element;
}

/**
 * The settings that make the keys known.
 * @param {UnmonitoredKey[]} keys
 */
function mapping(keys) {
  const lines = [
    "[keys]",
    ...keys.map(({ key, signal }) => `${JSON.stringify(key)} = ${JSON.stringify(signal || "<signal>")}`),
  ];
  const code = element("code", lines.join("\n"));
  const copy = button(
    "Copy",
    async () => {
      try {
        await navigator.clipboard.writeText(lines.join("\n"));
        showToast("Copied.");
      } catch {
        showToast("The browser does not allow to copy; select the text.");
      }
    },
    "small",
  );
  return container(
    "div",
    "remedy",
    container("div", "row", textWithCode("h4", "Settings in `sentinel.toml`"), copy),
    container("pre", "", code),
  );
}
