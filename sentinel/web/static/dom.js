// Elements and texts of the page. All content is set as text, never as HTML: names and messages
// come from training code.

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string | number} [text]
 * @param {string} [className]
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, text = "", className = "") {
  const node = document.createElement(tag);
  if (text !== "") node.textContent = String(text);
  if (className) node.className = className;
  return node;
}

/**
 * The element with this id, which each page has. Throws an Error if there is none.
 * @param {string} id
 */
export function pageElement(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`This page has no element with the id ${id}.`);
  return node;
}

/** The element that has the focus; null if that is none, or one without a layout. */
export function focusedElement() {
  return document.activeElement instanceof HTMLElement ? document.activeElement : null;
}

/**
 * What was thrown, as a text for people.
 * @param {unknown} error
 */
export function errorMessage(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * An element with children; those that are false, null or empty are left out.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} [className]
 * @param {Child[]} children
 */
export function container(tag, className, ...children) {
  const node = element(tag, "", className);
  for (const child of children)
    if (child !== false && child !== null && child !== undefined && child !== "") node.append(child);
  return node;
}

/**
 * Text in which names are between backticks, such as names of settings.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} text
 * @param {string} [className]
 */
export function textWithCode(tag, text, className = "") {
  const parts = String(text).split("`");
  if (parts.length % 2 === 0) return element(tag, text, className);
  return container(tag, className, ...parts.map((part, index) => part && (index % 2 ? element("code", part) : part)));
}

/**
 * @param {string} text
 * @param {() => void} onClick
 * @param {string} [className]
 */
export function button(text, onClick, className = "") {
  const node = element("button", text, `button ${className}`.trim());
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

/**
 * The attributes of an element; null and false remove one.
 * @template {Element} T
 * @param {T} node
 * @param {Record<string, string | number | boolean | null | undefined>} attributes
 */
export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

/**
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string | number | null>} attributes
 * @returns {SVGElementTagNameMap[T]}
 */
export function svgElement(tag, attributes) {
  return setAttributes(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes);
}

/**
 * A select with [value, text] options.
 * @param {string} label
 * @param {Option[]} options
 * @param {(value: string) => void} onChange
 */
export function choice(label, options, onChange) {
  const node = element("select");
  node.setAttribute("aria-label", label);
  node.append(...options.map(([value, text]) => setAttributes(element("option", text), { value })));
  node.addEventListener("change", () => onChange(node.value));
  return node;
}

/**
 * Text of a node, set only after a change, so that a selection and a screen reader are left alone.
 * @param {Node} node
 * @param {string | number} text
 */
export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = String(text);
}

/** @param {string} text */
export function emptyState(text) {
  return textWithCode("p", text, "empty");
}

/**
 * Whether a value differs from the last one given to this function.
 * @returns {(value: unknown) => boolean}
 */
export function createChangeCheck() {
  /** @type {string | undefined} */
  let last;
  return (value) => {
    const text = JSON.stringify(value);
    const isChanged = text !== last;
    last = text;
    return isChanged;
  };
}

/**
 * A table whose cells are replaced only after a change. `columns` are { title, className }, or texts;
 * a cell is a text, a number or an element.
 * @param {string} label
 * @param {(string | { title: string, className?: string })[]} columns
 */
export function createTable(label, columns) {
  /** @type {{ title: string, className?: string }[]} */
  const heads = columns.map((column) => (typeof column === "string" ? { title: column } : column));
  const titles = container(
    "tr",
    "",
    ...heads.map(({ title, className }) => setAttributes(element("th", title, className), { scope: "col" })),
  );
  const body = element("tbody");
  const table = container("table", "", container("thead", "", titles), body);
  const wide = setAttributes(container("div", "wide", table), { role: "region", "aria-label": label, tabindex: 0 });
  return { element: wide, body, setRows: (/** @type {Cell[][]} */ rows) => fillRows(body, rows, heads) };
}

/**
 * @param {HTMLTableSectionElement} body
 * @param {Cell[][]} rows
 * @param {{ className?: string }[]} heads
 */
function fillRows(body, rows, heads) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((cell, column) => {
      const node = row.cells[column] ?? row.insertCell();
      node.className = heads[column].className ?? "";
      if (cell instanceof Node) {
        if (!node.firstChild?.isEqualNode(cell)) node.replaceChildren(cell);
      } else setText(node, formatNumber(cell));
    });
  });
}

/**
 * Four significant digits, thousands apart; texts stay as they are, what is unknown is empty.
 * @param {unknown} value
 */
