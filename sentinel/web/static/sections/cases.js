// Open cases, as in their notifications, and those that are resolved.
import {
  button,
  capitalize,
  container,
  focusedElement,
  createChangeCheck,
  element,
  emptyState,
  formatCount,
  formatOpenCount,
  formatTime,
  formatTrainingEndCount,
  formatRanks,
  isActive,
  isNumber,
  setAttributes,
  setText,
  severityClass,
  textWithCode,
} from "../dom.js";
import { createLoader } from "../loading.js";
import { caseCurves, rangeOfCase } from "./case_curves.js";
import { caseAnchor, isOfTrainingEnd, lastingCases, leadingCase, singleIncidents } from "./header.js";
import { openAcknowledgeDialog, openFeedbackDialog, openSilenceDialog, sendSuppression } from "./suppression.js";

const MAX_RESOLVED_SHOWN = 50;

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createCases(page) {
  const open = element("div");
  const silences = element("div", "", "silences");
  const resolved = element("div");
  const pastCases = createLoader("the resolved cases", async () => {
    if (page.run) await showResolved(page, resolved, page.run);
  });
  page.requestCases = pastCases.request;
  const root = container("div", "", silences, open, pastCases.element, resolved);
  const isOpenNew = createChangeCheck();
  const areSilencesNew = createChangeCheck();
  let resolvedKey = "";
  // A card that is rebuilt while a button is pressed would lose the click.
  let isPressed = false;
  open.addEventListener("pointerdown", () => {
    isPressed = true;
  });
  addEventListener("pointerup", () =>
    setTimeout(() => {
      isPressed = false;
    }),
  );
  addEventListener("pointercancel", () => {
    isPressed = false;
  });
  return {
    id: "cases",
    title: "Cases",
    element: root,
    note(run) {
      const lasting = lastingCases(run, page.pastCases);
      const ofTraining = lasting.filter(isOfTrainingEnd).length;
      const ofRun = lasting.length - ofTraining;
      const open = formatOpenCount(run.cases.length + ofRun, ofRun > 0 || run.state === "finished");
      return [open, formatTrainingEndCount(ofTraining)].filter(Boolean).join(", ") || "none open";
    },
    update(run) {
      // How long ago a case was found, and its present value, change all the time.
      const facts = JSON.stringify(
        [run.cases, run.incidents, run.state, lastingCases(run, page.pastCases), page.allIncidents.length],
        (key, value) => (key === "since" || key === "now" ? undefined : value),
      );
      if (!isPressed && isOpenNew(facts)) showCards(open, openElements(page, run));
      for (const each of run.cases) {
        const card = document.getElementById(caseAnchor(each.name));
        const [since, now] = [card?.querySelector(".since"), card?.querySelector(".now")];
        if (since) setText(since, each.message.since);
        if (now) setText(now, each.now ?? "");
        if (root.closest("details")?.open) caseCurves(page, each, run.incidents);
      }
      if (areSilencesNew(run.silences))
        silences.replaceChildren(...(run.silences ?? []).map((each) => silenceBanner(page, each)));
      // They end with the run.
      silences.hidden = !run.silences?.length || !isActive(run);
      const key = JSON.stringify([run.state, run.cases.map(({ name }) => name)]);
      if (key !== resolvedKey) {
        resolvedKey = key;
        pastCases.request();
      }
    },
    isEmpty: (run) => !run.cases.length && !run.incidents.length && !page.pastCases.length && !run.silences?.length,
    urgency(run) {
      if (run.cases.some(({ severity }) => severity === "critical")) return 100;
      const isWrong = run.cases.length || singleIncidents(run).length || lastingCases(run, page.pastCases).length;
      return isWrong ? 90 : run.incidents.length ? 2 : 0;
    },
  };
}

/**
 * @param {Page} page
 * @param {RunState} run
 */
