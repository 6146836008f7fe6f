// Health of the run: its state, the worst open case in one line, and how far and how fast it is.
import {
  capitalize,
  container,
  createChangeCheck,
  element,
  encodeName,
  formatCount,
  formatTime,
  formatDuration,
  formatNumber,
  formatRanks,
  isActive,
  isNumber,
  setAttributes,
  setText,
  severityClass,
  textWithCode,
  verdictClass,
} from "../dom.js";
import { createRunNote } from "../note.js";

/** @type {Record<string, string>} */
const STATE_CLASSES = { running: "ok", finished: "ok", starting: "info", stalled: "warning", unfinished: "warning" };
const MAX_STEP_TIMES = 50;

/**
 * Elements for the bar (`bar`) and below it (`element`).
 * @param {Page} page
 */
export function createHeader(page) {
  const name = element("h1", "sentinel");
  const state = setAttributes(element("span", "loading", "badge info"), { role: "status" });
  const list = setAttributes(element("a", "Runs", "crumb"), { href: "../../" });
  list.hidden = true;
  // The id, where the user gave the run a name.
  const id = element("small", "", "soft");
  const bar = container("div", "name", list, name, id, state);
  const verdict = element("a", "", "verdict info");
  const tiles = element("dl", "", "tiles");
  const note = createRunNote(page.source.isReport);
  const connection = setAttributes(element("div", "", "banner warning"), { role: "status" });
  connection.hidden = true;
  const banners = setAttributes(container("div", "banners"), { role: "alert" });
  banners.hidden = true;
  const root = container("section", "health", connection, verdict, banners, note.element, tiles);
  root.setAttribute("aria-label", "Health of the run");
  const areProblemsNew = createChangeCheck();
  const pace = createPace();
  /** @type {RunState | null} */
  let run = null;
  let isUnreachable = false;

  const showState = (/** @type {RunState} */ run) => {
    const isOld = isUnreachable && isActive(run);
    setText(state, [run.state, run.tier !== "page" && run.tier, isOld && "no answer"].filter(Boolean).join(", "));
    state.className = `badge ${isOld ? "warning" : (STATE_CLASSES[run.state] ?? "critical")}`;
  };
  const showConnection = () => {
    const text = connectionText(isUnreachable, run);
    connection.hidden = !text;
    setText(connection, text);
  };
  const showTiles = () => run && fillTiles(tiles, tilesOf(run, pace, page.source));
  setInterval(showTiles, 1000);

  return {
    id: "health",
    bar,
    element: root,
    update(/** @type {RunState} */ newRun) {
      run = newRun;
      pace.update(run);
      document.title = titleOf(run);
      list.hidden = !run.is_listed || page.source.isReport;
      setText(name, run.name || run.run || "sentinel");
      setText(id, run.name ? run.run : "");
      name.title = run.run || "";
      showState(run);
      showConnection();
      showVerdict(verdict, run, page.pastCases);
      showTiles();
      note.update(run);
      const problems = problemsOf(run);
      if (!areProblemsNew(problems)) return;
      banners.hidden = !problems.length;
      banners.replaceChildren(...problems.map(problemBanner));
    },
    setConnection(/** @type {string} */ status) {
      isUnreachable = status === "unreachable";
      showConnection();
      if (run) showState(run);
    },
  };
}

/**
 * Without a state, what is missing is shown in place of the sections.
 * @param {boolean} isUnreachable
 * @param {RunState | null} run
 */
function connectionText(isUnreachable, run) {
  if (!isUnreachable || !run) return "";
  const server = isActive(run) && run.is_live !== false && !run.log ? "agent" : "server";
  return `The ${server} does not answer. The page shows the last state that it got. It tries again every few seconds.`;
}

/** @param {RunState} run */
function titleOf(run) {
  const [worst] = run.cases;
  const mark = worst ? (worst.severity === "critical" ? "‼ " : "! ") : "";
  return `${mark}${run.name || run.run || "sentinel"}: ${run.state}`;
}

/** @type {Record<string, string>} */
const ICON_COLORS = { ok: "#1f9d55", info: "#76808c", warning: "#c98a00", critical: "#d5303e" };

/**
 * The icon of the tab has the colour of the verdict: it is seen while the page is not.
 * @param {string} className
 */
function showIcon(className) {
  const icon = document.querySelector("link[rel='icon']");
  const circle =
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">` +
    `<circle cx="8" cy="8" r="7" fill="${ICON_COLORS[className]}"/></svg>`;
  icon?.setAttribute("href", `data:image/svg+xml,${encodeURIComponent(circle)}`);
}

/**
 * Open incidents that no case contains; those that are only information are no problem.
 * @param {RunState} run
 */
