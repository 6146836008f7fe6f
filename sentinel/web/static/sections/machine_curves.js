// Curves of the machines: GPUs, processors, memory, network and disks.
import { container, emptyState, groupBy, isActive } from "../dom.js";
import { createLoader } from "../loading.js";
import { chartContext } from "../charts/context.js";
import { ChartGrid } from "../charts/grid.js";

const MACHINE_GROUPS = [
  ["gpu", "GPU"],
  ["host_cpu", "Processor"],
  ["host_memory", "Memory"],
  ["host_network", "Network"],
  ["network", "Network"],
  ["host_disk", "Disk"],
  ["disk", "Disk"],
];

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createMachineCurves(page) {
  const context = chartContext(page);
  const grid = new ChartGrid(context, "nodes");
  const empty = emptyState("No measurement of a machine yet. The agent measures its node every few seconds.");
  empty.hidden = true;
  let isEmpty = true;
  const loader = createLoader(
    "the signals",
    async () => {
      const signals = (await context.signals()).filter((signal) => signal.group === "machine" && signal.count > 0);
      grid.setCharts(machineCharts(signals));
      isEmpty = !signals.length;
      empty.hidden = !isEmpty;
    },
    () => page.frame.refresh("machine-curves"),
  );
  context.signalListeners.add(loader.request);
  loader.request();
  return {
    id: "machine-curves",
    title: "Machine curves",
    element: container("div", "", loader.element, grid.element, empty),
    update(run) {
      grid.setIncidents((run.incidents || []).filter(({ state }) => state !== "resolved"));
    },
    // Few logs have such values.
    isShown: (run) => !isEmpty || (isActive(run) && !run.log),
    urgency: () => 0,
  };
}

/**
 * One chart for each quantity, with a curve per device: gpu_power/0 and gpu_power/1 are one chart.
 * @param {Signal[]} signals
 * @returns {ChartEntry[]}
 */
function machineCharts(signals) {
  const byQuantity = groupBy(signals, ({ name }) => name.split("/")[0]);
  /** @param {string} quantity */
  const groupOf = (quantity) => MACHINE_GROUPS.find(([prefix]) => quantity.startsWith(prefix))?.[1] || "Other";
  const order = [...MACHINE_GROUPS.map(([, title]) => title), "Other"];
  /**
   * A capacity is the top of the chart of what is used of it.
   * @param {string} quantity
   */
  const limitOf = (quantity) => byQuantity.get(quantity.replace(/_used$/, "_total"))?.[0].latest ?? null;
  /** @param {string} quantity */
  const isLimit = (quantity) => quantity.endsWith("_total") && byQuantity.has(quantity.replace(/_total$/, "_used"));
  return [...byQuantity]
    .filter(([quantity]) => !isLimit(quantity))
    .map(([quantity, devices]) => ({
      limit: quantity.endsWith("_used") ? limitOf(quantity) : null,
      group: "",
      order: order.indexOf(groupOf(quantity)),
      title: machineTitle(devices[0].label || quantity),
      signals: devices,
    }))
    .sort((a, b) => a.order - b.order);
}

/** @param {string} label */
function machineTitle(label) {
  return label.split("/")[0].trim();
}