function openElements(page, run) {
  const isFollower = run.cluster?.role === "follower";
  const none = isFollower
    ? "None on this node; the head shows the incidents of the run."
    : isActive(run)
      ? "None. A case opens when a detector fires, and its notification is shown here."
      : run.state === "unfinished"
        ? "None was open at the last step."
        : "None was open when the run ended.";
  const cases = [...run.cases, ...lastingCases(run, page.pastCases)].map((each) =>
    caseCard(
      page,
      each,
      (each.resolution ? page.allIncidents : run.incidents).filter((incident) => incident.case === each.name),
    ),
  );
  const single = run.incidents.filter((incident) => !incident.case).map((incident) => incidentCard(page, incident));
  return cases.length + single.length ? [...cases, ...single] : [emptyState(none)];
}

/**
 * Of the same cards, only what changed is replaced, so that the user can select and copy text. A button
 * that had the focus gets it again.
 * @param {HTMLElement} parent
 * @param {HTMLElement[]} cards
 */
function showCards(parent, cards) {
  const shown = [...parent.children];
  const isSame = shown.length === cards.length && shown.every(({ id }, index) => id && id === cards[index].id);
  const active = focusedElement();
  const focused = parent.contains(active) ? active : null;
  const [cardId, text] = [focused?.closest(".card")?.id, focused?.textContent];
  if (!isSame) parent.replaceChildren(...cards);
  else {
    shown.forEach((card, index) => {
      card.className = cards[index].className;
      replaceChanged(card, [...cards[index].children]);
    });
  }
  if (!focused || focused.isConnected) return;
  const place = cardId ? document.getElementById(cardId) : parent;
  const same = [...(place?.querySelectorAll("button, a, summary") ?? [])].find((node) => node.textContent === text);
  const target = same ?? place;
  if (target instanceof HTMLElement) target.focus();
}

/**
 * Give a card these parts; those with the class "parts" have parts of their own. What is the same at
 * the beginning and at the end stays.
 * @param {Element} parent
 * @param {Element[]} parts
 */
function replaceChanged(parent, parts) {
  const old = [...parent.children];
  const shorter = Math.min(old.length, parts.length);
  /**
   * @param {Element} each
   * @param {Element} part
   */
  const stays = (each, part) =>
    each.isEqualNode(part) || (each.classList.contains("parts") && part.classList.contains("parts"));
  let first = 0;
  while (first < shorter && stays(old[first], parts[first])) first += 1;
  let last = 0;
  while (last < shorter - first && stays(old[old.length - 1 - last], parts[parts.length - 1 - last])) last += 1;
  /**
   * @param {Element} each
   * @param {Element} part
   */
  const keep = (each, part) => part.classList.contains("parts") && replaceChanged(each, [...part.children]);
  for (let index = 0; index < first; index += 1) keep(old[index], parts[index]);
  for (let index = 1; index <= last; index += 1) keep(old[old.length - index], parts[parts.length - index]);
  for (const each of old.slice(first, old.length - last)) each.remove();
  for (const part of parts.slice(first, parts.length - last)) parent.insertBefore(part, old[old.length - last] ?? null);
}

/**
 * A case: the parts of its notification, its incidents, and what can be done about it.
 * @param {Page} page
 * @param {Case} openCase
 * @param {Incident[]} incidents
 */
