// Elements and texts of the page. All content is set as text, never as HTML: names and messages
// come from training code.

export function element(tag, text = "", className = "") {
  const node = document.createElement(tag);
  if (text !== "") node.textContent = text;
  if (className) node.className = className;
  return node;
}

// An element with children; those that are false, null or empty are left out.
export function container(tag, className, ...children) {
  const node = element(tag, "", className);
  node.append(...children.filter((child) => child !== false && child !== null && child !== undefined && child !== ""));
  return node;
}

// Text in which names are between backticks, such as names of settings.
export function textWithCode(tag, text, className = "") {
  const parts = String(text).split("`");
  if (parts.length % 2 === 0) return element(tag, text, className);
  return container(tag, className, ...parts.map((part, index) => part && (index % 2 ? element("code", part) : part)));
}

export function button(text, onClick, className = "") {
  const node = element("button", text, `button ${className}`.trim());
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

// The attributes of an element; null and false remove one.
export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

export function svgElement(tag, attributes) {
  return setAttributes(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes);
}

// A select with [value, text] options.
export function choice(label, options, onChange) {
  const node = element("select");
  node.setAttribute("aria-label", label);
  node.append(...options.map(([value, text]) => setAttributes(element("option", text), { value })));
  node.addEventListener("change", () => onChange(node.value));
  return node;
}

// Text of a node, set only after a change, so that a selection and a screen reader are left alone.
export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

export function emptyState(text) {
  return textWithCode("p", text, "empty");
}

// Whether a value differs from the last one given to this function.
export function createChangeCheck() {
  let last;
  return (value) => {
    const text = JSON.stringify(value);
    const isChanged = text !== last;
    last = text;
    return isChanged;
  };
}

// A table whose cells are replaced only after a change. `columns` are { title, className }, or texts;
// a cell is a text, a number or an element.
export function createTable(label, columns) {
  const heads = columns.map((column) => (typeof column === "string" ? { title: column } : column));
  const titles = container(
    "tr",
    "",
    ...heads.map(({ title, className }) => setAttributes(element("th", title, className), { scope: "col" })),
  );
  const body = element("tbody");
  const table = container("table", "", container("thead", "", titles), body);
  const wide = setAttributes(container("div", "wide", table), { role: "region", "aria-label": label, tabindex: 0 });
  return { element: wide, body, setRows: (rows) => fillRows(body, rows, heads) };
}

function fillRows(body, rows, heads) {
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  rows.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((cell, column) => {
      const node = row.cells[column] ?? row.insertCell();
      node.className = heads[column].className ?? "";
      if (cell instanceof Node) {
        if (!node.firstChild?.isEqualNode(cell) || cell.dataset?.isLive) node.replaceChildren(cell);
      } else setText(node, formatNumber(cell));
    });
  });
}

// Four significant digits, thousands apart; texts stay as they are, what is unknown is empty.
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

// A time in UTC, as in notifications, with its date; empty for a number that is no time.
export function formatDate(seconds) {
  return isNumber(seconds) && Math.abs(seconds) < 1e11
    ? `${new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`
    : "";
}

// The same without the date of today.
export function formatTime(seconds) {
  const text = formatDate(seconds);
  const isToday = text.slice(0, 10) === new Date().toISOString().slice(0, 10);
  return isToday && !isDated ? text.slice(11) : text;
}

// A duration in its two largest units.
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

export function formatPercent(ratio) {
  return isNumber(ratio) ? `${Math.round(100 * ratio)} %` : "";
}

export function formatBytes(bytes) {
  if (!isNumber(bytes)) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, bytes < 1 ? 0 : Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 2 ** (10 * power);
  return `${power === 0 || value >= 100 ? Math.round(value) : Number(value.toFixed(1))} ${units[power]}`;
}

// Ranks as ranges: 0-3, 6.
export function formatRanks(ranks) {
  const ranges = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else ranges.push([rank, rank]);
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

export function formatCount(count, noun) {
  return `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// How many cases are open, or were when the run ended; empty if none is.
export function formatOpenCount(count, hasEnded) {
  return count ? `${count} open${hasEnded ? " when the run ended" : ""}` : "";
}

// How many cases were open when their training, one of several of the run, ended.
export function formatTrainingEndCount(count) {
  return count ? `${count} open when ${count === 1 ? "its" : "their"} training ended` : "";
}

export function capitalize(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}` : "";
}

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Whether the run is not over.
export function isActive({ state }) {
  return ["running", "starting", "stalled"].includes(state);
}

// CSS class of the severity of an incident or case.
export function severityClass({ severity }) {
  return ["critical", "warning"].includes(severity) ? severity : "info";
}

// CSS class of the health of a run.
export function healthClass(health) {
  return ["ok", "warning", "critical"].includes(health) ? health : "info";
}

// The order of names with numbers in them: layer_2 before layer_10.
export const NATURAL_ORDER = new Intl.Collator("en", { numeric: true }).compare;

// The items by their key, in their order.
export function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

// A name as part of an address; half of a surrogate pair, which it may have, is replaced.
export function encodeName(name) {
  return encodeURIComponent(String(name).replace(/\p{Surrogate}/gu, "\ufffd"));
}

// A short message at the foot of the page; screen readers read it.
export function showToast(text) {
  const toast = element("div", text, "toast");
  document.getElementById("toasts")?.append(toast);
  setTimeout(() => toast.remove(), 6000);
}

// What this browser remembers of the page. Storage can be forbidden, and then nothing is.
export function remember(key, value) {
  try {
    if (value === null) localStorage.removeItem(`sentinel.${key}`);
    else localStorage.setItem(`sentinel.${key}`, value);
  } catch {
    // The page works without it.
  }
}

export function recall(key) {
  try {
    return localStorage.getItem(`sentinel.${key}`);
  } catch {
    return null;
  }
}
