// The newest measurements of this node: its host, its disks and its GPUs.
import {
  container,
  createTable,
  element,
  emptyState,
  formatBytes,
  formatCount,
  formatPercent,
  isActive,
  isNumber,
  setText,
} from "../dom.js";

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createMachine(page) {
  const host = element("p", "", "soft");
  const table = createTable("GPUs", [
    "GPU",
    "Ranks",
    { title: "Busy", className: "right" },
    { title: "Memory", className: "right" },
    { title: "Power", className: "right" },
    { title: "Temperature", className: "right" },
    "Problems",
  ]);
  const empty = emptyState("No GPU is measured. `sentinel doctor` shows why, where one is expected.");
  return {
    id: "machine",
    title: "Machine",
    isClosed: true,
    element: container("div", "", host, table.element, empty),
    note: (run) =>
      gpusOf(run).length ? formatCount(gpusOf(run).length, "GPU") : isActive(run) ? "no GPU measured" : "",
    update(run) {
      setText(host, hostText(run.machine ?? {}));
      host.hidden = !host.textContent;
      table.setRows(
        gpusOf(run).map((gpu) => [
          `${gpu.gpu} ${gpu.name}`,
          gpu.ranks.join(", "),
          formatPercent(gpu.gpu_utilisation),
          isNumber(gpu.gpu_memory_used)
            ? `${formatBytes(gpu.gpu_memory_used)} of ${formatBytes(gpu.gpu_memory_total)}`
            : "",
          isNumber(gpu.gpu_power) ? `${Math.round(gpu.gpu_power)} W` : "",
          isNumber(gpu.gpu_temperature) ? `${Math.round(gpu.gpu_temperature)} °C` : "",
          element("span", gpuProblems(gpu), "bad"),
        ]),
      );
      table.element.hidden = !gpusOf(run).length;
      empty.hidden = gpusOf(run).length > 0 || !isActive(run);
    },
    isShown: (run) =>
      (!page.source.isReport && !run.log && isActive(run)) ||
      gpusOf(run).length > 0 ||
      hostText(run.machine ?? {}) !== "",
    urgency: (run) => (isActive(run) && gpusOf(run).some(gpuProblems) ? 20 : 0),
  };
}

/** @param {RunState} run */
function gpusOf(run) {
  return run.machine?.gpus ?? [];
}

/** @param {Machine} machine */
function hostText({ host = {}, disks = {} }) {
  return [
    isNumber(host.host_cpu) ? `CPU ${formatPercent(host.host_cpu)} busy` : "",
    isNumber(host.host_memory_used)
      ? `memory ${formatBytes(host.host_memory_used)} of ${formatBytes(host.host_memory_total)}`
      : "",
    ...Object.entries(disks).map(([stored, free]) => `${formatBytes(free)} free for ${stored}`),
  ]
    .filter(Boolean)
    .join(", ");
}

/** @param {Gpu} gpu */
function gpuProblems(gpu) {
  const problems = [...(gpu.throttled ?? [])];
  if (!gpu.up) problems.push("does not answer");
  if (gpu.gpu_xid) problems.push(`XID ${gpu.gpu_xid}`);
  if (gpu.gpu_ecc_errors) problems.push(`${gpu.gpu_ecc_errors} memory errors`);
  return problems.join(", ");
}