function caseCard(page, openCase, incidents) {
  const { detector, diagnosis, message, ranks } = openCase;
  const notes = [...message.also.map((text) => `Also: ${text}`), ...message.notes];
  const card = container(
    "article",
    `card case ${severityClass(openCase)}`,
    container("div", "top", element("span", openCase.severity, "pill"), element("h3", caseTitle(page, openCase))),
    element("p", openCase.now ?? "", "now"),
    element("p", message.since, "soft since"),
    container(
      "div",
      "case-body parts",
      container(
        "div",
        "parts",
        container(
          "p",
          "facts-line",
          ranks && ranks.length > 0 && element("span", `rank${ranks.length > 1 ? "s" : ""} ${formatRanks(ranks)}`),
          message.checkpoint && element("span", `Last good checkpoint: ${message.checkpoint}`, "good"),
        ),
        diagnosis ? evidenceList(diagnosis.evidence) : factList(message.facts),
        message.remedy && container("div", "remedy", element("h4", "What to do"), textWithCode("p", message.remedy)),
        ...suppressionLines(incidents),
        feedbackLine(openCase),
        ...notes.map((text) => textWithCode("p", text, "soft")),
        caseActions(page, openCase, incidents, diagnosis ? diagnosis.cause : detector),
        incidents.length > 0 ? memberList(openCase, incidents) : incidentNames(openCase),
      ),
      caseCurves(page, openCase, [...incidents, ...page.allIncidents]),
    ),
  );
  card.id = caseAnchor(openCase.name);
  card.tabIndex = -1;
  return card;
}

/**
 * The text of the leading case is at the top of the page.
 * @param {Page} page
 * @param {Case} shown
 */
function caseTitle(page, { name, diagnosis, detector, message }) {
  if (!page.run || leadingCase(page.run, page.pastCases)?.name !== name) return message.subject;
  return capitalize(diagnosis?.title ?? detector.replaceAll("_", " "));
}

/**
 * @param {Page} page
 * @param {Incident} incident
 */
function incidentCard(page, incident) {
  const rank = incident.rank === null ? "" : `, rank ${incident.rank}`;
  const notes = incidentNotes(incident);
  const card = container(
    "article",
    `card ${severityClass(incident)}`,
    container("div", "top", element("span", incident.severity, "pill"), element("h3", incident.summary)),
    element("p", `${incident.detector}${rank}, since step ${incident.onset_step}`, "soft"),
    ...stackLines(incident),
    textWithCode("p", incident.remedy),
    notes && element("p", notes, "soft"),
    caseActions(page, incident, [incident], incident.detector),
  );
  card.id = caseAnchor(incident.name);
  card.tabIndex = -1;
  return card;
}

/**
 * Incidents of a case that is over; all of them are in a section of their own.
 * @param {Case} shown
 */
function incidentNames({ incidents }) {
  const names = (incidents ?? []).map((name) => name.split("/").pop());
  return names.length > 0 && element("p", `${formatCount(names.length, "incident")}: ${names.join(", ")}`, "soft");
}

/**
 * @param {Page} page
 * @param {Case | Incident} openCase
 * @param {Incident[]} incidents
 * @param {string} runbook
 */
function caseActions(page, openCase, incidents, runbook) {
  const { source, view } = page;
  const firing = incidents.filter(({ state }) => state === "firing");
  const isAcknowledged = incidents.some(({ acknowledged }) => acknowledged);
  const detectors = [...new Set([openCase.detector, ...incidents.map(({ detector }) => detector)].filter(Boolean))];
  // What is only information sends no notification.
  const canChange =
    !source.isReport &&
    page.run?.is_live !== false &&
    !page.run?.log &&
    !openCase.resolution &&
    openCase.severity !== "info";
  // A change of what the buttons do is a change of the element.
  const about = JSON.stringify([
    incidents.map(({ name, state, acknowledged }) => [name, state, Boolean(acknowledged)]),
    openCase.onset_step,
    openCase.resolved_step,
  ]);
  return setAttributes(
    container(
      "div",
      "actions",
      canChange &&
        firing.length > 0 &&
        !isAcknowledged &&
        button("Acknowledge", () => openAcknowledgeDialog(source, subjectOf(openCase), firing[0].name), "primary"),
      canChange &&
        isAcknowledged &&
        button("Revoke acknowledgement", () => {
          const names = incidents.filter(({ acknowledged }) => acknowledged).map(({ detector }) => detector);
          sendSuppression(
            source,
            "api/acknowledge",
            { detector: names[0], revoke: true },
            "The acknowledgement is revoked.",
          );
        }),
      canChange &&
        page.run &&
        isActive(page.run) &&
        detectors.length > 0 &&
        button("Silence", () => openSilenceDialog(source, detectors)),
      !source.isReport &&
        !page.run?.log &&
        "message" in openCase &&
        button("Feedback", () => openFeedbackDialog(source, openCase, page.requestCases)),
      runbookLink(page, runbook),
      isNumber(openCase.onset_step) &&
        button(
          "Show in charts",
          () => {
            view.set({ axis: "step", range: rangeOfCase(openCase, page.run) });
            page.reveal("curves");
          },
          "quiet",
        ),
    ),
    { "data-about": about },
  );
}

