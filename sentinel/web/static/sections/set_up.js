// What the checks of the training found, those that were not checked with the reason, and facts.
import {
  container,
  createTable,
  element,
  emptyState,
  formatCount,
  healthClass,
  setAttributes,
  textWithCode,
} from "../dom.js";
import { createLoader } from "../loading.js";

// The checks observe the first steps, and then some of every so many.
const CHECKED_STEPS = 20;
const CHECK_PERIOD = 100;

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createSetUp(page) {
  const checks = createTable("Checks of the training", [
    "Check",
    "Result",
    { title: "Evidence", className: "long" },
    { title: "Remedy", className: "long" },
  ]);
  const facts = createTable("Facts of the set-up", ["Fact", { title: "Value", className: "long" }]);
  const heading = element("h3", "Facts", "group");
  const empty = emptyState("No training was checked: this run was read from a log.");
  /** @type {SetUp} */
  let shown = { checks: [], facts: [] };
  let shownFor = "";
  const loader = createLoader(
    "the set-up",
    async () => {
      // An agent of another version may answer without them.
      const { checks: found = [], facts: known = [] } = await page.source.getJson("api/set-up");
      shown = { checks: found, facts: known };
      checks.setRows(shown.checks.map((each) => checkRow(page, each)));
      facts.setRows(shown.facts.map(({ name, value }) => [name, value]));
      checks.element.hidden = !shown.checks.length;
      heading.hidden = facts.element.hidden = !shown.facts.length;
      empty.hidden = shown.checks.length > 0;
    },
    () => page.frame.refresh("set-up"),
  );
  checks.element.hidden = heading.hidden = facts.element.hidden = empty.hidden = true;
  return {
    id: "set-up",
    title: "Set-up",
    isClosed: true,
    element: container("div", "", loader.element, checks.element, empty, heading, facts.element),
    note: () =>
      ["found", "passed", "not checked"]
        .map((result) => `${count(shown, result)} ${result}`)
        .filter((text) => !text.startsWith("0 "))
        .join(", ") || (loader.isLoaded ? formatCount(shown.facts.length, "fact") : ""),
    update(run) {
      const step = run.step ?? 0;
      const period = step <= CHECKED_STEPS ? step : CHECKED_STEPS + Math.floor(step / CHECK_PERIOD);
      const incidents = run.incidents.map(({ name, state }) => [name, state]);
      const key = JSON.stringify([run.state, run.attempt, run.training, period, incidents]);
      if (key === shownFor) return;
      shownFor = key;
      loader.request();
    },
    urgency: () => (count(shown, "found") ? 10 : 0),
  };
}

/**
 * @param {SetUp} setUp
 * @param {string} result
 */
function count(setUp, result) {
  return setUp.checks.filter((each) => each.result === result).length;
}

/**
 * @param {Page} page
 * @param {SetUpCheck} check
 * @returns {Cell[]}
 */
function checkRow(page, { check, detector, result, severity, evidence, remedy }) {
  const url = page.runbookUrl(detector);
  const name = url ? setAttributes(element("a", check), { href: url }) : check;
  const pill = element("span", result, `pill ${result === "passed" ? "ok" : healthClass(severity)}`);
  return [name, pill, textWithCode("span", evidence), textWithCode("span", remedy)];
}
