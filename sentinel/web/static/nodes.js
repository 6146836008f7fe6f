// The nodes of a run on several nodes, and the role of this agent among them.
"use strict";

const CLOCK_SKEW_TOLERANCE_SECONDS = 5;
const MAX_NODES_SHOWN = 48;

// Ranks as ranges: 0-3, 6.
function formatRanks(ranks) {
  const ranges = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else ranges.push([rank, rank]);
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

function formatDuration(seconds) {
  if (!(seconds >= 120)) return `${Math.round(seconds || 0)} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function clockSkew(node) {
  const skew = node.skew_seconds || 0;
  if (Math.abs(skew) <= CLOCK_SKEW_TOLERANCE_SECONDS) return "";
  return `clock ${formatDuration(Math.abs(skew))} ${skew > 0 ? "behind" : "ahead"}`;
}

function nodeChip(node) {
  const problems = [node.state === "up" ? "" : node.state, clockSkew(node)];
  if (node.state === "lost") problems[0] = `lost, no heartbeat for ${formatDuration(node.silent_seconds)}`;
  const text = problems.filter(Boolean).join(", ");
  return container("li", `node ${node.state === "lost" ? "bad" : clockSkew(node) ? "warn" : node.state === "up" ? "good" : ""}`,
    element("strong", node.host),
    element("span", node.ranks.length ? `rank${node.ranks.length > 1 ? "s" : ""} ${formatRanks(node.ranks)}` : "no ranks yet", "soft"),
    text && element("span", text));
}

// Lost nodes come first, then nodes with a wrong clock, then the others.
function showNodes(run) {
  const nodes = (run.cluster && run.cluster.nodes) || [];
  at("nodes").parentElement.hidden = nodes.length < 2;
  if (nodes.length < 2) return;
  const problemOrder = (node) => (node.state === "lost" ? 0 : clockSkew(node) ? 1 : 2);
  const order = [...nodes].sort((a, b) => problemOrder(a) - problemOrder(b));
  const shown = Math.max(MAX_NODES_SHOWN, order.filter((node) => problemOrder(node) < 2).length);
  const count = (state) => nodes.filter((node) => node.state === state).length;
  at("nodes-count").textContent = ["up", "lost", "ended"]
    .filter((state) => count(state)).map((state) => `${count(state)} ${state}`).join(", ");
  const rest = order.length - shown;
  at("nodes").replaceChildren(...order.slice(0, shown).map(nodeChip),
    ...(rest > 0 ? [element("li", `and ${rest} others`, "node soft")] : []));
}

function isFollower(run) {
  return Boolean(run.cluster) && run.cluster.role === "follower";
}

function describeRole(run) {
  const { role, head, connected, error, silent_seconds: silent, spooled_bytes: waiting } = run.cluster || {};
  const { world_size: ranks, local_world_size: localRanks } = run.metadata;
  if (role === "single" && localRanks > 0 && localRanks < ranks) {
    return ["No head reached: this page covers the ranks of this node only.", "warn"];
  }
  if (role !== "follower") return ["", ""];
  if (connected) return [`The head at ${head} processes this node's records; incidents are shown there.`, ""];
  const spooled = `${(waiting / 1e6).toFixed(1)} MB of records wait to be sent.`;
  return [`The head${head ? ` at ${head}` : ""} has not been reached for ${formatDuration(silent)}: ${error} ${spooled}`, "warn"];
}

function showRole(run) {
  const [text, className] = describeRole(run);
  at("role").textContent = text;
  at("role").className = `role ${className}`;
  at("role").hidden = !text;
  at("h-signals").parentElement.hidden = isFollower(run);
}
