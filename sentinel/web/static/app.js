// Everything shown is set as text, never as HTML: names and messages come from training code.
"use strict";

const EVERY_MS = 2000;
const MOOD = { running: "good", finished: "good", starting: "soft", stalled: "warn" };

const at = (id) => document.getElementById(id);

function make(tag, text, className) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

function box(tag, className, ...parts) {
  const element = make(tag, "", className);
  element.append(...parts.filter(Boolean));
  return element;
}

// Text in which what stands between backticks is a name, of a setting say.
function prose(tag, text, className) {
  const parts = text.split("`");
  if (parts.length % 2 === 0) return make(tag, text, className);
  return box(tag, className, ...parts.map((part, place) => part && (place % 2 ? make("code", part) : part)));
}

function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? String(value) : value.toPrecision(4);
}

function clock(seconds) {
  return typeof seconds === "number" ? new Date(seconds * 1000).toLocaleTimeString() : "";
}

function row(cells) {
  const line = document.createElement("tr");
  line.append(...cells.map((cell) => make("td", number(cell))));
  return line;
}

function rows(id, lines, columns) {
  const none = make("td", "None yet.", "soft");
  none.colSpan = columns;
  const empty = document.createElement("tr");
  empty.append(none);
  at(id).replaceChildren(...(lines.length ? lines.map(row) : [empty]));
}

// How loud it is, as a word of a style sheet.
function loud(told) {
  return ["critical", "warning"].includes(told.severity) ? told.severity : "info";
}

function card(incident) {
  const where = incident.rank === null ? "" : `, rank ${incident.rank}`;
  const words = known(incident);
  return box("article", `card ${loud(incident)}`,
    box("div", "top", make("span", incident.severity, "pill"), make("h3", incident.summary)),
    make("p", `${incident.detector}${where}, since step ${incident.onset_step}`, "soft"),
    prose("p", incident.remedy),
    words && make("p", words, "soft"),
  );
}

// Incidents of one cause: what it is, how sure that is, why, what to do, and they themselves.
function caseCard(told, incidents) {
  const { diagnosis } = told;
  const lead = incidents.find((incident) => incident.name === told.name) || incidents[0];
  const title = diagnosis ? capital(diagnosis.title) : lead.summary;
  return box("article", `card case ${loud(told)}`,
    box("div", "top", make("span", told.severity, "pill"), make("h3", title), diagnosis && surety(diagnosis)),
    box("p", "facts",
      make("span", `began at step ${told.onset_step}`),
      make("span", `told at step ${told.opened_step}`),
      typeof told.last_good_step === "number" && make("span", `last checkpoint before: step ${told.last_good_step}`, "good")),
    diagnosis && evidence(diagnosis.evidence),
    told.remedy && box("div", "remedy", make("h4", "What to do"), prose("p", told.remedy)),
    members(told, incidents),
  );
}

function surety(diagnosis) {
  const bar = make("progress", diagnosis.confidence_text);
  bar.value = diagnosis.confidence;
  bar.setAttribute("aria-label", "Confidence");
  return box("span", "surety", bar, make("span", diagnosis.confidence_text));
}

// In the order it began; what was set from the start has no step and comes last.
function evidence(clues) {
  const lines = clues.map((clue, place) => {
    const began = clue.step !== null;
    const next = clues[place + 1];
    const led = next && next.step !== null;
    return box("li", began ? led && "led" : "setting",
      make("span", began ? `step ${clue.step}` : "set", "when"), make("span", clue.text));
  });
  return box("ol", "evidence", ...lines);
}

// By the case's name, where somebody folded or unfolded its incidents.
const unfolded = new Map();

function members(told, incidents) {
  const lines = incidents.map((incident) => box("li", loud(incident),
    box("div", "", make("strong", incident.detector), make("span", ` since step ${incident.onset_step}`, "soft")),
    make("div", incident.summary),
    known(incident) && make("div", known(incident), "soft")));
  const names = incidents.map((incident) => incident.detector).join(", ");
  const details = box("details", "",
    make("summary", `${incidents.length === 1 ? "1 incident" : `${incidents.length} incidents`}: ${names}`),
    box("ul", "members", ...lines));
  details.open = unfolded.get(told.name) ?? !told.diagnosis;
  details.addEventListener("toggle", () => unfolded.set(told.name, details.open));
  return details;
}

let shownOpen = "";

function showOpen(run) {
  // Built anew only where there is news: else nobody could read or copy in peace.
  const none = judgedElsewhere(run) ? "It is not judged here." : "None.";
  const now = JSON.stringify([run.cases, run.incidents, none]);
  if (now === shownOpen) return;
  shownOpen = now;
  const cases = run.cases.map((told) => {
    const own = run.incidents.filter((incident) => incident.case === told.name);
    return own.length === 1 && !told.diagnosis ? card(own[0]) : caseCard(told, own);
  });
  const open = [...cases, ...run.incidents.filter((incident) => !incident.case).map(card)];
  at("open").replaceChildren(...(open.length ? open : [make("p", none, "soft")]));
}

