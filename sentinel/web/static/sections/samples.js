// Texts that the model generated: by step, searched, sorted by reward, and compared between steps.
import {
  button,
  choice,
  container,
  element,
  emptyState,
  formatCount,
  formatNumber,
  formatPercent,
  groupBy,
  isNumber,
  setAttributes,
  setText,
} from "../dom.js";
import { createLoader } from "../loading.js";
import { diffElements, markRepetition, textElement } from "./texts.js";

const PAGE_SIZE = 10;
const COMPARED_SAMPLES = 100;
const SORTED_SAMPLES = 200;
const SEARCH_DELAY_MS = 250;
const REFRESH_SECONDS = 5;
const REPEATED_SHARE = 0.2;

/** @type {Option[]} */
const SORTS = [
  ["newest", "Newest first"],
  ["highest", "Highest reward"],
  ["lowest", "Lowest reward"],
  ["longest", "Longest"],
];

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createSamples(page) {
  /** @type {[number, number][]} */
  let steps = [];
  /** @type {Sample[]} */
  let samples = [];
  // What the list can show in its order, and how much of it is there.
  /** @type {(() => HTMLElement)[]} */
  let entries = [];
  let shownCount = 0;
  let hasOlder = false;
  let chosen = "";
  let other = "";
  let loadedAt = 0;
  let loadNumber = 0;
  /** @type {Timer | undefined} */
  let searchTimer;

  const stepChoice = choice("Step", [], (value) => {
    chosen = value;
    load();
  });
  const older = button("‹", () => stepBy(1), "small");
  const newer = button("›", () => stepBy(-1), "small");
  setAttributes(older, { "aria-label": "Older step" });
  setAttributes(newer, { "aria-label": "Newer step" });
  const otherChoice = choice("Compare with step", [], (value) => {
    other = value;
    // Without a step of its own, the newest other one.
    if (other && !chosen) chosen = String(steps.find(([step]) => String(step) !== other)?.[0] ?? "");
    load();
  });
  const sort = choice("Sort", SORTS, () => load());
  const search = setAttributes(element("input", "", "input"), {
    type: "search",
    placeholder: "Search prompts and completions",
    "aria-label": "Search samples",
  });
  search.addEventListener("input", () => {
    clearTimeout(searchTimer);
    searchTimer = setTimeout(load, SEARCH_DELAY_MS);
  });
  const list = element("div");
  const more = button("Show more", () => showMore(), "more");
  const status = element("p", "", "soft");
  const controls = container(
    "div",
    "row sample-controls",
    container("span", "row", older, stepChoice, newer),
    otherChoice,
    sort,
    search,
  );
  const empty = emptyState(
    "No text yet. Integrations with TRL and verl record samples by themselves; elsewhere call " +
      "`sentinel.log_samples(prompts=…, completions=…, rewards=…)`.",
  );

  /** @param {1 | -1} direction */
  const stepBy = (direction) => {
    const index = Math.max(
      0,
      steps.findIndex(([step]) => String(step) === chosen),
    );
    chosen = String(steps[Math.max(0, Math.min(steps.length - 1, index + direction))]?.[0] ?? "");
    stepChoice.value = chosen;
    load();
  };
  const fillSteps = () => {
    /** @type {Option[]} */
    const options = steps.map(([step, count]) => [String(step), `Step ${formatNumber(step)} (${count})`]);
    replaceOptions(stepChoice, [["", "All steps"], ...options], chosen);
    replaceOptions(otherChoice, [["", "Compare with …"], ...options], other);
    otherChoice.hidden = steps.length < 2;
    const index = steps.findIndex(([step]) => String(step) === chosen);
    older.disabled = index === steps.length - 1;
    newer.disabled = index <= 0;
  };
  const loader = createLoader(
    "the samples",
    async () => {
      const number = ++loadNumber;
      loadedAt = Date.now() / 1000;
      const [isComparing, words] = [Boolean(chosen && other), search.value.trim()];
      const limit = sort.value === "newest" ? PAGE_SIZE : SORTED_SAMPLES;
      /** @type {[[number, number][], Sample[]]} */
      const [foundSteps, found] = await Promise.all([
        page.source.getJson("api/sample-steps"),
        isComparing ? [] : page.source.getJson(samplesPath(chosen, words, null, limit)),
      ]);
      const compared = isComparing ? await comparedEntries(page.source, Number(chosen), Number(other), words) : null;
      if (number !== loadNumber) return;
      steps = [...foundSteps].sort(([a], [b]) => b - a);
      // The answer has the oldest first.
      samples = [...found].reverse();
      hasOlder = sort.value === "newest" && found.length >= PAGE_SIZE && samples.at(-1)?.id !== undefined;
      const sorted = sortedSamples(samples, sort.value);
      entries = compared ?? sorted.map((sample, index) => () => sampleElement(sample, sorted[index - 1]));
      if (!entries.length && steps.length) entries = [() => element("p", "No sample contains these words.", "soft")];
      shownCount = 0;
      list.replaceChildren();
      showMore();
      loadedAt = Date.now() / 1000;
      fillSteps();
      controls.hidden = !steps.length;
      empty.hidden = steps.length + samples.length > 0;
    },
    () => page.frame.refresh("samples"),
  );
  const load = () => loader.request();
  controls.hidden = more.hidden = empty.hidden = true;
  const root = container("div", "", loader.element, controls, status, list, more, empty);
  // Show the next entries; of the newest samples, older ones are fetched.
  const showMore = async () => {
    const number = loadNumber;
    if (shownCount && shownCount === entries.length && hasOlder) {
      /** @type {Sample[]} */
      const found = await page.source
        .getJson(samplesPath(chosen, search.value.trim(), samples.at(-1)?.id, PAGE_SIZE))
        .catch(() => []);
      if (number !== loadNumber) return;
      const next = [...found].reverse();
      entries.push(
        ...next.map((sample, index) => () => sampleElement(sample, index ? next[index - 1] : samples.at(-1))),
      );
      hasOlder = found.length >= PAGE_SIZE;
      list.append(...entries.slice(shownCount).map((make) => make()));
      samples.push(...next);
      shownCount = entries.length;
    } else {
      list.append(...entries.slice(shownCount, shownCount + PAGE_SIZE).map((make) => make()));
      shownCount = Math.min(entries.length, shownCount + PAGE_SIZE);
    }
    more.hidden = shownCount === entries.length && !hasOlder;
    setText(
      status,
      sort.value !== "newest" && samples.length >= SORTED_SAMPLES ? `Sorted among the newest ${SORTED_SAMPLES}.` : "",
    );
    status.hidden = !status.textContent;
  };
  // Whether the newest samples are shown and none is selected.
  const isFollowing = () =>
    !page.source.isReport &&
    !chosen &&
    !search.value &&
    sort.value === "newest" &&
    samples.length <= PAGE_SIZE &&
    Date.now() / 1000 - loadedAt > REFRESH_SECONDS &&
    root.closest("details")?.open &&
    !isBeingRead(list);
  return {
    id: "samples",
    title: "Samples",
    element: root,
    isEmpty: () => loader.isLoaded && !steps.length,
    note: () => (steps.length ? `newest of step ${formatNumber(steps[0][0])}` : loader.isLoaded ? "none" : ""),
    update() {
      if (loadedAt === 0 || isFollowing()) load();
    },
    urgency: () => 0,
  };
}

