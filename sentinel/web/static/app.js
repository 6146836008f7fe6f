// All content is set as text, never as HTML: names and messages come from training code.
"use strict";

const REFRESH_INTERVAL_MS = 2000;
const STATE_CLASSES = { running: "good", finished: "good", starting: "soft", stalled: "warn" };

const at = (id) => document.getElementById(id);

function element(tag, text, className) {
  const node = document.createElement(tag);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

function container(tag, className, ...children) {
  const node = element(tag, "", className);
  node.append(...children.filter(Boolean));
  return node;
}

// Text in which names are between backticks, such as names of settings.
function textWithCode(tag, text, className) {
  const parts = text.split("`");
  if (parts.length % 2 === 0) return element(tag, text, className);
  return container(tag, className, ...parts.map((part, index) => part && (index % 2 ? element("code", part) : part)));
}

function formatNumber(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? String(value) : value.toPrecision(4);
}

function formatTime(seconds) {
  return typeof seconds === "number" ? new Date(seconds * 1000).toLocaleTimeString() : "";
}

function tableRow(cells) {
  const row = document.createElement("tr");
  row.append(...cells.map((cell) => element("td", formatNumber(cell))));
  return row;
}

function fillTable(id, rows, columns) {
  const cell = element("td", "None yet.", "soft");
  cell.colSpan = columns;
  const empty = document.createElement("tr");
  empty.append(cell);
  at(id).replaceChildren(...(rows.length ? rows.map(tableRow) : [empty]));
}

// CSS class of the severity of an incident or case.
function severityClass({ severity }) {
  return ["critical", "warning"].includes(severity) ? severity : "info";
}

function incidentCard(incident) {
  const rank = incident.rank === null ? "" : `, rank ${incident.rank}`;
  const notes = incidentNotes(incident);
  return container("article", `card ${severityClass(incident)}`,
    container("div", "top", element("span", incident.severity, "pill"), element("h3", incident.summary)),
    element("p", `${incident.detector}${rank}, since step ${incident.onset_step}`, "soft"),
    ...stackLines(incident),
    textWithCode("p", incident.remedy),
    notes && element("p", notes, "soft"),
  );
}

// Where ranks of a run without progress are: innermost function first.
function stackLines(incident) {
  const stacks = Object.entries(incident.evidence || {}).filter(([name]) => name.startsWith("stack_of_"));
  return stacks.map(([name, frames]) => container("p", "soft",
    element("span", `${name.replaceAll("_", " ")}: `), element("code", frames)));
}

// A case: the parts of its notification, and its incidents.
function caseCard(openCase, incidents) {
  const { detector, diagnosis, message, ranks } = openCase;
  const since = element("p", message.since, "soft");
  since.dataset.since = openCase.name;
  const notes = [...message.also.map((text) => `Also: ${text}`), ...message.notes];
  return container("article", `card case ${severityClass(openCase)}`,
    container("div", "top", element("span", openCase.severity, "pill"), element("h3", message.subject), diagnosis && confidenceBar(diagnosis)),
    since,
    container("p", "steps",
      ranks.length && element("span", `rank${ranks.length > 1 ? "s" : ""} ${formatRanks(ranks)}`),
      message.checkpoint && element("span", `Last good checkpoint: ${message.checkpoint}`, "good")),
    diagnosis ? evidenceList(diagnosis.evidence) : factList(message.facts),
    message.remedy && container("div", "remedy", element("h4", "What to do"), textWithCode("p", message.remedy)),
    ...notes.map((text) => element("p", text, "soft")),
    memberList(openCase, incidents),
    runbookLink(diagnosis ? diagnosis.cause : detector),
  );
}

function factList(facts) {
  return facts.length > 0 && container("ul", "facts", ...facts.map((fact) => element("li", fact)));
}

function runbookLink(name) {
  const link = element("a", "Runbook");
  link.href = `runbooks/${encodeURIComponent(name)}`;
  return container("p", "", link);
}

function confidenceBar(diagnosis) {
  const bar = element("progress", diagnosis.confidence_text);
  bar.value = diagnosis.confidence;
  bar.setAttribute("aria-label", "Confidence");
  return container("span", "confidence", bar, element("span", diagnosis.confidence_text));
}

// Evidence in the order of its steps; settings have no step and come last.
function evidenceList(evidence) {
  const items = evidence.map((item, index) => {
    const hasStep = item.step !== null;
    const next = evidence[index + 1];
    const hasSuccessor = next && next.step !== null;
    return container("li", hasStep ? hasSuccessor && "connected" : "setting",
      element("span", hasStep ? `step ${item.step}` : "setting", "when"), element("span", item.text));
  });
  return container("ol", "evidence", ...items);
}

// Whether the user expanded or collapsed the incidents of a case, by its name.
const expanded = new Map();

function memberList(openCase, incidents) {
  const items = incidents.map((incident) => container("li", severityClass(incident),
    container("div", "", element("strong", incident.detector), element("span", ` since step ${incident.onset_step}`, "soft")),
    element("div", incident.summary),
    incidentNotes(incident) && element("div", incidentNotes(incident), "soft")));
  const names = incidents.map((incident) => incident.detector).join(", ");
  const details = container("details", "",
    element("summary", `${incidents.length === 1 ? "1 incident" : `${incidents.length} incidents`}: ${names}`),
    container("ul", "members", ...items));
  details.open = expanded.get(openCase.name) ?? (!openCase.diagnosis && incidents.length > 1);
  details.addEventListener("toggle", () => expanded.set(openCase.name, details.open));
  return details;
}

let shownAlerts = "";

function showOpen(run) {
  // Rebuilt only after a change, so that the user can select and copy text. How long ago a case was
  // found changes all the time.
  const none = isFollower(run) ? "None on this node; the head shows the incidents of the run." : "None.";
  const alerts = JSON.stringify([run.cases, run.incidents, none], (key, value) => (key === "since" ? undefined : value));
  if (alerts !== shownAlerts) {
    shownAlerts = alerts;
    const cases = run.cases.map((openCase) =>
      caseCard(openCase, run.incidents.filter((incident) => incident.case === openCase.name)));
    const open = [...cases, ...run.incidents.filter((incident) => !incident.case).map(incidentCard)];
    at("open").replaceChildren(...(open.length ? open : [element("p", none, "soft")]));
  }
  for (const openCase of run.cases) {
    const since = [...document.querySelectorAll("[data-since]")].find((node) => node.dataset.since === openCase.name);
    if (since.textContent !== openCase.message.since) since.textContent = openCase.message.since;
  }
}

let shownProblems = "";

// Sinks whose receivers do not accept notifications, and a degraded storage. Rebuilt only after a
// change: a screen reader reads it each time.
function showProblems(problems) {
  const texts = JSON.stringify(problems);
  if (texts === shownProblems) return;
  shownProblems = texts;
  at("deliveries").hidden = !problems.length;
  at("deliveries").replaceChildren(...problems.map((problem) =>
    container("p", "", element("strong", problem.text), " ", textWithCode("span", problem.remedy))));
}

// Onset, checkpoint, acknowledgement and silence of an incident.
function incidentNotes(incident) {
  const signature = (entry) => `${entry.author ? ` by ${entry.author}` : ""}${entry.comment ? `: ${entry.comment}` : ""}`;
  const { acknowledged, silenced, flaps, onset } = incident;
  const bounds = onset && onset.earliest !== onset.latest
    ? `, between ${onset.earliest} and ${onset.latest}` : "";
  const goodStep = onset ? onset.last_good_step : incident.last_good_step;
  return [
    onset ? `Began at step ${onset.step}${bounds}` : "",
    flaps ? `Fired again ${flaps > 1 ? `${flaps} times` : "once"}` : "",
    typeof goodStep === "number" ? `Last checkpoint before: step ${goodStep}` : "",
    acknowledged ? `Acknowledged${signature(acknowledged)}` : "",
    silenced ? `Silenced until ${new Date(silenced.ends_at * 1000).toLocaleString()}${signature(silenced)}` : "",
  ].filter(Boolean).join(". ");
}

function showRun(run) {
  document.title = `${run.run || "sentinel"}: ${run.state}`;
  at("run").textContent = run.run || "sentinel";
  at("state").textContent = run.tier === "page" ? run.state : `${run.state}, ${run.tier}`;
  at("state").className = `badge ${STATE_CLASSES[run.state] || "bad"}`;
  at("step").textContent = run.step === null ? "" : `step ${run.step}, ${formatTime(run.last_step_time)}`;
  showRole(run);
  at("coverage").hidden = !run.coverage;
  at("coverage").textContent = run.coverage ? `${run.coverage[0].toUpperCase()}${run.coverage.slice(1)}.` : "";
  showProblems([...run.delivery_problems, ...(run.storage.text ? [run.storage] : [])]);
  showOpen(run);
  showNodes(run);
  const signals = Object.entries(run.signals).map(([name, s]) => [name, s.value, s.unit, s.min, s.max, s.worst_rank]);
  const logged = Object.entries(run.logged).map(([name, value]) => [name, value, "", "", "", ""]);
  fillTable("signals", [...signals, ...logged], 6);
  fillTable("ranks", Object.entries(run.ranks).map(([rank, r]) =>
    [rank, r.up ? "yes" : "no", r.step, r.step_time, formatTime(r.last_step_time)]), 5);
  showMachine(run.machine);
  showMetadata(run);
}

function describeRun(metadata) {
  const framework = [metadata.framework, metadata.framework_version].filter(Boolean).join(" ");
  const ranks = metadata.world_size === undefined ? "" : `world size ${metadata.world_size}`;
  return [framework, metadata.algorithm, metadata.model, ranks].filter(Boolean).join(", ");
}

function percent(ratio) {
  return typeof ratio === "number" ? `${Math.round(100 * ratio)} %` : "";
}

function gibibytes(bytes) {
  return typeof bytes === "number" ? (bytes / 2 ** 30).toFixed(1) : "";
}

function gpuProblems(gpu) {
  const problems = [...gpu.throttled];
  if (!gpu.up) problems.push("does not answer");
  if (gpu.gpu_xid) problems.push(`XID ${gpu.gpu_xid}`);
  if (gpu.gpu_ecc_errors) problems.push(`${gpu.gpu_ecc_errors} memory errors`);
  return problems.join(", ");
}

function showMachine(machine) {
  const { host, disks, gpus } = machine;
  at("host").textContent = [
    "host_cpu" in host ? `CPU ${percent(host.host_cpu)} busy` : "",
    "host_memory_used" in host
      ? `memory ${gibibytes(host.host_memory_used)} of ${gibibytes(host.host_memory_total)} GiB` : "",
    ...Object.entries(disks).map(([stored, free]) => `${gibibytes(free)} GiB free for ${stored}`),
  ].filter(Boolean).join(", ");
  fillTable("gpus", gpus.map((gpu) => [
    `${gpu.gpu} ${gpu.name}`, gpu.ranks.join(", "), percent(gpu.gpu_utilisation),
    gpu.gpu_memory_used === undefined
      ? "" : `${gibibytes(gpu.gpu_memory_used)} of ${gibibytes(gpu.gpu_memory_total)}`,
    gpu.gpu_power, gpu.gpu_temperature, gpuProblems(gpu)]), 7);
}

function showMetadata(run) {
  at("description").textContent = describeRun(run.metadata);
  fillTable("patches", Object.entries(run.patches).flatMap(([name, ranksByStatus]) =>
    Object.entries(ranksByStatus).map(([status, ranks]) => [name, status, ranks.join(", ")])), 3);
  fillTable("metadata", Object.entries(run.metadata).sort(), 2);
}

function showPast(incidents) {
  fillTable("past", incidents.map((i) =>
    [i.name, i.severity, i.state, i.diagnosis ? i.diagnosis.title : "",
      i.onset_step, i.opened_step, i.resolved_step, i.resolution || "", i.flaps]), 9);
}

async function getJson(path) {
  const response = await fetch(path, { cache: "no-store" });
  if (!response.ok) throw new Error(`${path} returned status ${response.status}`);
  return response.json();
}

async function refresh() {
  try {
    const [run, incidents] = await Promise.all([getJson("api/run"), getJson("api/incidents")]);
    showRun(run);
    showPast(incidents);
    at("error").hidden = true;
  } catch (error) {
    // The values on the page are outdated now and must not look current.
    at("error").textContent = `The agent does not answer; the values below are outdated. ${error.message}`;
    at("error").hidden = false;
  }
  setTimeout(refresh, REFRESH_INTERVAL_MS);
}

refresh();
