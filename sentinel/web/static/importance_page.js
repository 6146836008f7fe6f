// The page with the importance of settings for the runs of its address: ?run=a&run=b, or ?filter=.
import { button, choice, container, element, errorMessage, pageElement, setAttributes, setText } from "./dom.js";
import { getJson, source } from "./source.js";
import { createThemeChoice, createView } from "./view.js";
import { ImportanceView } from "./sections/importance.js";

const IMPORTANCE_POLL_MS = 500;
/** @type {[string, string, Option[]][]} */
const IMPORTANCE_OPTIONS = [
  [
    "statistic",
    "Value of the signal",
    [
      ["last", "last value"],
      ["best", "best value"],
      ["mean", "mean of the last tenth"],
    ],
  ],
  [
    "failed",
    "Failed runs",
    [
      ["drop", "leave out"],
      ["worst", "count as worst"],
    ],
  ],
  [
    "better",
    "Better",
    [
      ["", "as known"],
      ["lower", "lower is better"],
      ["higher", "higher is better"],
    ],
  ],
];

class ImportancePage {
  constructor() {
    this.query = new URLSearchParams(location.search);
    // The source of the charts: a home has no stream of its own.
    this.page = { view: createView(), source: { ...source, subscribe: () => () => {}, getJson: noData } };
    this.view = new ImportanceView(this.page);
    this.heading = element("h2");
    this.shown = container("div", "", this.heading, this.view.element);
    this.shown.hidden = true;
    this.status = setAttributes(element("p", "Reading the runs.", "soft"), { role: "status" });
    this.bar = setAttributes(element("progress"), { max: 1, "aria-label": "Progress" });
    this.asked = 0;
    this.outcomes = setAttributes(element("datalist"), { id: "outcomes" });
    this.outcome = setAttributes(element("input"), {
      type: "text",
      list: "outcomes",
      "aria-label": "Outcome",
      placeholder: "outcome",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.outcome.value = this.query.get("outcome") ?? "";
    this.outcome.addEventListener("change", () => this.#set("outcome", this.outcome.value.trim()));
    const list = setAttributes(element("a", "Runs", "crumb"), { href: "./" });
    pageElement("topbar").append(
      container("div", "name", list, element("h1", "Importance of settings")),
      this.#controls(),
    );
    pageElement("page").replaceChildren(container("div", "row", this.bar, this.status), this.shown);
    this.load();
  }

  #controls() {
    const selects = IMPORTANCE_OPTIONS.map(([name, title, options]) => {
      const select = choice(title, options, (value) => this.#set(name, value));
      select.value = this.query.get(name) ?? options[0][0];
      return container("label", "", title, select);
    });
    const theme = createThemeChoice(this.page.view);
    const bar = container(
      "div",
      "toolbar shown",
      container("label", "", "Outcome", this.outcome),
      this.outcomes,
      ...selects,
      button("Read again", () => this.load(), "small"),
      theme,
    );
    return setAttributes(bar, { role: "toolbar", "aria-label": "Options" });
  }

  /**
   * @param {string} name
   * @param {string} value
   */
  #set(name, value) {
    if (value) this.query.set(name, value);
    else this.query.delete(name);
    history.replaceState(null, "", `?${this.query}`);
    this.load();
  }

  // Ask again until the answer is there; a later request replaces this one.
  async load() {
    this.asked += 1;
    const { asked } = this;
    this.bar.hidden = false;
    this.status.className = "soft";
    this.status.hidden = false;
    try {
      for (;;) {
        const answer = await getJson(`api/importance?${this.query}`);
        if (asked !== this.asked) return;
        if (answer.state === "failed") throw new Error(answer.error);
        if (answer.state === "done") {
          this.#show(answer.result);
          return;
        }
        this.#wait(answer);
        await new Promise((resolve) => setTimeout(resolve, IMPORTANCE_POLL_MS));
        if (asked !== this.asked) return;
      }
    } catch (error) {
      if (asked !== this.asked) return;
      this.bar.hidden = true;
      this.shown.hidden = true;
      this.status.className = "bad";
      setText(this.status, errorMessage(error));
    }
  }

  /** @param {{ state: string, progress?: number, text?: string }} answer */
  #wait({ state, progress, text }) {
    setAttributes(this.bar, { value: progress ?? 0 });
    setText(
      this.status,
      state === "waiting"
        ? "Waiting for another page, whose importance is worked out now."
        : `${text ?? "Reading the runs"}.`,
    );
  }

  /** @param {StoredJson} result */
  #show(result) {
    this.bar.hidden = true;
    this.status.hidden = true;
    this.shown.hidden = false;
    setText(this.heading, `What explains ${result.outcome}`);
    this.outcome.placeholder = result.outcome;
    this.outcomes.replaceChildren(
      ...(result.outcomes ?? []).map((/** @type {string} */ name) => setAttributes(element("option"), { value: name })),
    );
    document.title = `What explains ${result.outcome}: sentinel`;
    this.view.show(result);
  }
}

/** @param {string} path */
async function noData(path) {
  if (path.startsWith("api/timeline")) return { detectors: [], events: [] };
  if (path.startsWith("api/thresholds")) return {};
  return [];
}

new ImportancePage();