// What people made of it, and what came of it since it began.
function known(incident) {
  const said = (told) => `${told.author ? ` by ${told.author}` : ""}${told.comment ? `: ${told.comment}` : ""}`;
  const { acknowledged, silenced, flaps, onset } = incident;
  const good = onset ? onset.last_good_step : incident.last_good_step;
  return [
    onset ? `Began at step ${onset.step}, between ${onset.earliest} and ${onset.latest}` : "",
    flaps ? `Came back ${flaps > 1 ? `${flaps} times` : "once"}` : "",
    typeof good === "number" ? `Last checkpoint before: step ${good}` : "",
    acknowledged ? `Acknowledged${said(acknowledged)}` : "",
    silenced ? `Silenced until ${new Date(silenced.ends_at * 1000).toLocaleString()}${said(silenced)}` : "",
  ].filter(Boolean).join(". ");
}

function showRun(run) {
  document.title = `${run.run || "sentinel"}: ${run.state}`;
  at("run").textContent = run.run || "sentinel";
  at("state").textContent = run.tier === "page" ? run.state : `${run.state}, ${run.tier}`;
  at("state").className = `badge ${MOOD[run.state] || "bad"}`;
  at("step").textContent = run.step === null ? "" : `step ${run.step}, ${clock(run.last_step_time)}`;
  showJudge(run);
  showOpen(run);
  showNodes(run);
  const signals = Object.entries(run.signals).map(([name, s]) => [name, s.value, s.unit, s.min, s.max, s.worst_rank]);
  const logged = Object.entries(run.logged).map(([name, value]) => [name, value, "", "", "", ""]);
  rows("signals", [...signals, ...logged], 6);
  rows("ranks", Object.entries(run.ranks).map(([rank, r]) =>
    [rank, r.up ? "yes" : "no", r.step, r.step_time, clock(r.last_step_time)]), 5);
  showMachine(run.machine);
  showFacts(run);
}

function whatItIs(about) {
  const framework = [about.framework, about.framework_version].filter(Boolean).join(" ");
  const ranks = about.world_size === undefined ? "" : `world size ${about.world_size}`;
  return [framework, about.algorithm, about.model, ranks].filter(Boolean).join(", ");
}

function percent(share) {
  return typeof share === "number" ? `${Math.round(100 * share)} %` : "";
}

function gibibytes(bytes) {
  return typeof bytes === "number" ? (bytes / 2 ** 30).toFixed(1) : "";
}

function troubleOf(gpu) {
  const words = [...gpu.throttled];
  if (!gpu.up) words.push("does not answer");
  if (gpu.gpu_xid) words.push(`XID ${gpu.gpu_xid}`);
  if (gpu.gpu_ecc_errors) words.push(`${gpu.gpu_ecc_errors} memory errors`);
  return words.join(", ");
}

function showMachine(machine) {
  const { host, disks, gpus } = machine;
  at("host").textContent = [
    "host_cpu" in host ? `processors ${percent(host.host_cpu)} busy` : "",
    "host_memory_used" in host
      ? `memory ${gibibytes(host.host_memory_used)} of ${gibibytes(host.host_memory_total)} GiB` : "",
    ...Object.entries(disks).map(([keeps, free]) => `${gibibytes(free)} GiB free for ${keeps}`),
  ].filter(Boolean).join(", ");
  rows("gpus", gpus.map((gpu) => [
    `${gpu.gpu} ${gpu.name}`, gpu.ranks.join(", "), percent(gpu.gpu_utilisation),
    gpu.gpu_memory_used === undefined
      ? "" : `${gibibytes(gpu.gpu_memory_used)} of ${gibibytes(gpu.gpu_memory_total)}`,
    gpu.gpu_power, gpu.gpu_temperature, troubleOf(gpu)]), 7);
}

function showFacts(run) {
  at("about").textContent = whatItIs(run.metadata);
  rows("taps", Object.entries(run.patches).flatMap(([name, told]) =>
    Object.entries(told).map(([state, ranks]) => [name, state, ranks.join(", ")])), 3);
  rows("set", Object.entries(run.metadata).sort(), 2);
}

function showPast(incidents) {
  rows("past", incidents.map((i) =>
    [i.name, i.severity, i.state, i.diagnosis ? i.diagnosis.title : "",
      i.onset_step, i.opened_step, i.resolved_step, i.flaps]), 8);
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

async function refresh() {
  try {
    const [run, incidents] = await Promise.all([ask("api/run"), ask("api/incidents")]);
    showRun(run);
    showPast(incidents);
    at("trouble").hidden = true;
  } catch (error) {
    // What is on the page is old now, and must not pass for the present.
    at("trouble").textContent = `No word from the agent since the values below: ${error.message}`;
    at("trouble").hidden = false;
  }
  setTimeout(refresh, EVERY_MS);
}

refresh();