/**
 * @param {string | number} step
 * @param {string} search
 * @param {number | null | undefined} before
 * @param {number} limit
 */
function samplesPath(step, search, before, limit) {
  const query = new URLSearchParams({ limit: String(limit) });
  if (step) query.set("step", String(step));
  if (search) query.set("search", search);
  if (isNumber(before)) query.set("before", String(before));
  return `api/samples?${query}`;
}

/**
 * Whether new texts would take away what the user reads: something is selected, focused or expanded.
 * @param {HTMLElement} list
 */
function isBeingRead(list) {
  const selection = getSelection();
  return (
    list.contains(document.activeElement) ||
    list.querySelector("[aria-expanded='true']") !== null ||
    (selection !== null && !selection.isCollapsed && list.contains(selection.anchorNode))
  );
}

/**
 * @param {HTMLSelectElement} select
 * @param {Option[]} options
 * @param {string} value
 */
function replaceOptions(select, options, value) {
  const texts = options.map(([, text]) => text).join("\n");
  if (select.dataset.texts !== texts) {
    select.dataset.texts = texts;
    select.replaceChildren(...options.map(([each, text]) => setAttributes(element("option", text), { value: each })));
  }
  select.value = value;
}

/** @param {Sample} sample */
function totalReward({ rewards = {} }) {
  const values = Object.values(rewards).filter(isNumber);
  return isNumber(rewards[""]) ? rewards[""] : values.length ? values.reduce((sum, each) => sum + each, 0) : null;
}

