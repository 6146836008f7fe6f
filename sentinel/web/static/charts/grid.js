// A grid of charts: groups that can be folded, those of open incidents first, pinned charts, and a
// filter by name.
import {
  button,
  container,
  element,
  emptyState,
  errorMessage,
  formatCount,
  recall,
  remember,
  setAttributes,
  setText,
} from "../dom.js";
import { revealNode } from "../frame.js";
import { Chart } from "./chart.js";

const GRID_PINNED = "Pinned";
const GRID_URGENT = "In open incidents";
// A group shows this many charts until asked for all.
const GRID_FOLD = 24;

export class ChartGrid {
  /**
   * `id` names the grid in what the browser remembers.
   * @param {ChartContext} context
   * @param {string} id
   */
  constructor(context, id) {
    this.context = context;
    this.key = `pinned-charts-${id}`;
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    /** @type {GridEntry[]} */
    this.order = [];
    /** @type {Set<string>} */
    this.pinned = new Set(JSON.parse(recall(this.key) || "[]"));
    /** @type {Map<string, Incident[]>} */
    this.urgent = new Map();
    this.filter = gridFilter("");
    /** @type {Map<string, GridGroup>} */
    this.groups = new Map();
    this.element = element("div", "", "chart-groups");
    this.none = emptyState("No chart has this name.");
    /** @type {string[]} */
    this.shownGroups = [];
    this.shownCount = 0;
    // Called to clear the filter, where it hides the chart that is wanted.
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    this.shownFolded = context.view.folded.join("\n");
    // Another link, or the list of folded groups, was chosen.
    context.view.subscribe(({ folded }) => {
      if (folded.join("\n") === this.shownFolded) return;
      this.shownFolded = folded.join("\n");
      this.arrange();
    });
  }

  /**
   * Show charts: [{ group, title, signals }], in their order.
   * @param {ChartEntry[]} entries
   */
  setCharts(entries) {
    for (const [key, chart] of this.charts) {
      const entry = entries.find(({ signals }) => signals[0].name === key);
      if (!entry || entry.signals.map(({ name }) => name).join("\n") !== chart.names.join("\n")) {
        this.context.remove(chart);
        chart.element.remove();
        this.charts.delete(key);
      }
    }
    this.order = entries.map(({ group, title, signals, limit }) => {
      const key = signals[0].name;
      let chart = this.charts.get(key);
      if (!chart) {
        chart = new Chart(this.context, signals, { title, limit, onPin: () => this.#pin(key) });
        chart.setPinned(this.pinned.has(key));
        this.charts.set(key, chart);
        this.context.add(chart);
      }
      return { key, group, chart };
    });
    this.#markUrgent();
    this.arrange();
  }

  /**
   * Mark the charts of open incidents: { detector, severity, signal }.
   * @param {Incident[]} incidents
   */
  setIncidents(incidents) {
    this.urgent = new Map();
    for (const incident of incidents) {
      if (incident.signal) this.urgent.set(incident.signal, [...(this.urgent.get(incident.signal) || []), incident]);
    }
    this.#markUrgent();
    this.arrange();
  }

  #markUrgent() {
    for (const { chart } of this.order) {
      chart.setIncidents(chart.names.flatMap((name) => this.urgent.get(name) || []));
    }
  }

  /**
   * Show the charts whose names match a text; returns what is wrong with it, or "".
   * @param {string} text
   */
  setFilter(text) {
    this.filter = gridFilter(text);
    this.arrange();
    return this.filter.problem;
  }

  // What the search of the page finds: also charts that are folded or filtered away.
  searchTargets() {
    return this.order.map(({ key, chart }) => ({ text: chart.title, kind: "chart", open: () => this.reveal(key) }));
  }

  /**
   * Unfold the group of a chart, and bring it into view.
   * @param {string} key
   */
  reveal(key) {
    const entry = this.order.find((each) => each.key === key);
    if (!entry) return;
    const name = this.#groupOf(entry);
    if (!this.filter.matches(entry.chart)) for (const listener of this.listeners) listener();
    this.#group(name).isUnfolded = true;
    this.#setFolded(this.context.view.folded.filter((each) => each !== name));
    this.arrange();
    revealNode(entry.chart.element);
  }

  // Fold all groups, or unfold all if any is folded.
  toggleFolds() {
    this.#setFolded(this.isAnyFolded ? [] : this.shownGroups);
  }

  get isAnyFolded() {
    return this.shownGroups.some((name) => this.context.view.folded.includes(name));
  }

  /** @param {string[]} folded */
  #setFolded(folded) {
    this.context.view.set({ folded });
  }

