// What the user chose for all charts. It is shared by the sections, and kept in the address, so that
// a link shows the same. A zoom is an entry of the browser's history. The theme is kept in the browser.
import { choice, element, isNumber, recall, remember, setAttributes } from "./dom.js";
import { axisSignal } from "./charts/horizontal_axis.js";

const AXES = ["step", "time", "tokens"];
/** @type {Option[]} */
const THEMES = [
  ["auto", "Theme: auto"],
  ["dark", "Theme: dark"],
  ["light", "Theme: light"],
];
// Zooms that follow each other this soon, as those of a key that is held, are one entry of the history.
const VIEW_ENTRY_MS = 400;

/**
 * `axis` is what x shows, `range` its [start, end] or null for everything, in steps, epoch seconds,
 * tokens or values of a signal; `smoothing` is from 0 to 0.99, `isLog` for logarithmic values, `folded`
 * the names of the groups of charts that are folded. `axes` are those of the page.
 * @param {string[]} [axes]
 * @returns {View}
 */
export function createView(axes = AXES) {
  /** @type {Set<(view: View) => void>} */
  const listeners = new Set();
  let pushedAt = -Infinity;
  const announce = () => {
    for (const listener of [...listeners]) listener(view);
  };
  /** @type {View} */
  const view = {
    ...viewOfAddress(new URLSearchParams(location.search), axes),
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    // `isNewEntry` is false for a range that follows the run.
    set(changes, isNewEntry = true) {
      const before = JSON.stringify(view.range);
      if (changes.axis && changes.axis !== view.axis && !("range" in changes)) view.range = null;
      Object.assign(view, changes);
      if ("theme" in changes) remember("theme", view.theme);
      applyTheme(view.theme);
      const isZoom = isNewEntry && JSON.stringify(view.range) !== before;
      const now = performance.now();
      writeAddress(view, isZoom && now - pushedAt > VIEW_ENTRY_MS);
      if (isZoom) pushedAt = now;
      announce();
    },
  };
  applyTheme(view.theme);
  // Back and forward change what is shown of the run, and not how.
  addEventListener("popstate", () => {
    const { axis, range } = viewOfAddress(new URLSearchParams(location.search), axes);
    if (axis === view.axis && JSON.stringify(range) === JSON.stringify(view.range)) return;
    Object.assign(view, { axis, range });
    pushedAt = -Infinity;
    writeAddress(view, false);
    announce();
  });
  // Charts read colours from the style sheet, so they have to know of a change of the system's theme.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (view.theme === "auto") view.set({});
  });
  return view;
}

/**
 * The choice of the theme, which follows the view.
 * @param {View} view
 */
export function createThemeChoice(view) {
  const node = choice("Theme", THEMES, (theme) => view.set({ theme }));
  const show = () => {
    node.value = view.theme;
  };
  view.subscribe(show);
  show();
  return node;
}

/**
 * The slider of the smoothing, which follows the view.
 * @param {View} view
 */
export function createSmoothing(view) {
  const node = setAttributes(element("input"), {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    "aria-label": "Smoothing",
  });
  node.addEventListener("input", () => view.set({ smoothing: Number(node.value) }));
  const show = () => {
    node.value = String(view.smoothing);
  };
  view.subscribe(show);
  show();
  return node;
}

/**
 * @param {URLSearchParams} query
 * @param {string[]} axes
 * @returns {ViewState}
 */
function viewOfAddress(query, axes) {
  const [start, end] = ["from", "to"].map((name) => (query.has(name) ? Number(query.get(name)) : NaN));
  const theme = query.get("theme") ?? recall("theme") ?? "auto";
  const smoothing = Number(query.get("smoothing") ?? 0);
  const axis = query.get("axis") ?? "";
  return {
    axis: axes.includes(axis) || axisSignal(axis) ? axis : "step",
    range: isNumber(start) && isNumber(end) && start < end ? [start, end] : null,
    smoothing: smoothing >= 0 && smoothing < 1 ? smoothing : 0,
    isLog: query.get("log") === "1",
    folded: query.getAll("folded"),
    theme: THEMES.some(([name]) => name === theme) ? theme : "auto",
  };
}

/**
 * @param {ViewState} view
 * @param {boolean} isNewEntry
 */
function writeAddress({ axis, range, smoothing, isLog, folded }, isNewEntry) {
  const query = new URLSearchParams(location.search);
  const values = {
    axis: axis === "step" ? null : axis,
    from: range && range[0],
    to: range && range[1],
    smoothing: smoothing || null,
    log: isLog ? 1 : null,
  };
  for (const [name, value] of Object.entries(values)) {
    if (value === null) query.delete(name);
    else query.set(name, isNumber(value) ? String(Number(value.toPrecision(12))) : value);
  }
  query.delete("folded");
  for (const name of folded) query.append("folded", name);
  const text = query.toString();
  try {
    history[isNewEntry ? "pushState" : "replaceState"](
      null,
      "",
      `${location.pathname}${text ? `?${text}` : ""}${location.hash}`,
    );
  } catch {
    // A report that is opened as a file may not change its address.
  }
}

/** @param {string} theme */
function applyTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
}