/**
 * @param {Page} page
 * @param {string} name
 * @param {string} [className]
 */
function runbookLink(page, name, className = "") {
  const url = name && page.runbookUrl(name);
  if (!url) return null;
  const link = element("a", "Runbook", `button ${className}`.trim());
  link.href = url;
  return link;
}

/**
 * What is acknowledged, in words.
 * @param {Case | Incident} shown
 */
function subjectOf(shown) {
  return "message" in shown ? shown.message.subject : shown.summary;
}

/**
 * Where ranks of a run without progress are: innermost function first.
 * @param {Incident} incident
 */
function stackLines(incident) {
  const stacks = Object.entries(incident.evidence ?? {}).filter(([name]) => name.startsWith("stack_of_"));
  return stacks.map(([name, frames]) =>
    container("p", "soft", element("span", `${name.replaceAll("_", " ")}: `), element("code", frames)),
  );
}

/** @param {string[]} facts */
function factList(facts) {
  return facts.length > 0 && container("ul", "", ...facts.map((fact) => textWithCode("li", fact)));
}

/**
 * Evidence in the order of its steps; what has none, such as settings, comes last.
 * @param {Evidence[]} evidence
 */
function evidenceList(evidence) {
  const items = evidence.map((item, index) => {
    const hasStep = item.step !== null;
    const next = evidence[index + 1];
    const hasSuccessor = next && next.step !== null;
    return container(
      "li",
      hasStep ? (hasSuccessor ? "connected" : "") : "overall",
      element("span", hasStep ? `step ${item.step}` : "overall", "when"),
      textWithCode("span", item.text),
    );
  });
  return container("ol", "evidence", ...items);
}

// Whether the user expanded or collapsed the incidents of a case, by its name.
const expandedCases = new Map();

/**
 * @param {Case} openCase
 * @param {Incident[]} incidents
 */
function memberList(openCase, incidents) {
  const items = incidents.map((incident) =>
    container(
      "li",
      severityClass(incident),
      container(
        "div",
        "",
        element("strong", incident.detector),
        element("span", ` since step ${incident.onset_step}`, "soft"),
      ),
      element("div", incident.summary),
      ...stackLines(incident),
      incidentNotes(incident) && element("div", incidentNotes(incident), "soft"),
    ),
  );
  const names = incidents.map((incident) => incident.detector).join(", ");
  const open = incidents.length < openCase.incidents.length ? `${incidents.length} open of ` : "";
  const details = container(
    "details",
    "",
    element("summary", `${open}${formatCount(openCase.incidents.length, "incident")}: ${names}`),
    container("ul", "members", ...items),
  );
  details.open = expandedCases.get(openCase.name) ?? (!openCase.diagnosis && incidents.length > 1);
  details.addEventListener("toggle", () => expandedCases.set(openCase.name, details.open));
  return details;
}

/** @param {Suppression} entry */
function authorText(entry) {
  return `${entry.author ? ` by ${entry.author}` : ""}${entry.comment ? `: ${entry.comment}` : ""}`;
}

/**
 * Onset, checkpoint, acknowledgement and silence of an incident.
 * @param {Incident} incident
 */
