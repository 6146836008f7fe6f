// Controls of the view that all charts share: axis, range, smoothing, scale and theme.
import {
  button,
  choice,
  container,
  element,
  formatNumber,
  formatTime,
  setAttributes,
  setText,
  isNumber,
} from "./dom.js";
import { createSmoothing, createThemeChoice } from "./view.js";
import { chartContext } from "./charts/context.js";
import { axisOfSignal, axisSignal } from "./charts/horizontal_axis.js";

/** @type {Option[]} */
const RANGE_CHOICES = [
  ["all", "Whole run"],
  ["0.5", "Last half"],
  ["0.1", "Last 10 %"],
  ["0.01", "Last 1 %"],
];

/**
 * `element` is the toolbar; `update` gets the run, because a range of the last part moves with it.
 * @param {Page} page
 * @param {() => void} openHelp
 * @param {() => void} openSearch
 * @returns {Toolbar}
 */
export function createToolbar(page, openHelp, openSearch) {
  const { view } = page;
  /** @type {RunState | null} */
  let run = null;
  let share = 0;

  const axis = segmented(
    "Axis",
    [
      ["step", "Step"],
      ["time", "Time (UTC)"],
      ["tokens", "Tokens"],
    ],
    (value) => view.set({ axis: value }),
  );
  const signal = choice("Axis: values of a signal", [["", "Signal"]], (value) =>
    view.set({ axis: value ? axisOfSignal(value) : "step" }),
  );
  signal.classList.add("axis-signal");
  signal.title = "Show the curves over the values of a signal, joined by step";
  fillSignals(chartContext(page), signal, () => show());
  const range = choice("Range", RANGE_CHOICES, (value) => {
    share = value === "all" ? 0 : Number(value);
    view.set({ range: share ? lastPart(share) : null });
  });
  const custom = setAttributes(element("option"), { value: "custom", hidden: true });
  range.append(custom);
  const smoothing = createSmoothing(view);
  const amount = element("span", "0", "number");
  const log = button("Log", () => view.set({ isLog: !view.isLog }));
  log.title = "Logarithmic scale (l)";
  const theme = createThemeChoice(view);
  const help = button("?", openHelp);
  setAttributes(help, { "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)" });
  const search = button("Search", openSearch);
  search.title = "Search sections, cases and signals (/)";

  const root = setAttributes(
    container(
      "div",
      "toolbar",
      container("span", "axes", axis.element, signal),
      range,
      container("label", "", "Smoothing", smoothing, amount),
      log,
      theme,
      search,
      help,
    ),
    { role: "toolbar", "aria-label": "View", id: "toolbar" },
  );
  const toggle = button(
    "View",
    () => {
      root.classList.toggle("shown");
      toggle.setAttribute("aria-expanded", String(root.classList.contains("shown")));
    },
    "small view-toggle",
  );
  setAttributes(toggle, { "aria-expanded": "false", "aria-controls": "toolbar" });

  // The end of the run in the unit of the axis, and where it began.
  /** @returns {Span | null} */
  const extent = () => {
    if (!run) return null;
    if (view.axis === "step") return isNumber(run.step) ? [0, run.step] : null;
    if (view.axis === "time")
      return isNumber(run.started) && isNumber(run.last_step_time) ? [run.started, run.last_step_time] : null;
    if (view.axis !== "tokens") return null;
    const tokens = run.signals?.tokens_seen?.value;
    return isNumber(tokens) ? [0, tokens] : null;
  };
  /**
   * @param {number} part
   * @returns {Span | null}
   */
  const lastPart = (part) => {
    const whole = extent();
    return whole && [whole[1] - part * (whole[1] - whole[0]), whole[1]];
  };
  const show = () => {
    const name = axisSignal(view.axis);
    axis.select(view.axis);
    if (name !== null && ![...signal.options].some(({ value }) => value === name))
      signal.append(signalOption(name, name));
    signal.value = name ?? "";
    signal.classList.toggle("chosen", name !== null);
    // The end of a run is at no end of the values of a signal.
    for (const option of range.options) option.disabled = name !== null && Number(option.value) > 0;
    setText(amount, view.smoothing.toFixed(2));
    log.setAttribute("aria-pressed", String(view.isLog));
    custom.hidden = !view.range || share > 0;
    setText(custom, view.range ? rangeText(view.axis, view.range) : "");
    range.value = !view.range ? "all" : share > 0 ? String(share) : "custom";
  };
  view.subscribe(({ range: shown }) => {
    const expected = share && lastPart(share);
    if (share && (!shown || !expected || shown[0] !== expected[0])) share = 0;
    show();
  });
  show();
  return {
    element: root,
    toggle,
    update(newRun) {
      run = newRun;
      const part = share ? lastPart(share) : null;
      // Not at every step, since all charts are drawn again.
      if (part && view.range && part[1] - view.range[1] > 0.02 * (part[1] - part[0])) view.set({ range: part }, false);
    },
    selectRange(index) {
      range.selectedIndex = index;
      range.dispatchEvent(new Event("change"));
    },
  };
}

/**
 * The signals that the run logs with its steps.
 * @param {ChartContext} context
 * @param {HTMLSelectElement} select
 * @param {() => void} show
 */
function fillSignals(context, select, show) {
  const load = () =>
    context.signals().then(
      (signals) => {
        const known = signals.filter(({ event, count }) => event !== "heartbeat" && count > 0);
        select.replaceChildren(
          signalOption("", "Signal"),
          ...known.map(({ name, label }) => signalOption(name, label || name)),
        );
        show();
      },
      () => {},
    );
  context.signalListeners.add(load);
  load();
}

/**
 * @param {string} value
 * @param {string} text
 */
function signalOption(value, text) {
  return setAttributes(element("option", text), { value });
}

/**
 * @param {string} axis
 * @param {Span} range
 */
function rangeText(axis, range) {
  /** @param {number} value */
  const number = (value) => formatNumber(axisSignal(axis) === null ? Math.round(value) : Number(value.toPrecision(3)));
  const [start, end] = range.map(axis === "time" ? formatTime : number);
  return `${start} – ${end}`;
}

/**
 * @param {string} label
 * @param {Option[]} options
 * @param {(value: string) => void} onChange
 */
function segmented(label, options, onChange) {
  const buttons = options.map(([value, text]) => {
    const node = setAttributes(element("button", text), { type: "button", "data-value": value });
    node.addEventListener("click", () => onChange(value));
    return node;
  });
  return {
    element: setAttributes(container("div", "segmented", ...buttons), { role: "group", "aria-label": label }),
    /** @param {string} value */
    select(value) {
      for (const node of buttons) node.setAttribute("aria-pressed", String(node.dataset.value === value));
    },
  };
}
