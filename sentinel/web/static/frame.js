// The sections of the page: they collapse, remember it, and stand in the order of what is wrong now.
import { container, element, recall, remember, setAttributes, setText } from "./dom.js";

// `sections` are in the order that they have while nothing is wrong.
export function createFrame(sections) {
  const items = sections.map((section, index) => createItem(section, index));
  const list = container("div", "sections", ...items.map(({ details }) => details));
  setAttributes(list, { id: "sections", tabindex: -1 });
  const links = element("ul");
  const contents = setAttributes(container("nav", "contents", links), { "aria-label": "Sections" });
  links.append(...items.map(({ link }) => link.parentElement));
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
        order.map(({ link }) => link.parentElement),
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
      if (item?.run) describeItem(item, item.run);
    },
    toggleAll() {
      const isAnyOpen = items.some(({ details }) => details.open && !details.hidden);
      for (const item of items) chooseOpen(item, !isAnyOpen);
    },
  };
}

// Open what contains a node, scroll to it and give it the focus.
export function revealNode(node) {
  for (let each = node; each; each = each.parentElement?.closest("details")) {
    if (each.tagName === "DETAILS") each.open = true;
    else if (each === node) continue;
  }
  node.scrollIntoView({ block: "start" });
  const target = node.tagName === "DETAILS" ? node.querySelector("summary") : node;
  target.focus({ preventScroll: true });
}

function createItem(section, index) {
  const heading = element("h2", section.title);
  const note = element("span", "", "note");
  const details = container(
    "details",
    "section",
    container("summary", "", heading, note),
    container("div", "body", section.element),
  );
  details.id = `section-${section.id}`;
  const stored = recall(`section.${section.id}`);
  details.open = stored ? stored === "open" : section.isClosed !== true;
  const item = {
    section,
    index,
    details,
    note,
    urgency: 0,
    wasUrgent: false,
    wasEmpty: false,
    isChosen: stored !== null,
  };
  details.querySelector("summary").addEventListener("click", (event) => {
    event.preventDefault();
    chooseOpen(item, !details.open);
  });
  // A closed section need not keep up.
  details.addEventListener("toggle", () => {
    if (details.open && item.run) updateItem(item, item.run);
  });
  item.link = container("a", "", element("span", section.title));
  item.link.href = `#${details.id}`;
  item.link.addEventListener("click", (event) => {
    event.preventDefault();
    revealNode(details);
  });
  container("li", "", item.link);
  return item;
}

// Open or close a section because the user wants it so, and remember that.
function chooseOpen(item, isOpen) {
  item.isChosen = true;
  item.details.open = isOpen;
  remember(`section.${item.section.id}`, isOpen ? "open" : "closed");
}

function updateItem(item, run) {
  item.run = run;
  try {
    item.section.update(run);
    describeItem(item, run);
  } catch (error) {
    // The other sections still show the run.
    console.error(error);
  }
}

// What the frame shows of a section: whether it is there, its note, and how urgent it is.
function describeItem(item, run) {
  const { section, details, note, link } = item;
  details.hidden = section.isShown ? !section.isShown(run) : false;
  link.parentElement.hidden = details.hidden;
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

// Bring the children into this order. The one with the focus stays where it is, since moving it
// would take the focus away.
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