/**
 * @param {Sample[]} samples
 * @param {string} order
 */
function sortedSamples(samples, order) {
  if (order === "newest") return samples;
  /** @type {Record<string, (sample: Sample) => number>} */
  const keys = {
    highest: (sample) => -(totalReward(sample) ?? -Infinity),
    lowest: (sample) => totalReward(sample) ?? Infinity,
    longest: (sample) => -(sample.length ?? sample.completion.length),
  };
  return [...samples].sort((a, b) => keys[order](a) - keys[order](b));
}

/**
 * @param {Sample} sample
 * @param {Sample | undefined} previous
 */
function sampleElement(sample, previous) {
  const isSamePrompt = previous && previous.prompt === sample.prompt;
  return container(
    "article",
    "sample",
    sampleFacts(sample),
    sample.prompt && (isSamePrompt ? element("p", "Same prompt.", "soft") : textElement(sample.prompt, "prompt", 240)),
    textElement(sample.completion, ""),
  );
}

/** @param {Sample} sample */
function sampleFacts(sample) {
  const { share } = markRepetition(sample.completion);
  return container(
    "div",
    "row",
    element("strong", `Step ${formatNumber(sample.step)}`),
    element("span", `rank ${sample.rank}`, "soft"),
    ...Object.entries(sample.rewards ?? {}).map(([name, value]) =>
      element("span", `${name || "reward"} ${formatNumber(value)}`, "chip number"),
    ),
    isNumber(sample.advantage) && element("span", `advantage ${formatNumber(sample.advantage)}`, "chip number"),
    element("span", formatCount(sample.length ?? sample.completion.length, "character"), "soft"),
    sample.finished === false && element("span", "cut off", "pill warning"),
    share > REPEATED_SHARE && element("span", `${formatPercent(share)} repeated`, "pill warning"),
  );
}

/**
 * For each prompt that was sampled at both steps, what makes its completions side by side.
 * @param {Source} source
 * @param {number} step
 * @param {number} other
 * @param {string} search
 * @returns {Promise<(() => HTMLElement)[]>}
 */
async function comparedEntries(source, step, other, search) {
  const [before, after] = [Math.min(step, other), Math.max(step, other)];
  if (before === after) return [() => element("p", "Choose two different steps.", "soft")];
  /** @type {Sample[][]} */
  const [left, right] = await Promise.all(
    [before, after].map((each) => source.getJson(samplesPath(each, search, null, COMPARED_SAMPLES))),
  );
  const byPrompt = groupBy(right, ({ prompt }) => prompt);
  const pairs = left.flatMap((sample) => {
    const match = byPrompt.get(sample.prompt)?.shift();
    return match ? [{ sample, match }] : [];
  });
  if (!pairs.length) {
    return [
      () =>
        emptyState(
          `No prompt was sampled at step ${formatNumber(before)} and at step ${formatNumber(after)}. ` +
            "Log samples of the same prompts, for example those of the evaluation, to compare them.",
        ),
    ];
  }
  return pairs.map(
    ({ sample, match }) =>
      () =>
        comparedElement(sample, match),
  );
}

/**
 * @param {Sample} first
 * @param {Sample} second
 */
function comparedElement(first, second) {
  const [deleted, inserted] = diffElements(first.completion, second.completion);
  return container(
    "article",
    "sample",
    first.prompt && textElement(first.prompt, "prompt", 240),
    container(
      "div",
      "sides",
      container("div", "", sampleFacts(first), deleted),
      container("div", "", sampleFacts(second), inserted),
    ),
  );
}
