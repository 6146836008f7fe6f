// What keys do, and the dialogs that they open: help, and search of the page.
import { container, element, recall, remember, setAttributes } from "./dom.js";
import { openDialog } from "./dialog.js";
import { revealNode } from "./frame.js";
import { jumpToIncident, moveRange } from "./sections/curves.js";

const SEARCH_RESULTS = 40;
const SMOOTHING_STEPS = [0, 0.6, 0.9];
const AXIS_ORDER = ["step", "time", "tokens"];
const THEME_ORDER = ["auto", "dark", "light"];

/** @type {[string[], string][]} */
const SHORTCUTS = [
  [["/"], "search sections, cases and signals"],
  [["n", "p"], "next and previous incident"],
  [["[", "]"], "zoom to the previous and next incident"],
  [["1", "2", "3", "4"], "whole run, last half, last 10 %, last 1 %"],
  [["0"], "reset the zoom"],
  [["+", "-"], "zoom in and out"],
  [["<", ">"], "earlier and later"],
  [["a"], "axis: step, time, tokens"],
  [["s"], "smoothing"],
  [["l"], "logarithmic scale"],
  [["t"], "theme"],
  [["c"], "collapse or expand all sections"],
  [["?"], "this help"],
  [["Esc"], "close a dialog"],
];

/**
 * `page` is that of run.js.
 * @param {Page} page
 */
export function installKeyboard(page) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.altKey || isTyping(event.target)) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "k") {
      event.preventDefault();
      openSearchDialog(page);
      return;
    }
    if (event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    if (recall("shortcuts") === "off" && event.key !== "?") return;
    if (pressKey(event.key, page)) event.preventDefault();
  });
}

/**
 * Whether the key has a meaning.
 * @param {string} key
 * @param {Page} page
 */
function pressKey(key, page) {
  const { view } = page;
  /**
   * @template T
   * @param {T[]} order
   * @param {T} value
   * @returns {T}
   */
  const next = (order, value) => order[(order.indexOf(value) + 1) % order.length];
  switch (key) {
    case "/":
      openSearchDialog(page);
      return true;
    case "?":
      openHelpDialog();
      return true;
    case "n":
      focusIncident(1);
      return true;
    case "p":
      focusIncident(-1);
      return true;
    case "[":
      jumpToIncident(page, -1);
      return true;
    case "]":
      jumpToIncident(page, 1);
      return true;
    case "0":
      view.set({ range: null });
      return true;
    case "1":
    case "2":
    case "3":
    case "4":
      page.toolbar.selectRange(Number(key) - 1);
      return true;
    case "+":
      moveRange(page, 0.5, 0);
      return true;
    case "-":
      moveRange(page, 2, 0);
      return true;
    case "<":
      moveRange(page, 1, -0.5);
      return true;
    case ">":
      moveRange(page, 1, 0.5);
      return true;
    case "a":
      view.set({ axis: next(AXIS_ORDER, view.axis) });
      return true;
    case "s":
      view.set({ smoothing: next(SMOOTHING_STEPS, view.smoothing) });
      return true;
    case "l":
      view.set({ isLog: !view.isLog });
      return true;
    case "t":
      view.set({ theme: next(THEME_ORDER, view.theme) });
      return true;
    case "c":
      page.frame.toggleAll();
      return true;
    default:
      return false;
  }
}

/** @param {EventTarget | null} node */
function isTyping(node) {
  if (node instanceof HTMLInputElement) return node.type !== "range";
  if (node instanceof HTMLTextAreaElement || node instanceof HTMLSelectElement) return true;
  return node instanceof HTMLElement && node.isContentEditable;
}

let focusedIncident = "";

/**
 * Cases first, then those that are over, in the order of the page.
 * @param {1 | -1} direction
 */
function focusIncident(direction) {
  const nodes = [...document.querySelectorAll("[id^='case-']")];
  if (!nodes.length) return;
  const index = nodes.findIndex(({ id }) => id === focusedIncident);
  const node =
    nodes[index === -1 ? (direction > 0 ? 0 : nodes.length - 1) : (index + direction + nodes.length) % nodes.length];
  focusedIncident = node.id;
  revealNode(node);
}

export function openHelpDialog() {
  const keys = container(
    "dl",
    "keys",
    ...SHORTCUTS.flatMap(([names, text]) => [
      container("dt", "nowrap", ...names.flatMap((name) => [element("kbd", name), " "])),
      element("dd", text),
    ]),
  );
  const isOn = setAttributes(element("input"), { type: "checkbox", id: "shortcuts" });
  isOn.checked = recall("shortcuts") !== "off";
  isOn.addEventListener("change", () => remember("shortcuts", isOn.checked ? null : "off"));
  const label = setAttributes(element("label", " Single keys are shortcuts"), { for: "shortcuts" });
  openDialog("Keyboard shortcuts", container("div", "", keys, container("p", "", isOn, label)));
}

/**
 * Sections, cases and signals whose names contain the words.
 * @param {Page} page
 */
export function openSearchDialog(page) {
  const input = setAttributes(element("input", "", "input"), {
    type: "search",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "results",
    "aria-label": "Search",
    autocomplete: "off",
    placeholder: "Section, case or signal",
  });
  const list = setAttributes(element("ul", "", "results"), { role: "listbox", id: "results", "aria-label": "Results" });
  const dialog = openDialog("Search", container("div", "", input, list));
  const targets = page.searchTargets();
  /** @type {SearchTarget[]} */
  let shown = [];
  let selected = 0;

  /** @param {number} index */
  const select = (index) => {
    selected = Math.max(0, Math.min(index, shown.length - 1));
    [...list.children].forEach((node, each) => node.setAttribute("aria-selected", String(each === selected)));
    setAttributes(input, { "aria-activedescendant": list.children[selected]?.id ?? null });
    list.children[selected]?.scrollIntoView({ block: "nearest" });
  };
  /** @param {number} index */
  const go = (index) => {
    const target = shown[index];
    if (!target) return;
    dialog.addEventListener("close", () => target.open());
    dialog.close();
  };
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = targets
      .filter(({ text }) => words.every((word) => text.toLowerCase().includes(word)))
      .slice(0, SEARCH_RESULTS);
    list.replaceChildren(
      ...shown.map(({ text, kind }, index) => {
        const item = setAttributes(container("li", "", element("span", text), element("span", kind, "soft")), {
          role: "option",
          id: `result-${index}`,
        });
        item.addEventListener("click", () => go(index));
        return item;
      }),
    );
    select(0);
  };
  input.addEventListener("input", show);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") select(selected + 1);
    else if (event.key === "ArrowUp") select(selected - 1);
    else if (event.key === "Enter") go(selected);
    else return;
    event.preventDefault();
  });
  show();
  input.focus();
}
