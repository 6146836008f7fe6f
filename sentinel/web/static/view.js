// What the user chose for all charts. It is shared by the sections, and kept in the address, so that
// a link shows the same. The theme is kept in the browser.
import { isNumber, recall, remember } from "./dom.js";

const AXES = ["step", "time", "tokens"];
const THEMES = ["auto", "dark", "light"];

// `axis` is what x shows, `range` its [start, end] or null for everything, in steps, epoch seconds or
// tokens; `smoothing` is from 0 to 0.99, `isLog` for logarithmic values.
export function createView() {
  const listeners = new Set();
  const view = {
    ...viewOfAddress(new URLSearchParams(location.search)),
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    set(changes) {
      if (changes.axis && changes.axis !== view.axis && !("range" in changes)) view.range = null;
      Object.assign(view, changes);
      if ("theme" in changes) remember("theme", view.theme);
      applyTheme(view.theme);
      writeAddress(view);
      for (const listener of [...listeners]) listener(view);
    },
  };
  applyTheme(view.theme);
  // Charts read colours from the style sheet, so they have to know of a change of the system's theme.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (view.theme === "auto") view.set({});
  });
  return view;
}

function viewOfAddress(query) {
  const [start, end] = ["from", "to"].map((name) => (query.has(name) ? Number(query.get(name)) : NaN));
  const theme = query.get("theme") ?? recall("theme");
  const smoothing = Number(query.get("smoothing") ?? 0);
  return {
    axis: AXES.includes(query.get("axis")) ? query.get("axis") : "step",
    range: isNumber(start) && isNumber(end) && start < end ? [start, end] : null,
    smoothing: smoothing >= 0 && smoothing < 1 ? smoothing : 0,
    isLog: query.get("log") === "1",
    theme: THEMES.includes(theme) ? theme : "auto",
  };
}

function writeAddress({ axis, range, smoothing, isLog }) {
  const query = new URLSearchParams(location.search);
  const values = {
    axis: axis === "step" ? null : axis, from: range && range[0], to: range && range[1],
    smoothing: smoothing || null, log: isLog ? 1 : null,
  };
  for (const [name, value] of Object.entries(values)) {
    if (value === null) query.delete(name);
    else query.set(name, isNumber(value) ? Number(value.toPrecision(12)) : value);
  }
  const text = query.toString();
  try {
    history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}${location.hash}`);
  } catch {
    // A report that is opened as a file may not change its address.
  }
}

function applyTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
}
