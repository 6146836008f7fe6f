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
  return box;
}

function showRun(run) {
  document.title = `${run.run || "sentinel"}: ${run.state}`;
  at("run").textContent = run.run || "sentinel";
  at("state").textContent = run.state;
  at("state").className = `badge ${MOOD[run.state] || "bad"}`;
  at("step").textContent = run.step === null ? "" : `step ${run.step}, ${clock(run.last_step_time)}`;
  const open = run.incidents.map(card);
  at("open").replaceChildren(...(open.length ? open : [make("p", "None.", "soft")]));
  const signals = Object.entries(run.signals).map(([name, s]) => [name, s.value, s.unit, s.min, s.max, s.worst_rank]);
  const logged = Object.entries(run.logged).map(([name, value]) => [name, value, "", "", "", ""]);
  rows("signals", [...signals, ...logged], 6);
  rows("ranks", Object.entries(run.ranks).map(([rank, r]) =>
    [rank, r.up ? "yes" : "no", r.step, r.step_time, clock(r.last_step)]), 5);
}

function showPast(incidents) {
  rows("past", incidents.map((i) =>
    [i.name, i.severity, i.state, i.onset_step, i.opened_step, i.resolved_step]), 6);
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
