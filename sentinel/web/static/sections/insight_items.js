// The stored results of a section: which one is shown, and its data.
import {
  choice,
  container,
  element,
  formatNumber,
  formatTime,
  groupBy,
  isNumber,
  setAttributes,
  setText,
} from "../dom.js";

// Of each result, this many stay in memory.
const INSIGHT_CACHE = 24;

const insightCaches = new WeakMap();

// A result with its data; a result that was replaced is loaded again.
export function loadInsight(source, { id, revision }) {
  if (!insightCaches.has(source)) insightCaches.set(source, new Map());
  const cache = insightCaches.get(source);
  const key = `${id} ${revision}`;
  if (!cache.has(key)) {
    const loading = source.getJson(`api/insight/${encodeURIComponent(id)}`);
    cache.set(key, loading);
    loading.catch(() => cache.delete(key));
    if (cache.size > INSIGHT_CACHE) cache.delete(cache.keys().next().value);
  }
  return cache.get(key);
}

// Which of several results is shown: one of the names, and of those with one name a step. The newest
// is shown until another one is chosen. `onChoose(item)` is called with the header of a result.
export class InsightChoice {
  constructor(label, onChoose) {
    this.onChoose = onChoose;
    this.groups = new Map();
    this.group = null;
    this.index = -1;
    this.isNewest = true;
    this.select = choice(label, [], (name) => {
      this.isNewest = true;
      this.#choose(name, Infinity);
    });
    this.slider = setAttributes(element("input"), {
      type: "range",
      min: 0,
      "aria-label": `Step of the ${label.toLowerCase()}`,
    });
    this.slider.addEventListener("input", () => {
      this.isNewest = Number(this.slider.value) === this.groups.get(this.group).length - 1;
      this.#choose(this.group, Number(this.slider.value));
    });
    this.text = element("output", "", "soft number");
    this.element = container("span", "row insight-choice", this.select, this.slider, this.text);
  }

  get item() {
    return this.groups.get(this.group)?.[this.index] ?? null;
  }

  // Show these results; the one that is shown stays, unless it was the newest.
  set(items) {
    this.groups = groupBy(items, ({ name, title }) => name || title);
    for (const group of this.groups.values())
      group.sort((a, b) => (a.step ?? Infinity) - (b.step ?? Infinity) || a.time - b.time);
    const names = [...this.groups.keys()];
    if (names.join("\n") !== [...this.select.options].map(({ value }) => value).join("\n")) {
      this.select.replaceChildren(...names.map((name) => setAttributes(element("option", name), { value: name })));
    }
    this.select.hidden = names.length < 2;
    const newest = items[items.length - 1];
    const name = this.groups.has(this.group) ? this.group : newest && (newest.name || newest.title);
    if (name !== undefined) this.#choose(name, this.isNewest ? Infinity : this.index);
  }

  #choose(name, index) {
    const group = this.groups.get(name);
    this.group = name;
    this.index = Math.min(Math.max(index, 0), group.length - 1);
    this.select.value = name;
    setAttributes(this.slider, { max: group.length - 1 });
    this.slider.value = this.index;
    this.slider.hidden = group.length < 2;
    const item = this.item;
    const place = group.length > 1 ? ` (${this.index + 1} of ${group.length})` : "";
    setText(
      this.text,
      `${isNumber(item.step) ? `step ${formatNumber(item.step)}` : `stored ${formatTime(item.time)}`}${place}`,
    );
    setAttributes(this.slider, { "aria-valuetext": this.text.textContent });
    this.onChoose(item);
  }
}

// Facts as a list of [term, text or element]; those without a text are left out.
export function insightFacts(facts) {
  return container(
    "dl",
    "insight-facts",
    ...facts
      .filter(([, value]) => value)
      .flatMap(([term, value]) => [
        element("dt", term),
        value instanceof Node ? container("dd", "", value) : element("dd", value),
      ]),
  );
}
