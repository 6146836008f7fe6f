// The nodes of a run on several nodes: lost ones first, then those with a wrong clock.
import { container, createChangeCheck, element, formatDuration, formatRanks } from "../dom.js";

const CLOCK_SKEW_TOLERANCE_SECONDS = 5;
const MAX_NODES_SHOWN = 48;

/** @returns {Section<RunState>} */
export function createNodes() {
  const list = element("ul", "", "nodes");
  const isNew = createChangeCheck();
  return {
    id: "nodes",
    title: "Nodes",
    element: list,
    isShown: (run) => clusterNodes(run).length > 1,
    note: (run) =>
      ["up", "lost", "ended"]
        .map((state) => [clusterNodes(run).filter((node) => node.state === state).length, state])
        .filter(([count]) => count)
        .map(([count, state]) => `${count} ${state}`)
        .join(", "),
    update(run) {
      const nodes = clusterNodes(run);
      if (isNew(nodes)) list.replaceChildren(...nodeChips(nodes));
    },
    urgency: (run) => (clusterNodes(run).some((node) => nodeOrder(node) < 2) ? 40 : 0),
  };
}

/** @param {RunState} run */
function clusterNodes(run) {
  return run.cluster?.nodes ?? [];
}

/** @param {ClusterNode[]} nodes */
function nodeChips(nodes) {
  const order = [...nodes].sort((a, b) => nodeOrder(a) - nodeOrder(b));
  const shown = Math.max(MAX_NODES_SHOWN, order.filter((node) => nodeOrder(node) < 2).length);
  const rest = order.length - shown;
  return [
    ...order.slice(0, shown).map(nodeChip),
    ...(rest > 0 ? [element("li", `and ${rest} others`, "node soft")] : []),
  ];
}

/** @param {ClusterNode} node */
function nodeOrder(node) {
  return node.state === "lost" ? 0 : clockSkew(node) ? 1 : 2;
}

/** @param {ClusterNode} node */
function clockSkew(node) {
  const skew = node.skew_seconds || 0;
  if (Math.abs(skew) <= CLOCK_SKEW_TOLERANCE_SECONDS) return "";
  return `clock ${formatDuration(Math.abs(skew))} ${skew > 0 ? "behind" : "ahead"}`;
}

/** @param {ClusterNode} node */
function nodeChip(node) {
  const problems = [node.state === "up" ? "" : node.state, clockSkew(node)];
  if (node.state === "lost") problems[0] = `lost, no heartbeat for ${formatDuration(node.silent_seconds)}`;
  const text = problems.filter(Boolean).join(", ");
  const className = node.state === "lost" ? "bad" : clockSkew(node) ? "warn" : node.state === "up" ? "good" : "";
  return container(
    "li",
    `node ${className}`,
    element("strong", node.host),
    element(
      "span",
      node.ranks.length ? `rank${node.ranks.length > 1 ? "s" : ""} ${formatRanks(node.ranks)}` : "no ranks yet",
      "soft",
    ),
    text && element("span", text),
  );
}
