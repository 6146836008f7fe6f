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

/** @type {WeakMap<Source, Map<string, Promise<InsightResult>>>} */
const insightCaches = new WeakMap();

/**
 * A result with its data; a result that was replaced is loaded again.
 * @param {Source} source
 * @param {InsightItem} item
 * @returns {Promise<InsightResult>}
 */
export function loadInsight(source, { id, revision }) {
  /** @type {Map<string, Promise<InsightResult>>} */
  const cache = insightCaches.get(source) ?? new Map();
  insightCaches.set(source, cache);
  const key = `${id} ${revision}`;
  const known = cache.get(key);
  if (known) return known;
  /** @type {Promise<InsightResult>} */
  const loading = source.getJson(`api/insight/${encodeURIComponent(id)}`);
  cache.set(key, loading);
  loading.catch(() => cache.delete(key));
  const [oldest] = cache.keys();
  if (cache.size > INSIGHT_CACHE) cache.delete(oldest);
  return loading;
}

/**
 * The name under which a result stands beside others.
 * @param {InsightItem} item
 */
export function insightName({ name, title }) {
  return name || title || "";
}

/**
 * The order of results with one name: by step, those without one last, and then by time.
 * @param {InsightItem} a
 * @param {InsightItem} b
 */
export function insightOrder(a, b) {
  const [first, second] = [a.step ?? Number.MAX_VALUE, b.step ?? Number.MAX_VALUE];
  return first - second || (a.time ?? 0) - (b.time ?? 0);
}

// Which of several results is shown: one of the names, and of those with one name a step. The newest
// is shown until another one is chosen. `onChoose(item)` is called with the header of a result.
export class InsightChoice {
  /**
   * @param {string} label
   * @param {(item: InsightItem) => void} onChoose
   */
  constructor(label, onChoose) {
    this.onChoose = onChoose;
    /** @type {Map<string, InsightItem[]>} */
    this.groups = new Map();
    this.group = "";
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
      this.isNewest = Number(this.slider.value) === this.#shown().length - 1;
      this.#choose(this.group, Number(this.slider.value));
    });
    this.text = element("output", "", "soft number");
    this.element = container("span", "row insight-choice", this.select, this.slider, this.text);
  }

  // The results with the chosen name.
  #shown() {
    return this.groups.get(this.group) ?? [];
  }

  get item() {
    return this.#shown()[this.index] ?? null;
  }

  /**
   * Show these results; the one that is shown stays, unless it was the newest.
   * @param {InsightItem[]} items
   */
  set(items) {
    this.groups = groupBy(items, insightName);
    for (const group of this.groups.values()) group.sort(insightOrder);
    const names = [...this.groups.keys()];
    if (names.join("\n") !== [...this.select.options].map(({ value }) => value).join("\n")) {
      this.select.replaceChildren(...names.map((name) => setAttributes(element("option", name), { value: name })));
    }
    this.select.hidden = names.length < 2;
    const newest = items[items.length - 1];
    const name = this.groups.has(this.group) ? this.group : newest && insightName(newest);
    if (name !== undefined) this.#choose(name, this.isNewest ? Infinity : this.index);
  }

  /**
   * @param {string} name
   * @param {number} index
   */
  #choose(name, index) {
    this.group = name;
    const group = this.#shown();
    this.index = Math.min(Math.max(index, 0), group.length - 1);
    this.select.value = name;
    setAttributes(this.slider, { max: group.length - 1 });
    this.slider.value = String(this.index);
    this.slider.hidden = group.length < 2;
    const item = group[this.index];
    const place = group.length > 1 ? ` (${this.index + 1} of ${group.length})` : "";
    setText(
      this.text,
      `${isNumber(item.step) ? `step ${formatNumber(item.step)}` : `stored ${formatTime(item.time)}`}${place}`,
    );
    setAttributes(this.slider, { "aria-valuetext": this.text.textContent });
    this.onChoose(item);
  }
}

/**
 * Facts as a list of [term, text or element]; those without a text are left out.
 * @param {[string, Child][]} facts
 */
export function insightFacts(facts) {
  return container(
    "dl",
    "insight-facts",
    ...facts.filter(([, value]) => value).flatMap(([term, value]) => [element("dt", term), container("dd", "", value)]),
  );
}
