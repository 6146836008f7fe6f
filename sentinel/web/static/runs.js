// The list of runs: filter, order, groups, pages, and a choice of runs to compare. What is shown is in
// the address, so that a link shows the same.
import {
  button,
  choice,
  container,
  createChangeCheck,
  element,
  emptyState,
  encodeName,
  errorMessage,
  formatCount,
  formatDuration,
  formatNumber,
  formatTime,
  healthClass,
  healthText,
  isNumber,
  pageElement,
  setAttributes,
  setText,
  textWithCode,
  focusedElement,
} from "./dom.js";
import { openColumnsDialog } from "./columns.js";
import { openNoteDialog } from "./note.js";
import { getJson } from "./source.js";
import { createThemeChoice, createView } from "./view.js";
import { sparkline } from "./charts/sparkline.js";

const PAGE_ROWS = 100;
const REFRESH_MS = 3000;
const SAVED_NOTE_MS = 10000;
// While settings are being read, the list is asked for this soon.
const READING_MS = 700;
const SETTING_PREFIX = "setting:";
const FILTER_DELAY_MS = 150;
const OUTDATED_SECONDS = 15;
const DEFAULT_ORDER = "-last_written";
/** @type {Record<string, string>} */
const STATE_CLASSES_OF_LIST = {
  running: "ok",
  finished: "ok",
  starting: "info",
  stalled: "warning",
  unfinished: "warning",
  unknown: "info",
  reading: "info",
};
/** @type {Option[]} */
const LIST_GROUPS = [
  ["", "No groups"],
  ["project", "By project"],
  ["tag", "By tag"],
  ["state", "By state"],
  ["health", "By health"],
  ["host", "By host"],
  ["framework", "By framework"],
  ["model", "By model"],
];
// Title, sort key, whether the first click sorts descending, and the class of the cells. The columns of
// settings stand after the signal.
/** @type {ListColumn[]} */
const LIST_COLUMNS = [
  ["", "", false, "pick"],
  ["Run", "run", false, "main"],
  ["State", "state", false, ""],
  ["Health", "health", true, "problem"],
  ["Signal", "", false, "spark-cell"],
  ["Step", "step", true, "right"],
  ["Last step", "last_written", true, "right"],
  ["Started", "started", true, "started"],
  ["Host", "host", false, "host"],
  ["Training", "framework", false, "training"],
];

const listed = queryOfAddress();
const chosen = new Set();
const parts = createListParts();
/** @type {RunList | null} */
let lastAnswer = null;
let refreshTimer = 0;
let requestCount = 0;

/** @returns {ListQuery} */
function queryOfAddress() {
  const query = new URLSearchParams(location.search);
  return {
    filter: query.get("filter") ?? "",
    sort: query.get("sort") ?? DEFAULT_ORDER,
    group: query.get("group") ?? "",
    offset: Math.max(0, Number.parseInt(query.get("offset") ?? "0", 10) || 0),
    columns: [...new Set(query.getAll("column"))],
  };
}

// The query as parameters: what differs from the usual list.
function listParameters() {
  const { columns, ...others } = listed;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(others))
    if (value && value !== DEFAULT_ORDER) query.append(name, String(value));
  for (const name of columns) query.append("column", name);
  return query;
}

