// A button that opens a short list of actions, as the menu buttons of WAI-ARIA.
import { button, container, element, setAttributes } from "./dom.js";

let menuCount = 0;

/**
 * `items()` returns [text, action] pairs each time it opens; `label` is for screen readers.
 * @param {string} text
 * @param {string} label
 * @param {() => [string, () => void][]} items
 */
export function createMenu(text, label, items) {
  const id = `menu-${++menuCount}`;
  const list = setAttributes(element("div", "", "menu-items"), { role: "menu", id, "aria-label": label, hidden: true });
  const toggle = setAttributes(
    button(text, () => (list.hidden ? open(0) : close()), "quiet small"),
    { "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": id, "aria-label": label },
  );
  const root = container("span", "menu", toggle, list);

  // The items stand in a ring: -1 is the last one.
  const focusItem = (/** @type {number} */ index) => {
    const item = list.children[(index + list.children.length) % list.children.length];
    if (item instanceof HTMLElement) item.focus();
  };
  const close = () => {
    list.hidden = true;
    toggle.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", closeOutside, true);
  };
  /** @param {Event} event */
  const closeOutside = (event) => {
    if (event.target instanceof Node && !root.contains(event.target)) close();
  };
  /** @param {number} index */
  const open = (index) => {
    list.replaceChildren(
      ...items().map(([name, action]) =>
        setAttributes(
          button(
            name,
            () => {
              close();
              toggle.focus();
              action();
            },
            "quiet small",
          ),
          { role: "menuitem", tabindex: -1 },
        ),
      ),
    );
    list.hidden = false;
    toggle.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", closeOutside, true);
    focusItem(index);
  };
  root.addEventListener("keydown", (event) => {
    const index = [...list.children].findIndex((item) => item === document.activeElement);
    /** @type {Record<string, number>} */
    const moves = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: -1 };
    const move = moves[event.key];
    if (event.key === "Escape" && !list.hidden) {
      close();
      toggle.focus();
    } else if (move !== undefined && list.hidden) open(event.key === "ArrowUp" || event.key === "End" ? -1 : 0);
    else if (move !== undefined) focusItem(move);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  root.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget instanceof Node && !root.contains(relatedTarget)) close();
  });
  return root;
}