export function formatNumber(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return size < 1e4 ? String(value) : value.toLocaleString("en-US");
  if (size !== 0 && (size < 1e-4 || size >= 1e9))
    return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

// A report is read on other days than that of its making.
const isDated = document.getElementById("report-data") !== null;

/**
 * A time in UTC, as in notifications, with its date; empty for a number that is no time.
 * @param {unknown} seconds
 */
export function formatDate(seconds) {
  return isNumber(seconds) && Math.abs(seconds) < 1e11
    ? `${new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`
    : "";
}

/**
 * The same without the date of today.
 * @param {unknown} seconds
 */
export function formatTime(seconds) {
  const text = formatDate(seconds);
  const isToday = text.slice(0, 10) === new Date().toISOString().slice(0, 10);
  return isToday && !isDated ? text.slice(11) : text;
}

/**
 * A duration in its two largest units.
 * @param {unknown} seconds
 */
export function formatDuration(seconds) {
  if (!isNumber(seconds)) return "";
  const size = Math.max(0, seconds);
  if (size < 1) return `${Math.round(size * 1000)} ms`;
  if (size < 10) return `${Number(size.toFixed(1))} s`;
  if (size < 120) return `${Math.round(size)} s`;
  const minutes = Math.round(size / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 && hours < 10 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 10 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** @param {unknown} ratio */
export function formatPercent(ratio) {
  return isNumber(ratio) ? `${Math.round(100 * ratio)} %` : "";
}

/** @param {unknown} bytes */
export function formatBytes(bytes) {
  if (!isNumber(bytes)) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, bytes < 1 ? 0 : Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 2 ** (10 * power);
  return `${power === 0 || value >= 100 ? Math.round(value) : Number(value.toFixed(1))} ${units[power]}`;
}

/**
 * Ranks as ranges: 0-3, 6.
 * @param {number[]} ranks
 */
export function formatRanks(ranks) {
  /** @type {Span[]} */
  const ranges = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else ranges.push([rank, rank]);
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

/**
 * @param {number} count
 * @param {string} noun
 */
export function formatCount(count, noun) {
  return `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * How many cases are open, or were when the run ended; empty if none is.
 * @param {number} count
 * @param {boolean} hasEnded
 */
export function formatOpenCount(count, hasEnded) {
  return count ? `${count} open${hasEnded ? " when the run ended" : ""}` : "";
}

/**
 * How many cases were open when their training, one of several of the run, ended.
 * @param {number} count
 */
export function formatTrainingEndCount(count) {
  return count ? `${count} open when ${count === 1 ? "its" : "their"} training ended` : "";
}

/** @param {string} text */
export function capitalize(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}` : "";
}

/**
 * @param {unknown} value
 * @returns {value is number}
 */
export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/**
 * Whether the run is not over.
 * @param {{ state: string }} run
 */
export function isActive({ state }) {
  return ["running", "starting", "stalled"].includes(state);
}

/**
 * CSS class of the severity of an incident or case.
 * @param {{ severity: string }} problem
 * @returns {Severity}
 */
export function severityClass({ severity }) {
  return severity === "critical" || severity === "warning" ? severity : "info";
}

/** @type {Record<string, string>} */
const HEALTH_CLASSES = {
  healthy: "ok",
  ended_well: "ok",
  warning: "warning",
  critical: "critical",
  ended_badly: "critical",
};

/**
 * CSS class of the status of a verdict.
 * @param {string | undefined} health
 */
export function healthClass(health) {
  return HEALTH_CLASSES[health ?? ""] ?? "info";
}

/**
 * The status of a verdict in words.
 * @param {string | undefined} health
 */
export function healthText(health) {
  return (health ?? "unknown").replaceAll("_", " ");
}

/**
 * CSS class of a verdict: an end with a warning, and a run with steps of which nothing is known, are no good news.
 * @param {Verdict} verdict
 */
export function verdictClass({ status, severity, step }) {
  const isDoubtful = status === "ended_well" ? severity === "warning" : status === "unknown" && step !== null;
  return isDoubtful ? "warning" : healthClass(status);
}

// The order of names with numbers in them: layer_2 before layer_10.
export const NATURAL_ORDER = new Intl.Collator("en", { numeric: true }).compare;

/**
 * The items by their key, in their order.
 * @template T, K
 * @param {Iterable<T>} items
 * @param {(item: T) => K} keyOf
 * @returns {Map<K, T[]>}
 */
export function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const group = groups.get(key);
    if (group) group.push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

/**
 * The value of a key that a map has. Throws an Error for another one.
 * @template K, V
 * @param {Map<K, V>} map
 * @param {K} key
 */
export function known(map, key) {
  const value = map.get(key);
  if (value === undefined) throw new Error(`Nothing is known of ${key}.`);
  return value;
}

/**
 * A name as part of an address; half of a surrogate pair, which it may have, is replaced.
 * @param {string} name
 */
export function encodeName(name) {
  return encodeURIComponent(String(name).replace(/\p{Surrogate}/gu, "\ufffd"));
}

/**
 * A short message at the foot of the page; screen readers read it.
 * @param {string} text
 */
export function showToast(text) {
  const toast = element("div", text, "toast");
  document.getElementById("toasts")?.append(toast);
  setTimeout(() => toast.remove(), 6000);
}

/**
 * What this browser remembers of the page. Storage can be forbidden, and then nothing is.
 * @param {string} key
 * @param {string | null} value
 */
export function remember(key, value) {
  try {
    if (value === null) localStorage.removeItem(`sentinel.${key}`);
    else localStorage.setItem(`sentinel.${key}`, value);
  } catch {
    // The page works without it.
  }
}

/** @param {string} key */
export function recall(key) {
  try {
    return localStorage.getItem(`sentinel.${key}`);
  } catch {
    return null;
  }
}
