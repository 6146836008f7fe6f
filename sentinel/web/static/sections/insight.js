// The sections of results of insight. What draws them is loaded once there is something to draw, so
// that the page of a run without results is as small as ever.
import { container, element, emptyState, errorMessage, isActive, textWithCode } from "../dom.js";
import { createLoader } from "../loading.js";

// How each result is made, by the id of its section.
const INSIGHT_SECTIONS = [
  ["loss-surface", "Loss surface", "sentinel.insight.loss_surface(model, loss_fn, batch)"],
  ["trajectory", "Trajectory of the weights", "sentinel.insight.TrajectoryRecorder(model)"],
  ["gradient-flow", "Gradient flow", '@sentinel.monitor(insight="gradient_flow")'],
  ["importance", "Importance of settings", ""],
];

// By the id of a section: a function (page, items) => { element, show(items), note() }. Filled by
// insight_drawings.js.
/** @type {Record<string, (...args: any[]) => any>} */
export const insightDrawings = {};

/** @type {Promise<void> | null} */
let insightLoading = null;

/** @returns {Promise<void>} */
export function loadInsightDrawings() {
  if (Object.keys(insightDrawings).length) return Promise.resolve();
  insightLoading ??= new Promise((resolve, reject) => {
    const page = document.querySelector("script[type=module][src]");
    if (!(page instanceof HTMLScriptElement)) throw new Error("The charts cannot be loaded: the page has no script.");
    const script = document.createElement("script");
    script.type = "module";
    script.src = new URL("sections/insight_drawings.js", page.src).href;
    script.addEventListener("load", () => resolve());
    script.addEventListener("error", () => reject(new Error("The charts cannot be loaded.")));
    document.head.append(script);
  });
  return insightLoading;
}

/**
 * @param {InsightPage} page
 * @returns {Section<RunState>[]}
 */
export function createInsightSections(page) {
  const sections = INSIGHT_SECTIONS.map(([id, title]) => new InsightSection(page, id, title));
  let known = { insight: "", layers: false };
  const loader = createLoader(
    "the results of insight",
    async () => {
      /** @type {InsightItem[]} */
      const items = known.insight ? await page.source.getJson("api/insight") : [];
      // Gradient flow is part of the history of the run.
      if (known.layers) items.push({ kind: "gradient_flow", id: "" });
      for (const section of sections)
        await section.show(items.filter(({ kind }) => kind.replaceAll("_", "-") === section.id));
    },
    () => page.frame.refresh("insight"),
  );
  /** @param {RunState} run */
  const update = ({ insight = "", layers = false }) => {
    if (insight === known.insight && layers === known.layers) return;
    known = { insight, layers };
    loader.request();
  };
  const missing = createMissingInsight(sections, loader, update);
  return [...sections, missing];
}

export class InsightSection {
  /**
   * @param {InsightPage} page
   * @param {string} id
   * @param {string} title
   */
  constructor(page, id, title) {
    this.page = page;
    this.id = id;
    this.title = title;
    this.element = element("div", "", "insight");
    /** @type {InsightView | null} */
    this.view = null;
    /** @type {InsightItem[]} */
    this.items = [];
  }

  /** @param {InsightItem[]} items */
  async show(items) {
    this.items = items;
    if (!items.length && !this.view) return;
    try {
      await loadInsightDrawings();
      const create = insightDrawings[this.id];
      if (!create) {
        this.items = [];
        return;
      }
      /** @type {InsightView} */
      const view = this.view ?? create(this.page, () => this.page.frame.refresh(this.id));
      if (view !== this.view) this.element.replaceChildren(view.element);
      this.view = view;
      view.show(items);
    } catch (error) {
      this.element.replaceChildren(element("p", errorMessage(error), "bad"));
    }
    this.page.frame.refresh(this.id);
  }

  isShown() {
    return this.items.length > 0;
  }

  note() {
    return this.view ? this.view.note() : "";
  }

  update() {}

  urgency() {
    return 0;
  }
}

/**
 * What is not there, and the line of code that makes it.
 * @param {InsightSection[]} sections
 * @param {Loader} loader
 * @param {(run: RunState) => void} update
 * @returns {Section<RunState>}
 */
function createMissingInsight(sections, loader, update) {
  const list = element("dl", "", "insight-missing");
  const lead = emptyState("Not measured in this run:");
  const known = INSIGHT_SECTIONS.filter(([, , code]) => code);
  /** @param {string[]} section */
  const isMissing = ([id]) => !sections.find((section) => section.id === id)?.isShown();
  /** @param {RunState} run */
  const isWaiting = ({ insight, layers }) => Boolean(insight || layers) && !loader.isLoaded;
  return {
    id: "insight",
    title: "Insight",
    isClosed: true,
    element: container("div", "", loader.element, lead, list),
    update(run) {
      update(run);
      // Nothing is asked for if the run has no results.
      if (!run.insight && !run.layers) loader.element.hidden = true;
      lead.hidden = list.hidden = isWaiting(run);
      list.replaceChildren(
        ...known
          .filter(isMissing)
          .flatMap(([, title, code]) => [element("dt", title), textWithCode("dd", `\`${code}\``)]),
      );
    },
    note: (run) =>
      isWaiting(run)
        ? ""
        : `${known
            .filter(isMissing)
            .map(([, title], index) => (index ? title.toLowerCase() : title))
            .join(", ")}: not measured`,
    isShown: (run) => isWaiting(run) || (isActive(run) && !run.log && known.some(isMissing)),
    urgency: () => 0,
  };
}
