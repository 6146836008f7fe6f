// The sections of the page: they collapse, remember it, and stand in the order of what is wrong now.
import { container, element, recall, remember, setAttributes, setText } from "./dom.js";

/**
 * `sections` are in the order that they have while nothing is wrong.
 * @param {Section[]} sections
 * @returns {Frame}
 */
export function createFrame(sections) {
  const items = sections.map((section, index) => createItem(section, index));
  const list = container("div", "sections", ...items.map(({ details }) => details));
  setAttributes(list, { id: "sections", tabindex: -1 });
  const links = element("ul");
  const contents = setAttributes(container("nav", "contents", links), { "aria-label": "Sections" });
  links.append(...items.map(({ entry }) => entry));
  return {
    element: container("div", "columns", contents, list),
    items,
    update(run) {
      for (const item of items) updateItem(item, run);
      const order = [...items].sort((a, b) => b.urgency - a.urgency || a.index - b.index);
      arrange(
        list,
        order.map(({ details }) => details),
      );
      arrange(
        links,
        order.map(({ entry }) => entry),
      );
    },
    // Open a section and bring it into view.
    reveal(id) {
      const item = items.find(({ section }) => section.id === id);
      if (item) revealNode(item.details);
      return Boolean(item);
    },
    // Describe a section again, whose own data came later than the run.
    refresh(id) {
      const item = items.find(({ section }) => section.id === id);
      if (item?.shown) describeItem(item, item.shown);
    },
    toggleAll() {
      const isAnyOpen = items.some(({ details }) => details.open && !details.hidden);
      for (const item of items) chooseOpen(item, !isAnyOpen);
    },
  };
}

/**
 * Open what contains a node, scroll to it and give it the focus.
 * @param {Element | null} node
 */
export function revealNode(node) {
  if (!(node instanceof HTMLElement)) return;
  for (let details = node.closest("details"); details; details = details.parentElement?.closest("details") ?? null)
    details.open = true;
  node.scrollIntoView({ block: "start" });
  const target = node instanceof HTMLDetailsElement ? node.querySelector("summary") : node;
  target?.focus({ preventScroll: true });
}

/**
 * @param {Section} section
 * @param {number} index
 * @returns {FrameItem}
 */
function createItem(section, index) {
  const heading = element("h2", section.title);
  const note = element("span", "", "note");
  const summary = container("summary", "", heading, note);
  const details = container("details", "section", summary, container("div", "body", section.element));
  details.id = `section-${section.id}`;
  const stored = recall(`section.${section.id}`);
  details.open = stored ? stored === "open" : section.isClosed !== true;
  const link = container("a", "", element("span", section.title));
  link.href = `#${details.id}`;
  /** @type {FrameItem} */
  const item = {
    section,
    index,
    details,
    note,
    link,
    entry: container("li", "", link),
    urgency: 0,
    wasUrgent: false,
    wasEmpty: false,
    isChosen: stored !== null,
  };
  summary.addEventListener("click", (event) => {
    event.preventDefault();
    chooseOpen(item, !details.open);
  });
  // A closed section need not keep up.
  details.addEventListener("toggle", () => {
    if (details.open && item.shown) updateItem(item, item.shown);
  });
  link.addEventListener("click", (event) => {
    event.preventDefault();
    revealNode(details);
  });
  return item;
}

/**
 * Open or close a section because the user wants it so, and remember that.
 * @param {FrameItem} item
 * @param {boolean} isOpen
 */
function chooseOpen(item, isOpen) {
  item.isChosen = true;
  item.details.open = isOpen;
  remember(`section.${item.section.id}`, isOpen ? "open" : "closed");
}

/**
 * @param {FrameItem} item
 * @param {any} run
 */
function updateItem(item, run) {
  item.shown = run;
  try {
    item.section.update(run);
    describeItem(item, run);
  } catch (error) {
    // The other sections still show the run.
    console.error(error);
  }
}

/**
 * What the frame shows of a section: whether it is there, its note, and how urgent it is.
 * @param {FrameItem} item
 * @param {any} run
 */
function describeItem(item, run) {
  const { section, details, note, link, entry } = item;
  details.hidden = section.isShown ? !section.isShown(run) : false;
  entry.hidden = details.hidden;
  setText(note, section.note ? section.note(run) : "");
  item.urgency = section.urgency ? section.urgency(run) : 0;
  const className = item.urgency >= 80 ? "urgent critical" : item.urgency > 0 ? "urgent warning" : "";
  if (link.className !== className) link.className = className;
  // What is empty takes no room, unless the user chose otherwise.
  const isEmpty = section.isEmpty ? section.isEmpty(run) : false;
  if (isEmpty !== item.wasEmpty && !item.isChosen) details.open = !isEmpty && section.isClosed !== true;
  item.wasEmpty = isEmpty;
  // What becomes urgent opens, unless the user chose otherwise.
  const isUrgent = item.urgency > 0;
  if (isUrgent && !item.wasUrgent && !item.isChosen) details.open = true;
  item.wasUrgent = isUrgent;
}

/**
 * Bring the children into this order. The one with the focus stays where it is, since moving it
 * would take the focus away.
 * @param {Element} parent
 * @param {Element[]} order
 */
function arrange(parent, order) {
  const isInOrder = order.every((node, index) => parent.children[index] === node);
  if (isInOrder) return;
  const fixed = order.find((node) => node.contains(document.activeElement));
  const position = fixed ? order.indexOf(fixed) : -1;
  order.forEach((node, index) => {
    if (node === fixed) return;
    if (fixed && index < position) parent.insertBefore(node, fixed);
    else parent.append(node);
  });
}