/** @param {Partial<ListQuery>} changes */
function changeQuery(changes) {
  Object.assign(listed, "offset" in changes ? {} : { offset: 0 }, changes);
  const text = listParameters().toString();
  history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}`);
  showImportanceLink();
  loadRuns();
}

function createListParts() {
  const view = createView();
  const filter = setAttributes(element("input", "", "input"), {
    type: "search",
    placeholder: "Filter, such as running gpu-3 tag:ablation",
    "aria-label": "Filter runs",
    value: listed.filter,
    id: "filter",
  });
  let filterTimer = 0;
  filter.addEventListener("input", () => {
    clearTimeout(filterTimer);
    filterTimer = setTimeout(() => changeQuery({ filter: filter.value }), FILTER_DELAY_MS);
  });
  const group = choice("Group", [], (value) => changeQuery({ group: value }));
  const columns = button("Columns", () => openColumnsDialog(listed.filter, listed.columns, chooseColumns));
  columns.title = "Settings as columns";
  const theme = createThemeChoice(view);
  const compare = setAttributes(element("a", "Compare", "button primary"), { hidden: true });
  const importance = setAttributes(element("a", "What matters", "button"), {
    title: "Which settings explain the outcome of these runs",
  });
  const clear = button("Clear choice", () => chooseRuns([]), "quiet");
  clear.hidden = true;
  pageElement("topbar").append(
    container(
      "div",
      "name",
      element("h1", "Runs"),
      setAttributes(element("span", "", "soft"), { role: "status", id: "count" }),
    ),
    container("div", "toolbar list-bar", filter, group, columns, theme, clear, importance, compare),
  );

  const states = setAttributes(container("div", "row states"), { role: "group", "aria-label": "States" });
  const note = element("p", "", "banner warning");
  note.hidden = true;
  const head = element("tr");
  const body = element("tbody");
  const table = setAttributes(container("table", "runs", container("thead", "", head), body), { id: "runs" });
  const wide = setAttributes(container("div", "wide", table), { role: "region", "aria-label": "Runs", tabindex: 0 });
  const empty = container("div");
  const previous = button("Previous", () => changeQuery({ offset: Math.max(0, listed.offset - PAGE_ROWS) }));
  const next = button("Next", () => changeQuery({ offset: listed.offset + PAGE_ROWS }));
  const place = element("span", "", "soft number");
  const pages = setAttributes(container("nav", "row pages", previous, place, next), { "aria-label": "Pages" });
  pageElement("page").replaceChildren(note, states, wide, empty, pages);
  document.addEventListener("keydown", (event) => handleListKey(event, filter));
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) loadRuns();
  });
  return {
    filter,
    group,
    compare,
    importance,
    clear,
    states,
    note,
    head,
    body,
    wide,
    empty,
    previous,
    next,
    place,
    pages,
    areStatesNew: createChangeCheck(),
  };
}

// Title, key, order and class of all columns that are shown.
function shownColumns() {
  const place = LIST_COLUMNS.findIndex(([title]) => title === "Step");
  /** @type {ListColumn[]} */
  const settings = listed.columns.map((name) => [name, SETTING_PREFIX + name, false, "setting"]);
  return [...LIST_COLUMNS.slice(0, place), ...settings, ...LIST_COLUMNS.slice(place)];
}

/** @param {string[]} columns */
function chooseColumns(columns) {
  /** @param {string} text */
  const key = (text) => text.replace(/^-/, "");
  /** @param {string} text */
  const isGone = (text) =>
    key(text).startsWith(SETTING_PREFIX) && !columns.includes(key(text).slice(SETTING_PREFIX.length));
  changeQuery({
    columns,
    sort: isGone(listed.sort) ? DEFAULT_ORDER : listed.sort,
    group: isGone(listed.group) ? "" : listed.group,
  });
  showColumns();
}

// The head of the table and the choices of groups, after another choice of columns.
function showColumns() {
  listRows.clear();
  parts.head.replaceChildren(
    ...shownColumns().map(([title, key, isDescending, className]) => listHead(title, key, isDescending, className)),
  );
  const options = new Map(LIST_GROUPS);
  for (const name of listed.columns) options.set(SETTING_PREFIX + name, `By ${name}`);
  if (listed.group.startsWith(SETTING_PREFIX)) options.set(listed.group, `By ${groupNoun(listed.group)}`);
  parts.group.replaceChildren(
    ...[...options].map(([value, text]) => setAttributes(element("option", text), { value })),
  );
  parts.group.value = listed.group;
  if (lastAnswer) showRuns(lastAnswer);
}

/** @param {string} group */
function groupNoun(group) {
  return group.startsWith(SETTING_PREFIX) ? group.slice(SETTING_PREFIX.length) : group;
}

/**
 * @param {string} title
 * @param {string} key
 * @param {boolean} isDescending
 * @param {string} className
 */
function listHead(title, key, isDescending, className) {
  const head = setAttributes(element("th", "", className), { scope: "col" });
  if (!key) {
    head.append(title || element("span", "Choose", "sr-only"));
    return head;
  }
  head.dataset.key = key;
  head.append(
    button(
      title,
      () => {
        const order =
          listed.sort === (isDescending ? `-${key}` : key)
            ? isDescending
              ? key
              : `-${key}`
            : isDescending
              ? `-${key}`
              : key;
        changeQuery({ sort: order });
      },
      "quiet small",
    ),
  );
  return head;
}

/**
 * `/` goes to the filter, Escape empties it, and j and k go to the next and the previous run.
 * @param {KeyboardEvent} event
 * @param {HTMLInputElement} filter
 */
function handleListKey(event, filter) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target === filter) {
    if (event.key === "Escape" && filter.value) {
      filter.value = "";
      changeQuery({ filter: "" });
    }
    return;
  }
  if (event.target instanceof Element && event.target.closest("select, input:not([type='checkbox'])")) return;
  if (event.key === "/") {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "j" || event.key === "k") {
    /** @type {NodeListOf<HTMLAnchorElement>} */
    const links = parts.body.querySelectorAll("a.run");
    const at = [...links].findIndex((link) => link === document.activeElement);
    const to = event.key === "j" ? at + 1 : at < 0 ? links.length - 1 : at - 1;
    links[Math.min(Math.max(to, 0), links.length - 1)]?.focus();
  }
}

async function loadRuns() {
  clearTimeout(refreshTimer);
  const number = ++requestCount;
  const query = listParameters();
  query.set("limit", String(PAGE_ROWS));
  let wait = REFRESH_MS;
  try {
    /** @type {RunList} */
    const answer = await getJson(`api/runs?${query}`);
    if (number !== requestCount) return;
    lastAnswer = answer;
    if (listed.offset > 0 && listed.offset >= answer.rows) changeQuery({ offset: lastPage(answer.rows) });
    else showRuns(answer);
    if (answer.unread_settings && listed.columns.length) wait = READING_MS;
    showNote(
      isNumber(answer.read_seconds_ago) && answer.unanswered_seconds > OUTDATED_SECONDS
        ? `The folder with the runs has not answered for ${formatDuration(answer.unanswered_seconds)}. ` +
            `The list is ${formatDuration(answer.read_seconds_ago)} old.`
        : "",
    );
  } catch (error) {
    if (number === requestCount) showNote(`${errorMessage(error)} The list below is outdated.`);
  }
  if (number === requestCount && !document.hidden) refreshTimer = setTimeout(loadRuns, wait);
}

/** @param {number} rows */
function lastPage(rows) {
  return Math.max(0, Math.floor((rows - 1) / PAGE_ROWS) * PAGE_ROWS);
}

/** @param {string} text */
function showNote(text) {
  parts.note.hidden = !text;
  setText(parts.note, text);
}

/** @param {RunList} answer */
function showRuns(answer) {
  const { total, matched, rows, runs } = answer;
  setText(
    pageElement("count"),
    matched === total ? formatCount(total, "run") : `${formatNumber(matched)} of ${formatCount(total, "run")}`,
  );
  showStates(answer);
  for (const head of parts.head.children) {
    const key = head.getAttribute("data-key");
    const isSorted = key && listed.sort.replace(/^-/, "") === key;
    setAttributes(head, { "aria-sort": isSorted ? (listed.sort.startsWith("-") ? "descending" : "ascending") : null });
  }
  fillList(runs, answer.groups);
  parts.wide.hidden = !runs.length;
  if (runs.length) parts.empty.replaceChildren();
  else if (!parts.empty.childElementCount || createEmptyText(answer) !== parts.empty.textContent)
    parts.empty.replaceChildren(emptyState(createEmptyText(answer)));
  parts.pages.hidden = rows <= PAGE_ROWS;
  setText(
    parts.place,
    `${formatNumber(listed.offset + 1)} to ${formatNumber(Math.min(rows, listed.offset + PAGE_ROWS))} ` +
      `of ${formatNumber(rows)}`,
  );
  parts.previous.disabled = listed.offset === 0;
  parts.next.disabled = listed.offset + PAGE_ROWS >= rows;
  document.title = `${formatCount(total, "run")}: sentinel`;
}

/** @param {RunList} list */
function createEmptyText({ total, notice, read_seconds_ago: age }) {
  if (age === null) return "The runs are being read.";
  if (total) return "No run matches the filter.";
  if (notice) return notice;
  return "There is no run yet. A run appears when its training starts under `sentinel run`, or with @sentinel.monitor.";
}

/**
 * How many runs are in each state; a click shows only these.
 * @param {RunList} list
 */
function showStates({ states }) {
  if (!parts.areStatesNew([states, listed.filter])) return;
  const items = Object.entries(states)
    .sort()
    .map(([state, count]) => {
      const term = `state:${state}`;
      const isOn = listed.filter.split(" ").includes(term);
      const node = button(
        `${state} ${formatNumber(count)}`,
        () => {
          const words = listed.filter.split(" ").filter(Boolean);
          const filter = (isOn ? words.filter((word) => word !== term) : [...words, term]).join(" ");
          parts.filter.value = filter;
          changeQuery({ filter });
        },
        "small",
      );
      return setAttributes(node, { "aria-pressed": String(isOn) });
    });
  parts.states.replaceChildren(...items);
}

/** @type {Map<string, ListRow>} */
const listRows = new Map();

/**
 * The rows are kept by run, so that the focus stays where it is.
 * @param {ListedRun[]} runs
 * @param {RunList["groups"]} groups
 */
function fillList(runs, groups) {
  const counts = new Map(groups.map(({ name, count }) => [name, count]));
  const wanted = [];
  /** @type {string | null} */
  let group = null;
  for (const run of runs) {
    if (listed.group && run.group !== group) {
      group = run.group;
      const count = counts.get(group);
      wanted.push(keptRow(`group ${listed.group} ${count} ${run.group}`, () => groupRow(run.group, count)));
    }
    const row = keptRow(`run ${run.group} ${run.run}`, createRunRow);
    row.show?.(run);
    wanted.push(row);
  }
  const kept = new Set(wanted);
  for (const [key, row] of listRows) if (!kept.has(row)) listRows.delete(key);
  const nodes = wanted.map((row) => row.element);
  if (
    nodes.length !== parts.body.childElementCount ||
    nodes.some((node, index) => parts.body.children[index] !== node)
  ) {
    const focused = focusedElement();
    parts.body.replaceChildren(...nodes);
    if (parts.body.contains(focused)) focused?.focus();
  }
}

/**
 * @param {string} key
 * @param {() => ListRow} create
 */
function keptRow(key, create) {
  const known = listRows.get(key);
  if (known) return known;
  const row = create();
  listRows.set(key, row);
  return row;
}

/**
 * @param {string} name
 * @param {number | undefined} count
 * @returns {ListRow}
 */
function groupRow(name, count) {
  const noun = groupNoun(listed.group);
  const text = !name ? `No ${noun}` : noun === listed.group ? name : `${noun} ${name}`;
  const title = setAttributes(element("th", text), { colspan: shownColumns().length, scope: "rowgroup" });
  title.append(" ", element("span", formatCount(count ?? 0, "run"), "soft"));
  return { element: container("tr", "group-row", title) };
}

function createRunRow() {
  const columns = shownColumns();
  const cells = columns.map(([, , , className]) => element("td", "", className));
  const row = container("tr", "", ...cells);
  const settings = columns
    .map(([name, key], index) => ({ name, key, cell: cells[index] }))
    .filter(({ key }) => key.startsWith(SETTING_PREFIX));
  for (const { name, cell } of settings) cell.dataset.label = name;
  const [pick, main, state, health, spark, step, age, started, host, training] = cells.filter(
    (cell) => cell.className !== "setting",
  );
  const box = setAttributes(element("input"), { type: "checkbox" });
  const link = element("a", "", "run");
  const labels = element("span", "", "labels");
  const badge = element("span", "", "badge");
  pick.append(box);
  const id = element("small", "", "soft");
  const note = element("span", "", "note-text");
  // What was saved here, until the list has it or the time is over: the list is some seconds old.
  /** @type {{ text: string, former: string, until: number } | null} */
  let saved = null;
  const edit = button(
    "Note",
    () =>
      openNoteDialog(shown?.name || name, `runs/${encodeName(name)}/api/note`, (written) => {
        saved = { text: written?.text ?? "", former: shown?.note ?? "", until: Date.now() + SAVED_NOTE_MS };
        if (shown) show(shown);
      }),
    "quiet small note-button",
  );
  main.append(link, " ", id, edit, labels, note);
  state.append(badge);
  const isHealthNew = createChangeCheck();
  const isSparkNew = createChangeCheck();
  const areLabelsNew = createChangeCheck();
  let name = "";
  /** @type {ListedRun | null} */
  let shown = null;
  box.addEventListener("change", () =>
    chooseRuns(box.checked ? [...chosen, name] : [...chosen].filter((each) => each !== name)),
  );
  /** @param {ListedRun} run */
  const show = (run) => {
    shown = run;
    name = run.run;
    box.checked = chosen.has(name);
    box.setAttribute("aria-label", `Choose ${name}`);
    setText(link, run.name || name);
    if (saved && ((run.note ?? "") !== saved.former || Date.now() > saved.until)) saved = null;
    const text = saved ? saved.text : (run.note ?? "");
    setText(note, text);
    setAttributes(edit, { "aria-label": `${text ? "Edit the note" : "Add a note"} about ${name}` });
    for (const each of settings) showSetting(each.cell, run.settings?.[each.name]);
    setText(id, run.name ? name : "");
    link.href = `runs/${encodeName(name)}/`;
    setText(badge, run.state);
    badge.className = `badge ${STATE_CLASSES_OF_LIST[run.state] ?? "critical"}`;
    if (isHealthNew([run.state === "reading", run.health, run.worst_case])) health.replaceChildren(...healthParts(run));
    if (areLabelsNew([run.project, run.tags]))
      labels.replaceChildren(
        ...[run.project, ...(run.tags ?? [])].filter(Boolean).map((text) => element("span", text, "chip")),
      );
    if (isSparkNew(run.sparkline)) spark.replaceChildren(...sparkParts(run.sparkline));
    setText(step, isNumber(run.step) ? formatNumber(run.step) : "");
    setText(age, run.age === null ? "" : `${formatDuration(run.age)} ago`);
    age.title = run.age === null ? "" : formatTime(run.last_written);
    setText(started, formatTime(run.started));
    setText(host, run.host ?? "");
    setText(training, [run.framework, run.algorithm, run.model].filter(Boolean).join(", "));
  };
  return {
    element: row,
    show,
    updateChoice: () => {
      box.checked = chosen.has(name);
    },
  };
}

/**
 * @param {HTMLTableCellElement} cell
 * @param {Setting} value
 */
function showSetting(cell, value) {
  setText(cell, formatNumber(value ?? ""));
  cell.title = value === null || value === undefined ? "" : String(value);
  cell.classList.toggle("number", isNumber(value));
}

/** @param {ListedRun} run */
function healthParts({ state, health, worst_case: worst }) {
  if (state === "reading") return [];
  const pill = element("span", healthText(health), `pill ${healthClass(health)}`);
  return worst ? [pill, " ", textWithCode("span", worst.subject, "subject")] : [pill];
}

/** @param {ListedRun["sparkline"]} line */
function sparkParts(line) {
  if (!line?.values?.length) return [];
  const last = line.last === undefined ? line.values.at(-1) : line.last;
  const shown = isNumber(last)
    ? element("span", formatNumber(last), "number")
    : element("span", "NaN or infinite", "bad");
  const text = container("span", "spark-text", element("span", line.name, "soft"), " ", shown);
  return [container("div", "spark-line", sparkline(line.values, { width: 120, height: 24 })), text];
}

/** @param {string[]} names */
function chooseRuns(names) {
  chosen.clear();
  for (const name of names) chosen.add(name);
  for (const row of listRows.values()) row.updateChoice?.();
  const query = new URLSearchParams([...chosen].map((name) => ["run", name]));
  setAttributes(parts.compare, { hidden: chosen.size < 2, href: chosen.size > 1 ? `compare?${query}` : null });
  showImportanceLink();
  setText(parts.compare, `Compare ${formatCount(chosen.size, "run")}`);
  parts.clear.hidden = !chosen.size;
}

// The importance is that of the chosen runs, else of all that the filter selects.
function showImportanceLink() {
  const filter = listed.filter ? [["filter", listed.filter]] : [];
  const query = new URLSearchParams(chosen.size > 1 ? [...chosen].map((name) => ["run", name]) : filter).toString();
  parts.importance.href = `importance${query ? `?${query}` : ""}`;
}

showColumns();
showImportanceLink();
loadRuns();
