// The page of one run. A section is { id, title, element, update(run), urgency(run) }, and may have
// note(run), a few words beside its title, isShown(run), isEmpty(run), which collapses it, isClosed if
// it is collapsed at first, and searchTargets(), what of it the search of the page finds.
import { element, encodeName, pageElement, setAttributes } from "./dom.js";
import { createFrame, revealNode } from "./frame.js";
import { installKeyboard, openHelpDialog, openSearchDialog } from "./keyboard.js";
import { createLoader } from "./loading.js";
import { getJson, source, subscribe } from "./source.js";
import { createToolbar } from "./toolbar.js";
import { createView } from "./view.js";
import { caseAnchor, createHeader } from "./sections/header.js";
import { createCases } from "./sections/cases.js";
import { createTimeline } from "./sections/timeline.js";
import { createCurves } from "./sections/curves.js";
import { createRankMap } from "./sections/rank_map.js";
import { createInsightSections } from "./sections/insight.js";
import { createMachineCurves } from "./sections/machine_curves.js";
import { createSignals } from "./sections/signals.js";
import { createRanks } from "./sections/ranks.js";
import { createNodes } from "./sections/nodes.js";
import { createMachine } from "./sections/machine.js";
import { createIncidents } from "./sections/incidents.js";
import { createSamples } from "./sections/samples.js";
import { createMedia } from "./sections/media.js";
import { createDeliveries } from "./sections/deliveries.js";
import { createCoverage } from "./sections/coverage.js";
import { createSettings } from "./sections/settings.js";
import { createSetUp } from "./sections/set_up.js";

const SECTIONS = [
  createCases,
  createTimeline,
  createCurves,
  createRankMap,
  createInsightSections,
  createSetUp,
  createMachineCurves,
  createSignals,
  createRanks,
  createNodes,
  createMachine,
  createSamples,
  createMedia,
  createIncidents,
  createDeliveries,
  createCoverage,
  createSettings,
];

// A state may lack parts, such as that of a run of which only a log file is left.
/** @type {RunState} */
const EMPTY_RUN = {
  run: "",
  state: "",
  step: null,
  cases: [],
  incidents: [],
  silences: [],
  signals: {},
  logged: {},
  metadata: {},
  patches: {},
  ranks: {},
};

/**
 * `extraSections` stand before the curves. Returns the header.
 * @param {SectionCreator[]} [extraSections]
 */
export function startPage(extraSections = []) {
  // The sections are made with the page, and may use its frame and its toolbar later.
  const page = /** @type {Page} */ (
    /** @type {Partial<Page>} */ ({
      source,
      view: createView(),
      run: null,
      pastCases: [],
      allIncidents: [],
      runbookUrl: (name) => (source.isReport ? "" : `../../runbooks/${encodeName(name)}`),
    })
  );
  const header = createHeader(page);
  const frame = createFrame(withSections(extraSections).flatMap((create) => create(page)));
  page.frame = frame;
  page.reveal = frame.reveal;
  page.toolbar = createToolbar(page, openHelpDialog, () => openSearchDialog(page));
  // Those of `api/cases`, which are fetched when a case opens or ends.
  page.setPastCases = (pastCases) => {
    page.pastCases = pastCases;
    if (page.run) header.update(page.run);
    if (page.run) frame.update(page.run);
    openLinkedPlace();
  };
  // Those of `api/incidents`.
  page.setIncidents = (incidents) => {
    page.allIncidents = incidents;
    if (page.run) frame.update(page.run);
  };
  page.searchTargets = () => searchTargets(page);
  const dashboard = dashboardLink();
  if (!source.isReport) page.toolbar.element.append(dashboard, reportLink());
  pageElement("topbar").append(header.bar, page.toolbar.toggle, page.toolbar.element);
  const loader = createLoader("the run", async () => show(await getJson("api/run")));
  // Nothing is stated of a run before its state is here.
  header.element.hidden = true;
  frame.element.classList.add("pending");
  pageElement("page").replaceChildren(loader.element, header.element, frame.element);
  installKeyboard(page);
  document.addEventListener("click", followAnchor);

  // The address may lead to a case or a section, and a case that is over is not there at once.
  let triesLeft = location.hash ? 3 : 0;
  const openLinkedPlace = () => {
    if (triesLeft > 0) triesLeft = openAnchor(location.hash) ? 0 : triesLeft - 1;
  };
  /** @param {Partial<RunState>} state */
  const show = (state) => {
    const run = { ...EMPTY_RUN, ...state };
    page.run = run;
    header.element.hidden = false;
    frame.element.classList.remove("pending");
    loader.element.hidden = true;
    header.update(run);
    page.toolbar.update(run);
    // Any other address could be a script.
    const dashboardUrl = /^https?:\/\//.test(run.dashboard_url ?? "") ? run.dashboard_url : null;
    setAttributes(dashboard, { hidden: !dashboardUrl, href: dashboardUrl });
    frame.update(run);
    openLinkedPlace();
  };
  loader.request();
  addEventListener("online", loader.request);
  subscribe({ run: show, reset: loader.request, connection: header.setConnection });
  return { header };
}

function dashboardLink() {
  const link = element("a", "Dashboard", "button small");
  return setAttributes(link, { target: "_blank", rel: "noreferrer", title: "Open the dashboard of this run" });
}

function reportLink() {
  const link = element("a", "Report", "button small");
  return setAttributes(link, { href: "report.html", download: "", title: "Download this run as one HTML file" });
}

/** @param {SectionCreator[]} extraSections */
function withSections(extraSections) {
  const place = SECTIONS.indexOf(createCurves);
  return [...SECTIONS.slice(0, place), ...extraSections, ...SECTIONS.slice(place)];
}

/**
 * Links to cases and sections open what they lead to.
 * @param {MouseEvent} event
 */
function followAnchor(event) {
  const link = event.target instanceof Element ? event.target.closest("a[href^='#']") : null;
  if (link instanceof HTMLAnchorElement && openAnchor(new URL(link.href).hash)) event.preventDefault();
}

/** @param {string} hash */
function openAnchor(hash) {
  const node = document.getElementById(decodeName(hash.slice(1)));
  if (node) revealNode(node);
  return Boolean(node);
}

/** @param {string} text */
function decodeName(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * @param {Page} page
 * @returns {SearchTarget[]}
 */
function searchTargets({ frame, run }) {
  const sections = frame.items
    .filter(({ details }) => !details.hidden)
    .map(({ section, details }) => ({ text: section.title, kind: "section", open: () => revealNode(details) }));
  const cases = (run?.cases ?? []).map(({ name, message }) => ({
    text: message.subject,
    kind: "case",
    open: () => revealNode(document.getElementById(caseAnchor(name))),
  }));
  const charts = frame.items
    .filter(({ details }) => !details.hidden)
    .flatMap(({ section }) => section.searchTargets?.() ?? []);
  const signals = [...document.querySelectorAll("[data-signal]")].map((node) => ({
    text: node.getAttribute("data-signal") ?? "",
    kind: "signal",
    open: () => revealNode(node),
  }));
  return [...cases, ...sections, ...charts, ...signals];
}

if (!source.isReport) startPage();
