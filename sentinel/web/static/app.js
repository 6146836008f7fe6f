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

function card(incident) {
  const box = make("article", "", `card ${incident.severity === "critical" ? "critical" : "warning"}`);
  const where = incident.rank === null ? "" : `, rank ${incident.rank}`;
  box.append(
    make("strong", incident.summary),
    make("p", `${incident.detector}, ${incident.severity}${where}, since step ${incident.onset_step}`, "soft"),
    make("p", incident.remedy),
  );
  const words = known(incident);
  if (words) box.append(make("p", words, "soft"));
  return box;
}

// What people made of it, and what came of it since it began.
function known(incident) {
  const said = (told) => `${told.by ? ` by ${told.by}` : ""}${told.why ? `: ${told.why}` : ""}`;
  const { acknowledged, silenced, flaps, onset } = incident;
  const good = onset ? onset.last_good_step : incident.last_good_step;
  return [
    onset ? `Began at step ${onset.step}, between ${onset.earliest} and ${onset.latest}` : "",
    flaps ? `Came back ${flaps > 1 ? `${flaps} times` : "once"}` : "",
    typeof good === "number" ? `Last checkpoint before: step ${good}` : "",
    acknowledged ? `Acknowledged${said(acknowledged)}` : "",
    silenced ? `Silenced until ${new Date(silenced.ends * 1000).toLocaleString()}${said(silenced)}` : "",
  ].filter(Boolean).join(". ");
}

function showRun(run) {
  document.title = `${run.run || "sentinel"}: ${run.state}`;
  at("run").textContent = run.run || "sentinel";
  at("state").textContent = run.tier === "page" ? run.state : `${run.state}, ${run.tier}`;
  at("state").className = `badge ${MOOD[run.state] || "bad"}`;
  at("step").textContent = run.step === null ? "" : `step ${run.step}, ${clock(run.last_step_time)}`;
  const open = run.incidents.map(card);
  at("open").replaceChildren(...(open.length ? open : [make("p", "None.", "soft")]));
  const signals = Object.entries(run.signals).map(([name, s]) => [name, s.value, s.unit, s.min, s.max, s.worst_rank]);
  const logged = Object.entries(run.logged).map(([name, value]) => [name, value, "", "", "", ""]);
  rows("signals", [...signals, ...logged], 6);
  rows("ranks", Object.entries(run.ranks).map(([rank, r]) =>
    [rank, r.up ? "yes" : "no", r.step, r.step_time, clock(r.last_step)]), 5);
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
  at("about").textContent = whatItIs(run.about);
  rows("taps", Object.entries(run.taps).flatMap(([name, told]) =>
    Object.entries(told).map(([state, ranks]) => [name, state, ranks.join(", ")])), 3);
  rows("set", Object.entries(run.about).sort(), 2);
}

function showPast(incidents) {
  rows("past", incidents.map((i) =>
    [i.name, i.severity, i.state, i.onset_step, i.opened_step, i.resolved_step, i.flaps]), 7);
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
