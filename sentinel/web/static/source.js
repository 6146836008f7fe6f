// Where the data of the page come from: the server of the run, or, in a report, the JSON inside it.
//
// A report has <script type="application/json" id="report-data">. The answers of a run in it are what
// the server would answer, by path. A path is looked up with its axis, signal or statistic, and then without
// its query; of series, thresholds and samples, what the query asks for is taken from the whole.

import { isActive } from "./dom.js";

const RETRY_DELAYS_MS = [1000, 2000, 5000, 10000, 30000];
const POLL_INTERVAL_MS = 5000;
const HIDDEN_POLL_INTERVAL_MS = 30000;
const FIRST_POLL_MS = 500;
/** @type {("start" | "rows" | "run" | "reset" | "end")[]} */
const EVENT_NAMES = ["start", "rows", "run", "reset", "end"];

const reportNode = document.getElementById("report-data");
// { generated, runs: [{ name, verdict, results, answers }], comparison }; null on a page of a server.
/** @type {Report | null} */
export const report = reportNode && JSON.parse(reportNode.textContent);
// The run of the report that is shown: ?run=1 is the second one.
export const reportedRun =
  report && (report.runs[Number(new URLSearchParams(location.search).get("run") ?? 0)] ?? report.runs[0]);
const embedded = reportedRun && reportedRun.answers;

/** The report in this page, and its run that is shown. Throws an Error if the page is one of a server. */
export function openReport() {
  if (!report || !reportedRun) throw new Error("This page contains no report.");
  return { report, run: reportedRun };
}

let writeToken = "";
let clockOffsetSeconds = 0;

export const source = {
  getJson,
  post,
  subscribe,
  mediaUrl,
  getMediaJson,
  now: serverTime,
  isReport: Boolean(embedded),
};

/**
 * The answer to GET. Throws an Error whose message is for people, with `status` (0: no answer).
 * @param {string} path
 * @returns {Promise<any>}
 */
export async function getJson(path) {
  if (embedded) return embeddedAnswer(path, embedded);
  const response = await request(path, {});
  const sent = Date.parse(response.headers.get("date") ?? "");
  if (Number.isFinite(sent)) clockOffsetSeconds = roundedOffset((sent - Date.now()) / 1000);
  const answer = await response.json();
  if (path.startsWith("api/series?") && lastEventId === "") lastEventId = String(answer.last_id);
  return answer;
}

/**
 * POST of a change, with the token that only pages of this server can read; a page that lists runs gets it
 * of the run that it changes.
 * @param {string} path
 * @param {object} body
 * @returns {Promise<any>}
 */
