// Modal dialogs. The browser keeps the focus inside, and Escape closes them.
import { button, container, element, focusedElement, setAttributes } from "./dom.js";

let dialogCount = 0;

/**
 * Show a dialog with this title and content; it is removed when it closes, and the element that had
 * the focus gets it again.
 * @param {string} title
 * @param {Node} content
 * @param {string} [className]
 */
export function openDialog(title, content, className = "") {
  const heading = element("h2", title);
  heading.id = `dialog-${++dialogCount}`;
  const close = setAttributes(
    button("×", () => dialog.close(), "quiet close"),
    { "aria-label": "Close" },
  );
  const dialog = setAttributes(container("dialog", className, container("div", "heading", heading, close), content), {
    "aria-labelledby": heading.id,
  });
  const before = focusedElement();
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  const first = dialog.querySelector("input, select, textarea") ?? dialog.querySelector("button.primary");
  if (first instanceof HTMLElement) first.focus();
  return dialog;
}