  /** @param {string} key */
  #pin(key) {
    if (!this.pinned.delete(key)) this.pinned.add(key);
    this.charts.get(key)?.setPinned(this.pinned.has(key));
    remember(this.key, JSON.stringify([...this.pinned]));
    this.arrange();
  }

  /** @param {GridEntry} entry */
  #groupOf({ key, group, chart }) {
    return this.pinned.has(key) ? GRID_PINNED : chart.names.some((name) => this.urgent.has(name)) ? GRID_URGENT : group;
  }

  // Put each chart into its group; elements that stay where they are keep their curves.
  arrange() {
    /** @type {Map<string, Chart[]>} */
    const byGroup = new Map([
      [GRID_PINNED, []],
      [GRID_URGENT, []],
    ]);
    for (const entry of this.order) {
      if (!this.filter.matches(entry.chart)) continue;
      const shown = this.#groupOf(entry);
      byGroup.set(shown, [...(byGroup.get(shown) || []), entry.chart]);
    }
    const shown = [...byGroup].filter(([, charts]) => charts.length);
    this.shownGroups = shown.map(([name]) => name).filter((name) => name);
    for (const [name, charts] of shown) {
      const group = this.#group(name);
      // What matches a filter is shown wherever it is.
      const isFolded = name !== "" && !this.filter.text && this.context.view.folded.includes(name);
      const visible = isFolded ? [] : group.isUnfolded ? charts : charts.slice(0, GRID_FOLD);
      gridReplace(
        group.grid,
        visible.map((chart) => chart.element),
      );
      setText(group.count, charts.length);
      setAttributes(group.toggle, { "aria-expanded": String(!isFolded) });
      group.grid.hidden = isFolded;
      group.more.hidden = isFolded || visible.length === charts.length;
      setText(group.more, `Show ${charts.length - visible.length} more`);
    }
    const groups = shown.map(([name]) => this.#group(name).element);
    if (!groups.length && this.filter.text) groups.push(this.none);
    gridReplace(this.element, groups);
    this.shownCount = shown.reduce((sum, [, charts]) => sum + charts.length, 0);
  }

  /** @param {string} name */
  #group(name) {
    const known = this.groups.get(name);
    if (known) return known;
    const grid = element("div", "", "charts");
    const count = element("span", "", "soft");
    const toggle = button(
      "",
      () => {
        const { folded } = this.context.view;
        this.#setFolded(folded.includes(name) ? folded.filter((each) => each !== name) : [...folded, name]);
      },
      "quiet fold",
    );
    toggle.append(element("span", name), " ", count);
    const heading = container("h3", "group", toggle);
    heading.hidden = !name;
    const more = button(
      "",
      () => {
        group.isUnfolded = true;
        this.arrange();
      },
      "small more",
    );
    const group = {
      element: container("section", "", heading, grid, more),
      grid,
      count,
      more,
      toggle,
      isUnfolded: false,
    };
    this.groups.set(name, group);
    return group;
  }
}

/**
 * A field that filters the charts of a grid, with how many there are, or why the text is no regular
 * expression.
 * @param {ChartGrid} grid
 * @param {string} id
 */
export function createChartFilter(grid, id) {
  const input = setAttributes(element("input", "", "input"), {
    type: "search",
    id,
    placeholder: "Filter charts, such as rew|kl",
    "aria-label": "Filter charts by name",
    "aria-describedby": `${id}-result`,
    title: "Words, or regular expressions such as ^rew",
  });
  const result = setAttributes(element("span", "", "soft"), { id: `${id}-result`, role: "status" });
  const apply = () => {
    const problem = grid.setFilter(input.value);
    setAttributes(input, { "aria-invalid": problem ? "true" : null });
    result.className = problem ? "bad" : "soft";
    setText(result, problem || (input.value.trim() ? formatCount(grid.shownCount, "chart") : ""));
  };
  input.addEventListener("input", apply);
  grid.listeners.add(() => {
    input.value = "";
    apply();
  });
  return container("span", "row chart-filter", input, result);
}

// A group that is repeated: with some texts, trying all its ways takes longer than a day.
const GRID_REPEATED_GROUP = /\)[*+?{]/;

/**
 * Whether a chart has each word of a text in its title or in the name of a signal: as a regular
 * expression, or as it is. `problem` states which word is no regular expression.
 * @param {string} text
 */
function gridFilter(text) {
  const words = text.trim().split(/\s+/).filter(Boolean);
  let problem = "";
  /** @type {((name: string) => boolean)[]} */
  const tests = words.map((word) => {
    const lower = word.toLowerCase();
    try {
      if (GRID_REPEATED_GROUP.test(word) || (word.match(/[*+?{]/g) ?? []).length > 4)
        throw new Error(": too many repetitions");
      const pattern = new RegExp(word, "i");
      return (name) => pattern.test(name) || name.toLowerCase().includes(lower);
    } catch (error) {
      const reason = errorMessage(error).split(": ").pop()?.toLowerCase();
      problem ||= `“${word}” is not a regular expression (${reason}), and is searched as it is.`;
      return (name) => name.toLowerCase().includes(lower);
    }
  });
  return {
    text: words.join(" "),
    problem,
    matches: (/** @type {Chart} */ { title, names }) => tests.every((test) => [title, ...names].some(test)),
  };
}

/**
 * Elements that are in place already keep their focus and their curves.
 * @param {Element} parent
 * @param {Element[]} children
 */
function gridReplace(parent, children) {
  const old = [...parent.children];
  if (old.length !== children.length || old.some((each, index) => each !== children[index]))
    parent.replaceChildren(...children);
}