export async function post(path, body) {
  if (embedded) throw new Error("A report cannot change the run.");
  const isFirstTry = writeToken !== "";
  if (!writeToken) writeToken = (await getJson(path.replace(/[^/]*$/, "write-token"))).token;
  const headers = { "content-type": "application/json", "x-sentinel-write-token": writeToken };
  try {
    return (await request(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
  } catch (error) {
    // The agent was restarted, and has another token.
    if (!(error instanceof AnswerError) || error.status !== 403 || !isFirstTry) throw error;
    writeToken = "";
    return post(path, body);
  }
}

// Seconds since the epoch by the clock of the server.
function serverTime() {
  if (report) return report.generated;
  return Date.now() / 1000 + clockOffsetSeconds;
}

/**
 * The address of an image of `api/media`.
 * @param {MediaItem} item
 * @returns {string}
 */
export function mediaUrl(item) {
  if (!embedded) return `api/media/${encodeURIComponent(item.id)}`;
  return (embedded["api/media-bodies"] ?? {})[item.id] ?? "";
}

/**
 * A histogram of `api/media`.
 * @param {MediaItem} item
 * @returns {Promise<any>}
 */
export async function getMediaJson(item) {
  return embedded ? JSON.parse(mediaUrl(item) || "null") : getJson(mediaUrl(item));
}

/**
 * Follow the run: handlers are rows(delta), run(state), reset(), end() and connection(status), which
 * gets "live", "polling", "reconnecting", "unreachable" or "stored". All subscribers share one stream,
 * which is closed while the page is hidden: a browser has few connections to a host. The state is
 * asked for meanwhile, since the title of the page shows it. Returns a function that ends it.
 * @param {SourceHandlers} handlers
 * @returns {() => void}
 */
export function subscribe(handlers) {
  if (embedded) return () => {};
  eventHandlers.add(handlers);
  if (eventHandlers.size === 1) openStream();
  else handlers.connection?.(streamStatus);
  return () => {
    eventHandlers.delete(handlers);
    if (!eventHandlers.size) closeStream();
  };
}

/** @type {Set<SourceHandlers>} */
const eventHandlers = new Set();
/** @type {EventSource | null} */
let stream = null;
let streamStatus = "reconnecting";
// The rows up to this one are in the page: a stream continues after it.
let lastEventId = "";
let failureCount = 0;
/** @type {Timer | undefined} */
let streamTimer;
/** @type {Timer | undefined} */
let pollTimer;
/** @type {Timer | undefined} */
let returnTimer;
let isEnded = false;

document.addEventListener("visibilitychange", () => {
  if (!eventHandlers.size || isEnded) return;
  closeStream();
  if (document.hidden) startPolling();
  else openStream();
});

function openStream() {
  clearTimeout(streamTimer);
  if (typeof EventSource === "undefined") return startPolling();
  stream = new EventSource(`api/events${lastEventId ? `?last_event_id=${encodeURIComponent(lastEventId)}` : ""}`);
  stream.onopen = () => {
    failureCount = 0;
    stopPolling();
    setStreamStatus("live");
  };
  stream.onerror = () => {
    if (isEnded) return;
    // The browser's next tries change nothing for a server that does not answer.
    if (streamStatus === "live") setStreamStatus("reconnecting");
    startPolling();
    // The browser tries again by itself, unless the answer was an error.
    if (stream?.readyState !== EventSource.CLOSED) return;
    closeStream();
    streamTimer = setTimeout(openStream, RETRY_DELAYS_MS[Math.min(failureCount++, RETRY_DELAYS_MS.length - 1)]);
    startPolling();
  };
  for (const name of EVENT_NAMES) stream.addEventListener(name, (event) => receiveEvent(name, event));
}

/**
 * @param {"start" | "rows" | "run" | "reset" | "end"} name
 * @param {MessageEvent} event
 */
function receiveEvent(name, event) {
  if (name === "start") {
    // Curves that came before the stream began lack the rows between.
    if (lastEventId !== "" && Number(event.lastEventId) > Number(lastEventId)) notify("reset", undefined);
    lastEventId = event.lastEventId;
    return;
  }
  if (event.lastEventId) lastEventId = event.lastEventId;
  if (name === "reset") lastEventId = "";
  if (name === "end") {
    isEnded = true;
    closeStream();
    setStreamStatus("stored");
    awaitReturn();
  }
  notify(name, event.data ? JSON.parse(event.data) : undefined);
}

// The stream also ends where the agent of a run that goes on was lost, and that comes back.
function awaitReturn() {
  clearTimeout(returnTimer);
  returnTimer = setTimeout(
    async () => {
      const run = await getJson("api/run").catch(() => null);
      if (run?.is_live) {
        isEnded = false;
        openStream();
      } else if (!run || isActive(run) || run.state === "unfinished") awaitReturn();
    },
    document.hidden ? HIDDEN_POLL_INTERVAL_MS : POLL_INTERVAL_MS,
  );
}

function closeStream() {
  clearTimeout(streamTimer);
  stopPolling();
  stream?.close();
  stream = null;
}

// Without a stream the state is asked for now and then.
function startPolling() {
  if (pollTimer) return;
  const poll = async () => {
    try {
      notify("run", await getJson("api/run"));
      if (!stream || stream.readyState !== EventSource.OPEN) setStreamStatus("polling");
    } catch {
      setStreamStatus("unreachable");
    }
    if (pollTimer) pollTimer = setTimeout(poll, document.hidden ? HIDDEN_POLL_INTERVAL_MS : POLL_INTERVAL_MS);
  };
  pollTimer = setTimeout(poll, FIRST_POLL_MS);
}

function stopPolling() {
  clearTimeout(pollTimer);
  pollTimer = undefined;
}

/** @param {string} status */
function setStreamStatus(status) {
  streamStatus = status;
  notify("connection", status);
}

/**
 * @param {keyof SourceHandlers} name
 * @param {any} data
 */
function notify(name, data) {
  for (const handlers of [...eventHandlers]) handlers[name]?.(data);
}

/**
 * @param {string} path
 * @param {RequestInit} options
 */
async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new AnswerError("The server does not answer.", 0);
  }
  if (response.ok) return response;
  const text = await response.text();
  throw new AnswerError(
    errorText(text) || `The server answered ${path} with status ${response.status}.`,
    response.status,
  );
}

