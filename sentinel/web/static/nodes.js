// The nodes of a run that has several, and where it is judged, if that is elsewhere.
"use strict";

const FAR_SECONDS = 5;
const MOST_NODES = 48;

// Ranks in a few words: 0-3, 6.
function spans(ranks) {
  const found = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else found.push([rank, rank]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

function lasting(seconds) {
  if (!(seconds >= 120)) return `${Math.round(seconds || 0)} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function clockOf(node) {
  const skew = node.skew_seconds || 0;
  if (Math.abs(skew) <= FAR_SECONDS) return "";
  return `clock ${lasting(Math.abs(skew))} ${skew > 0 ? "behind" : "ahead"}`;
}

function nodeChip(node) {
  const words = [node.state === "up" ? "" : node.state, clockOf(node)];
  if (node.state === "lost") words[0] = `lost, not heard for ${lasting(node.silent_seconds)}`;
  const said = words.filter(Boolean).join(", ");
  return box("li", `node ${node.state === "lost" ? "bad" : clockOf(node) ? "warn" : node.state === "up" ? "good" : ""}`,
    make("strong", node.host),
    make("span", node.ranks.length ? `rank${node.ranks.length > 1 ? "s" : ""} ${spans(node.ranks)}` : "no ranks yet", "soft"),
    said && make("span", said, "said"));
}

// Those that are lost come first, then those with a wrong clock, then all others in their order.
function showNodes(run) {
  const nodes = (run.cluster && run.cluster.nodes) || [];
  at("nodes").parentElement.hidden = nodes.length < 2;
  if (nodes.length < 2) return;
  const trouble = (node) => (node.state === "lost" ? 0 : clockOf(node) ? 1 : 2);
  const order = [...nodes].sort((a, b) => trouble(a) - trouble(b));
  const most = Math.max(MOST_NODES, order.filter((node) => trouble(node) < 2).length);
  const count = (state) => nodes.filter((node) => node.state === state).length;
  at("nodes-count").textContent = ["up", "lost", "ended"]
    .filter((state) => count(state)).map((state) => `${count(state)} ${state}`).join(", ");
  const rest = order.length - most;
  at("nodes").replaceChildren(...order.slice(0, most).map(nodeChip),
    ...(rest > 0 ? [make("li", `and ${rest} others`, "node soft")] : []));
}

function judgedElsewhere(run) {
  return Boolean(run.cluster) && run.cluster.role === "follower";
}

function whereJudged(run) {
  const { role, head, connected, error, silent_seconds: silent, spooled_bytes: waits } = run.cluster || {};
  const { world_size: ranks, local_world_size: here } = run.metadata;
  if (role === "single" && here > 0 && here < ranks) {
    return ["No head was reached: the ranks of this node are judged by themselves.", "warn"];
  }
  if (role !== "follower") return ["", ""];
  if (connected) return [`This node's ranks are judged with all others at ${head}, and what is wrong is told there.`, ""];
  const kept = `${(waits / 1e6).toFixed(1)} MB of records wait.`;
  return [`The run is judged at ${head || "another node"}, which has not been reached for ${lasting(silent)}: ${error} ${kept}`, "warn"];
}

function showJudge(run) {
  const [words, mood] = whereJudged(run);
  at("judge").textContent = words;
  at("judge").className = `judge ${mood}`;
  at("judge").hidden = !words;
  at("h-signals").parentElement.hidden = judgedElsewhere(run);
}