export function singleIncidents(run) {
  return run.incidents.filter((incident) => !incident.case && incident.severity !== "info");
}

/**
 * Cases that were there when the run, or their training, ended, however they were closed: what they are
 * about was never over. The one that the server names as the worst, as in the list of runs, comes first.
 * @param {RunState} run
 * @param {Case[]} pastCases
 */
export function lastingCases(run, pastCases) {
  if (isActive(run)) return [];
  return pastCases
    .filter((each) => each.lasted_until)
    .sort(
      (a, b) =>
        Number(b.name === run.verdict?.case) - Number(a.name === run.verdict?.case) ||
        Number(b.severity === "critical") - Number(a.severity === "critical") ||
        a.onset_step - b.onset_step,
    );
}

/**
 * The case that the line at the top is about, whose text is there; undefined without one.
 * @param {RunState} run
 * @param {Case[]} pastCases
 */
export function leadingCase(run, pastCases) {
  const [lasting] = lastingCases(run, pastCases);
  return lasting && lasting.name === run.verdict?.case ? lasting : (run.cases[0] ?? lasting);
}

/**
 * Whether a case was there when its training ended, one of several of the run, and not when the run did.
 * @param {Case} shown
 */
export function isOfTrainingEnd({ lasted_until: end }) {
  return end === "the training finished";
}

/** @param {string} name */
export function caseAnchor(name) {
  return `case-${name}`;
}

/**
 * The state in one line: the worst open case, else the state of the run.
 * @param {HTMLElement} node
 * @param {RunState} run
 * @param {Case[]} pastCases
 */
function showVerdict(node, run, pastCases) {
  const open = run.cases;
  const lasting = lastingCases(run, pastCases);
  const leading = leadingCase(run, pastCases);
  const worst = open.includes(leading) ? leading : undefined;
  const target = leading ?? singleIncidents(run)[0];
  // When it was found, and how sure its cause is, are at the case.
  const [className, title, detail] = worst
    ? [
        severityClass(worst),
        worst.message.subject,
        [
          run.state === "finished" ? "It lasted until the run finished." : "",
          worst.now,
          isNumber(worst.onset_step) && `Since step ${formatNumber(worst.onset_step)}.`,
          open.length > 1 ? `${formatCount(open.length - 1, "other case")} open.` : "",
        ]
          .filter(Boolean)
          .join(" "),
      ]
    : verdictWithoutCase(run, lasting);
  node.className = `verdict ${className}`;
  setAttributes(node, { href: target ? `#${encodeName(caseAnchor(target.name))}` : null });
  const isNew = node.dataset.title !== `${className}${title}`;
  if (isNew) {
    node.dataset.title = `${className}${title}`;
    showIcon(className);
    node.replaceChildren(
      ...[
        target && element("span", target.severity, "pill"),
        element("strong", title),
        element("span", "", "soft"),
      ].filter(Boolean),
    );
  }
  if (node.lastElementChild) setText(node.lastElementChild, detail);
}

/**
 * @param {RunState} run
 * @param {Case[]} lasting
 * @returns {string[]}
 */
function verdictWithoutCase(run, lasting) {
  const { verdict, monitored = [] } = run;
  if (lasting.length) {
    const [worst, ...others] = lasting;
    const texts = [`It lasted until ${worst.lasted_until}.`];
    for (const end of new Set(others.map((each) => each.lasted_until))) {
      const count = formatCount(others.filter((each) => each.lasted_until === end).length, "other case");
      texts.push(`${count} ${end === worst.lasted_until ? "did, too" : `lasted until ${end}`}.`);
    }
    return [severityClass(worst), worst.message.subject, texts.join(" ")];
  }
  if (!verdict) return ["info", "No verdict was given.", ""];
  const isUnseen = verdict.status === "unknown" && run.is_live === false && !run.log;
  const names = monitored.length
    ? `${formatCount(monitored.length, "outcome")} monitored: ${monitored.join(", ")}.`
    : "";
  const detail =
    verdict.status === "healthy" ? names : isUnseen ? "No agent answers; the page shows what is stored." : "";
  const severity = run.cluster?.role === "follower" ? "info" : verdictClass(verdict);
  return [severity, verdict.sentence, detail];
}

/**
 * Sinks whose receivers do not accept notifications, a degraded storage, and the role of this agent.
 * @param {RunState} run
 * @returns {Problem[]}
 */