// An answer that is an error, or none (status 0).
class AnswerError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * The sentence of an error, which is JSON or plain text.
 * @param {string} text
 */
function errorText(text) {
  try {
    return String(JSON.parse(text).error ?? "");
  } catch {
    return text.startsWith("<") ? "" : text.trim().slice(0, 300);
  }
}

/**
 * The header has whole seconds; less is no difference between clocks.
 * @param {number} seconds
 */
function roundedOffset(seconds) {
  return Math.abs(seconds) < 2 ? 0 : seconds;
}

/**
 * @param {string} path
 * @param {Record<string, any>} answers
 */
function embeddedAnswer(path, answers) {
  const [name, text] = path.split("?");
  const query = new URLSearchParams(text);
  const key =
    ["axis", "signal", "statistic"]
      .filter((each) => query.has(each))
      .map((each) => `${name}?${each}=${query.get(each)}`)
      .find((each) => each in answers) ?? name;
  const answer = answers[key];
  if (answer === undefined) throw new AnswerError(`The report does not contain ${name}.`, 404);
  if (name === "api/series") {
    const series = embeddedOnly(answer.series, query.getAll("signals"));
    return {
      ...answer,
      series: query.has("from") ? embeddedRange(series, Number(query.get("from")), Number(query.get("to"))) : series,
    };
  }
  if (name === "api/thresholds") return embeddedOnly(answer, query.getAll("signals"));
  if (name === "api/samples") return embeddedSamples(answer, query);
  if (name === "api/media" && query.get("kind"))
    return answer.filter((/** @type {MediaItem} */ { kind }) => kind === query.get("kind"));
  return answer;
}

/**
 * @template T
 * @param {Record<string, T>} answer
 * @param {string[]} names
 */
function embeddedOnly(answer, names) {
  return Object.fromEntries(names.filter((name) => name in answer).map((name) => [name, answer[name]]));
}

/**
 * The points of curves between two positions, and one beyond each end.
 * @param {Record<string, SeriesAnswer>} series
 * @param {number} start
 * @param {number} end
 */
function embeddedRange(series, start, end) {
  return Object.fromEntries(
    Object.entries(series).map(([name, curve]) => {
      /** @param {number} x */
      const isIn = (x) => x >= start && x <= end;
      const kept = curve.x.map((x, index) => isIn(x) || isIn(curve.x[index - 1]) || isIn(curve.x[index + 1]));
      const cut = Object.entries(curve).map(([field, values]) => [
        field,
        Array.isArray(values) && field !== "bad" ? values.filter((_, index) => kept[index]) : values,
      ]);
      return [name, Object.fromEntries(cut)];
    }),
  );
}

/**
 * The newest samples that match, the oldest of them first.
 * @param {Sample[]} samples
 * @param {URLSearchParams} query
 */
function embeddedSamples(samples, query) {
  const words = (query.get("search") ?? "").toLowerCase();
  const [step, before] = ["step", "before"].map((name) => (query.get(name) ? Number(query.get(name)) : null));
  const found = samples.filter(
    (sample) =>
      (step === null || sample.step === step) &&
      (before === null || (sample.id ?? 0) < before) &&
      (!words || `${sample.prompt}\n${sample.completion}`.toLowerCase().includes(words)),
  );
  return found.slice(-Number(query.get("limit") ?? found.length));
}
