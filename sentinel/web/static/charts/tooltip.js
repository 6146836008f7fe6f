// The values at the position under the pointer, in a box below or above the chart, so that it hides no curve.
import { container, element } from "../dom.js";

// Of more curves, those closest to the pointer are listed.
const TOOLTIP_MAX_ROWS = 6;
const TOOLTIP_GAP = 6;

/** @type {HTMLElement | null} */
let tooltipBox = null;

/**
 * Show `title` and rows { label, texts, color, dash } for a plot: `texts` are under the columns that
 * `heads` names, if any. A row may have a `sample` of its line instead of the colour. `left` is the
 * position in the window.
 * @param {HTMLElement} plot
 * @param {number} left
 * @param {Tooltip} tooltip
 */
export function showTooltip(plot, left, { title, heads = [], rows, note = "" }) {
  tooltipBox ??= createTooltip();
  const cells = rows.map(({ label, texts, color, dash, sample, isNearest }) =>
    container(
      "tr",
      isNearest ? "nearest" : "",
      container("th", "", sample ?? (color && tooltipSwatch(color, dash)), label),
      ...texts.map((text) => element("td", text)),
    ),
  );
  const table = container(
    "table",
    "",
    heads.length > 0 &&
      container("thead", "", container("tr", "", element("th"), ...heads.map((head) => element("td", head, "soft")))),
    container("tbody", "", ...cells),
  );
  tooltipBox.replaceChildren(...[element("strong", title), table, note && element("p", note, "soft")].filter(Boolean));
  tooltipBox.setAttribute("aria-hidden", "true");
  if (!tooltipBox.isConnected) document.body.append(tooltipBox);
  const [area, size] = [plot.getBoundingClientRect(), tooltipBox.getBoundingClientRect()];
  const below = area.bottom + TOOLTIP_GAP;
  const top = below + size.height <= innerHeight ? below : Math.max(0, area.top - TOOLTIP_GAP - size.height);
  const start = Math.max(
    TOOLTIP_GAP,
    Math.min(left - size.width / 2, document.documentElement.clientWidth - size.width - TOOLTIP_GAP),
  );
  tooltipBox.style.transform = `translate(${Math.round(start)}px, ${Math.round(top)}px)`;
}

// A press or a scroll anywhere ends it: a finger leaves nothing that would.
function createTooltip() {
  for (const name of ["pointerdown", "scroll"]) addEventListener(name, hideTooltip, true);
  return element("div", "", "tooltip");
}

export function hideTooltip() {
  tooltipBox?.remove();
}

/**
 * The rows whose `top` in the plot is closest to that of the pointer, in their order on the screen, and
 * how many others there are.
 * @param {(TooltipRow & { top: number })[]} rows
 * @param {number} pointerTop
 * @returns {{ rows: TooltipRow[], others: number }}
 */
export function closestRows(rows, pointerTop) {
  const closest = rows
    .toSorted((a, b) => Math.abs(a.top - pointerTop) - Math.abs(b.top - pointerTop))
    .slice(0, TOOLTIP_MAX_ROWS);
  if (closest.length > 1) closest[0] = { ...closest[0], isNearest: true };
  return { rows: closest.sort((a, b) => a.top - b.top), others: rows.length - closest.length };
}

/**
 * @param {string} color
 * @param {boolean | undefined} dash
 */
function tooltipSwatch(color, dash) {
  const swatch = element("i", "", dash ? "dashed" : "");
  swatch.style.setProperty("color", color);
  return swatch;
}