function problemsOf(run) {
  /** @type {Problem[]} */
  const problems = (run.delivery_problems ?? []).map(({ text, remedy }) => ({ text, remedy, severity: "critical" }));
  if (run.storage?.text) problems.push({ text: run.storage.text, remedy: run.storage.remedy, severity: "critical" });
  problems.push(...(run.log?.notices ?? []));
  // Without a case, the verdict states it.
  const isOpen = run.cases.length > 0 || singleIncidents(run).length > 0;
  if (!run.log && run.is_live === false && (run.state === "unfinished" ? isOpen : isActive(run))) {
    const until = isNumber(run.last_step_time) ? ` Its last step was at ${formatTime(run.last_step_time)}.` : "";
    problems.push({
      severity: "warning",
      text: `No agent answers for this run: the page shows what is stored.${until}`,
    });
  }
  const role = roleText(run);
  if (role) problems.push(role);
  return problems;
}

/** @param {Problem} problem */
function problemBanner({ text, remedy, severity }) {
  return container(
    "div",
    `banner ${severity}`,
    container("p", "", element("strong", text), " ", remedy && textWithCode("span", remedy)),
  );
}

/**
 * @param {RunState} run
 * @returns {Problem | null}
 */
function roleText(run) {
  const { role, head, connected, error, silent_seconds: silent, spooled_bytes: waiting } = run.cluster ?? {};
  const { world_size: ranks = 0, local_world_size: localRanks = 0 } = run.metadata ?? {};
  if (role === "single" && localRanks > 0 && localRanks < ranks) {
    return { severity: "warning", text: "No head reached: this page covers the ranks of this node only." };
  }
  if (role !== "follower") return null;
  if (connected) {
    return { severity: "info", text: `The head at ${head} processes this node's records; incidents are shown there.` };
  }
  const spooled = `${((waiting ?? 0) / 1e6).toFixed(1)} MB of records wait to be sent.`;
  const at = head ? ` at ${head}` : "";
  return {
    severity: "warning",
    text: `The head${at} has not been reached for ${formatDuration(silent)}: ${error} ${spooled}`,
  };
}

// Seconds a step takes: the mean over the last steps that the page saw, else the last measured.
/** @returns {Pace} */
function createPace() {
  /** @type {{ step: number, time: number, attempt?: number }[]} */
  const seen = [];
  return {
    update({ step, last_step_time: time, attempt }) {
      const last = seen[seen.length - 1];
      if (!isNumber(step) || !isNumber(time)) return;
      if (last && (step < last.step || attempt !== last.attempt)) seen.length = 0;
      if (!last || step > last.step) seen.push({ step, time, attempt });
      if (seen.length > MAX_STEP_TIMES) seen.shift();
    },
    secondsPerStep(run) {
      const [first, last] = [seen[0], seen[seen.length - 1]];
      if (last && last.step > first.step && last.time - first.time > 5) {
        return (last.time - first.time) / (last.step - first.step);
      }
      const measured = run.signals?.step_time?.value;
      return isNumber(measured) && measured > 0 ? measured : null;
    },
  };
}

/**
 * @param {RunState} run
 * @param {Pace} pace
 * @param {Source} source
 * @returns {Tile[]}
 */