function incidentNotes(incident) {
  const { acknowledged, silenced, flaps, onset } = incident;
  const bounds = onset && onset.earliest !== onset.latest ? `, between ${onset.earliest} and ${onset.latest}` : "";
  return [
    onset ? `Began at step ${incident.onset_step}${bounds}` : "",
    flaps ? `Fired again ${flaps > 1 ? `${flaps} times` : "once"}` : "",
    isNumber(incident.last_good_step) ? `Last checkpoint before: step ${incident.last_good_step}` : "",
    acknowledged ? `Acknowledged${authorText(acknowledged)}` : "",
    silenced ? `Silenced until ${formatTime(silenced.ends_at)}${authorText(silenced)}` : "",
  ]
    .filter(Boolean)
    .join(". ");
}

/**
 * Who acknowledged or silenced a case, beside its text.
 * @param {Incident[]} incidents
 */
function suppressionLines(incidents) {
  const acknowledged = incidents.find((each) => each.acknowledged)?.acknowledged;
  const silenced = incidents.find((each) => each.silenced)?.silenced;
  return [
    acknowledged && element("p", `Acknowledged${authorText(acknowledged)} (${formatTime(acknowledged.time)})`, "good"),
    silenced && element("p", `Silenced until ${formatTime(silenced.ends_at)}${authorText(silenced)}`, "warn"),
  ];
}

/** @param {Case} shown */
function feedbackLine({ feedback }) {
  if (!feedback) return null;
  const mark = feedback.mark === "false" ? "a false alarm" : feedback.mark;
  return element("p", `Marked as ${mark}${authorText(feedback)} (${formatTime(feedback.time)})`, "soft");
}

/**
 * @param {Page} page
 * @param {Silence} silence
 */
function silenceBanner(page, silence) {
  const what = silence.detector || "all detectors";
  const text = `Notifications of ${what} are silenced until ${formatTime(silence.ends_at)}${authorText(silence)}.`;
  return container(
    "div",
    "banner warning",
    container(
      "div",
      "row",
      element("span", text),
      !page.source.isReport &&
        page.run?.is_live !== false &&
        button(
          "End silence",
          () =>
            sendSuppression(
              page.source,
              "api/silence",
              { detector: silence.detector, end: true },
              `The silence of ${what} is ended.`,
            ),
          "small end",
        ),
    ),
  );
}

/**
 * Cases that are over, newest first, each with its text on demand.
 * @param {Page} page
 * @param {HTMLElement} parent
 * @param {RunState} run
 */
async function showResolved(page, parent, run) {
  /** @type {Case[]} */
  const all = await page.source.getJson("api/cases");
  const shown = new Set([...run.cases, ...lastingCases(run, all)].map(({ name }) => name));
  const over = all.filter(({ name }) => !shown.has(name)).slice(0, MAX_RESOLVED_SHOWN);
  parent.replaceChildren(
    ...(over.length ? [element("h3", "Resolved", "group"), ...over.map((each) => resolvedCase(page, each))] : []),
  );
  page.setPastCases(all);
}

/**
 * @param {Page} page
 * @param {Case} pastCase
 */
function resolvedCase(page, pastCase) {
  const { name, severity, message, subject, onset_step: onset, resolved_step: end, resolution } = pastCase;
  const steps = isNumber(end) ? `steps ${onset}–${end}` : `since step ${onset}`;
  const details = container(
    "details",
    `resolved ${severityClass(pastCase)}`,
    container(
      "summary",
      "",
      element("span", severity, "pill"),
      " ",
      element("strong", message?.subject || subject),
      element("span", ` ${steps}${resolution ? `; ${resolution}` : ""}`, "soft"),
    ),
  );
  details.id = caseAnchor(name);
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const incidents = page.allIncidents.filter((incident) => incident.case === name);
    const card = caseCard(page, { ...pastCase, ranks: pastCase.ranks ?? [] }, incidents);
    card.removeAttribute("id");
    details.append(card);
  });
  // A report is read from top to bottom.
  details.open = page.source.isReport;
  return details;
}