function tilesOf(run, pace, source) {
  const { metadata = {}, signals = {}, attempt = 0, training = 0 } = run;
  const seconds = pace.secondsPerStep(run);
  const total = isNumber(metadata.max_steps) && metadata.max_steps > 0 ? metadata.max_steps : null;
  const left = total && isNumber(run.step) ? total - run.step : null;
  const age = isNumber(run.last_step_time) ? Math.max(0, source.now() - run.last_step_time) : null;
  const tokens = signals.tokens_per_second?.value;
  /** @type {(Tile | false | null | undefined | "" | 0)[]} */
  const tiles = [
    {
      label: "Step",
      text:
        run.step === null || run.step === undefined ? (isActive(run) ? "none yet" : "none") : formatNumber(run.step),
      note: total && isNumber(run.step) ? `of ${formatNumber(total)}` : "",
      share: total && isNumber(run.step) ? run.step / total : null,
    },
    // The last step of a run that is over shows nothing about its speed.
    isActive(run) &&
      seconds !== null && {
        label: "Speed",
        text: speedText(seconds),
        note: isNumber(tokens)
          ? `${formatNumber(tokens)} tokens/s`
          : seconds <= 1
            ? `${formatDuration(seconds)} a step`
            : "",
      },
    (isActive(run) || !isNumber(run.ended)) && {
      label: "Last step",
      text: age === null ? "none yet" : ageText(age, source),
      note: isNumber(run.last_step_time) ? formatTime(run.last_step_time) : "",
    },
    isActive(run) &&
      left !== null &&
      seconds !== null && {
        label: "Time left",
        text: left < 0 ? "none" : formatDuration(left * seconds),
        note:
          left < 0
            ? `${formatCount(-left, "step")} past the planned end`
            : `until ${formatTime(source.now() + left * seconds)}`,
      },
    !isActive(run) &&
      isNumber(run.started) &&
      isNumber(run.ended) && {
        label: "Duration",
        text: formatDuration(run.ended - run.started),
        note: `ended ${formatTime(run.ended)}`,
      },
    ranksTile(run),
    isNumber(run.last_checkpoint_time) && {
      label: "Last checkpoint",
      text: ageText(source.now() - run.last_checkpoint_time, source),
      // A stored state knows the last one only.
      note: run.is_live
        ? `${formatCount(run.checkpoints ?? 0, "checkpoint")} saved`
        : formatTime(run.last_checkpoint_time),
    },
    (metadata.framework || metadata.algorithm) && {
      label: "Framework",
      isText: true,
      isSecondary: true,
      text: [metadata.framework, metadata.framework_version].filter(Boolean).join(" ") || metadata.algorithm || "",
      note: [metadata.framework && metadata.algorithm, metadata.model].filter(Boolean).join(", "),
    },
    (run.host || metadata.host) && {
      label: "Host",
      isText: true,
      isSecondary: true,
      text: run.host || metadata.host || "",
      note: isNumber(run.started) ? `since ${formatTime(run.started)}` : "",
    },
    metadata["slurm/job_id"] && {
      label: "Slurm job",
      isText: true,
      isSecondary: true,
      text: String(metadata["slurm/job_id"]),
      note: [metadata["slurm/partition"], metadata["slurm/node_list"]].filter(Boolean).join(", "),
    },
    attempt > 0 && { label: "Restarts", text: formatNumber(attempt), note: `attempt ${attempt + 1}` },
    training > 1 && { label: "Training", text: formatNumber(training), note: "in this run" },
    (run.project || run.tags?.length) && {
      label: "Project",
      isText: true,
      isSecondary: true,
      text: run.project || "none",
      note: (run.tags ?? []).join(", "),
    },
  ];
  return tiles.filter((tile) => typeof tile === "object" && tile !== null);
}

/** @param {number} seconds */
function speedText(seconds) {
  return seconds <= 1
    ? `${formatNumber(Number((1 / seconds).toPrecision(3)))} steps/s`
    : `${formatNumber(Number(seconds.toPrecision(3)))} s/step`;
}

/**
 * @param {number} seconds
 * @param {Source} source
 */
function ageText(seconds, source) {
  if (source.isReport) return formatDuration(seconds) + " ago";
  return seconds < 2 ? "just now" : `${formatDuration(Math.floor(seconds))} ago`;
}

/**
 * @param {RunState} run
 * @returns {Tile | null}
 */
function ranksTile(run) {
  const ranks = Object.entries(run.ranks ?? {});
  const world = run.metadata?.world_size;
  if (!ranks.length && !isNumber(world)) return null;
  const down = ranks.filter(([, { up }]) => !up).map(([rank]) => Number(rank));
  const count = isNumber(world) ? world : ranks.length + (run.ranks_hidden ?? 0);
  const isOver = !isActive(run);
  const text = down.length && !isOver ? `${formatCount(down.length, "rank")} down` : formatCount(count, "rank");
  const nodes = run.cluster?.nodes?.length ?? 0;
  const note =
    down.length && !isOver
      ? capitalize(`rank${down.length > 1 ? "s" : ""} ${formatRanks(down)}`)
      : nodes > 1
        ? `on ${nodes} nodes`
        : isOver
          ? ""
          : ranks.length
            ? "all up"
            : "";
  return { label: "Ranks", text, note, className: down.length && !isOver ? "bad" : "" };
}

/**
 * @param {HTMLElement} list
 * @param {Tile[]} tiles
 */
function fillTiles(list, tiles) {
  while (list.children.length > tiles.length) list.lastElementChild?.remove();
  tiles.forEach((tile, index) => {
    const node = list.children[index] ?? list.appendChild(tileElement());
    const [label, value, note] = [node.children[0], node.children[1].children[0], node.children[1].children[2]];
    const bar = node.children[1].children[1];
    node.className = tile.isSecondary ? "tile secondary" : "tile";
    setText(label, tile.label);
    setText(value, tile.text);
    setText(note, tile.note || "");
    node.children[1].className = [tile.isText && "text", tile.className].filter(Boolean).join(" ");
    if (bar instanceof HTMLProgressElement) {
      bar.hidden = !isNumber(tile.share);
      if (isNumber(tile.share)) bar.value = Math.min(1, tile.share);
    }
  });
}

function tileElement() {
  const bar = setAttributes(element("progress"), { max: 1, "aria-label": "Share of the steps" });
  return container("div", "tile", element("dt"), container("dd", "", element("span"), bar, element("small")));
}
