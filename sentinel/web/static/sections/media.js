// Images and histograms of log files, by name, each with its steps.
import {
  container,
  element,
  errorMessage,
  formatCount,
  formatNumber,
  groupBy,
  isActive,
  setAttributes,
  svgElement,
} from "../dom.js";
import { createLoader } from "../loading.js";

const MEDIA_LIMIT = 500;
const HISTOGRAM_BINS = 40;

/**
 * @param {Page} page
 * @returns {Section<RunState>}
 */
export function createMedia(page) {
  const gallery = element("div", "", "gallery");
  let count = 0;
  let loadedAt = 0;
  const loader = createLoader(
    "the images and histograms",
    async () => {
      const media = await page.source.getJson(`api/media?limit=${MEDIA_LIMIT}`);
      if (media.length === count && count > 0) return;
      count = media.length;
      gallery.replaceChildren(
        ...[...groupBy(media, ({ name }) => name)].map(([name, items]) => mediaFigure(page.source, name, items)),
      );
    },
    () => page.frame.refresh("media"),
  );
  return {
    id: "media",
    title: "Images and histograms",
    isClosed: true,
    element: container("div", "", loader.element, gallery),
    note: () => formatCount(count, "item"),
    isShown: () => count > 0,
    update(run) {
      if (loadedAt && (!isActive(run) || page.source.isReport || Date.now() - loadedAt < 30000)) return;
      loadedAt = Date.now();
      loader.request();
    },
    urgency: () => 0,
  };
}

/**
 * The newest of a name, and a slider to the others.
 * @param {RunSource} source
 * @param {string} name
 * @param {MediaItem[]} items
 */
function mediaFigure(source, name, items) {
  const ordered = [...items].sort((a, b) => a.step - b.step);
  const picture = element("div");
  const caption = element("span");
  /** @param {number} index */
  const show = (index) => {
    const item = ordered[index];
    caption.textContent = `${name}, step ${formatNumber(item.step)}`;
    showMedia(source, picture, item);
  };
  const slider = setAttributes(element("input"), {
    type: "range",
    min: 0,
    max: ordered.length - 1,
    value: ordered.length - 1,
    "aria-label": `Step of ${name}`,
  });
  slider.addEventListener("input", () => show(Number(slider.value)));
  slider.hidden = ordered.length < 2;
  show(ordered.length - 1);
  return container("figure", "", picture, container("figcaption", "", caption, " ", slider));
}

/**
 * @param {RunSource} source
 * @param {HTMLElement} parent
 * @param {MediaItem} item
 */
async function showMedia(source, parent, item) {
  parent.dataset.item = String(item.id);
  if (item.kind === "image") {
    const image = setAttributes(element("img"), {
      src: source.mediaUrl(item),
      alt: `${item.name} at step ${item.step}`,
      loading: "lazy",
    });
    parent.replaceChildren(image);
    return;
  }
  try {
    const histogram = await source.getMediaJson(item);
    if (parent.dataset.item === String(item.id)) parent.replaceChildren(histogramElement(item.name, histogram));
  } catch (error) {
    parent.replaceChildren(element("p", errorMessage(error), "soft"));
  }
}

/**
 * The counts of a histogram in bins of one width: those that are logged get wider away from zero.
 * @param {MediaHistogram} histogram
 */
function evenCounts({ edges, counts }) {
  const [low, high] = [edges[0], edges[edges.length - 1]];
  const width = (high - low) / HISTOGRAM_BINS;
  if (!(width > 0)) return [counts.reduce((sum, count) => sum + count, 0)];
  const even = Array(HISTOGRAM_BINS).fill(0);
  counts.forEach((count, index) => {
    const [start, end] = [(edges[index] - low) / width, (edges[index + 1] - low) / width];
    if (end === start) even[Math.min(HISTOGRAM_BINS - 1, Math.floor(start))] += count;
    for (let bin = Math.floor(start); bin < Math.min(HISTOGRAM_BINS, end); bin++) {
      even[bin] += (count * Math.max(0, Math.min(bin + 1, end) - Math.max(bin, start))) / (end - start);
    }
  });
  return even;
}

/**
 * Bars of { edges, counts }: one edge more than counts.
 * @param {string} name
 * @param {MediaHistogram} histogram
 */
function histogramElement(name, { edges, counts }) {
  const svg = svgElement("svg", {
    viewBox: "0 0 100 40",
    preserveAspectRatio: "none",
    class: "bars",
    role: "img",
    "aria-label": `Histogram of ${name} from ${formatNumber(edges[0])} to ${formatNumber(edges[edges.length - 1])}`,
  });
  const [low, high] = [edges[0], edges[edges.length - 1]];
  const bars = evenCounts({ edges, counts });
  const [top, width] = [Math.max(...bars) || 1, 100 / bars.length];
  bars.forEach((count, index) => {
    const height = (40 * count) / top;
    svg.append(svgElement("rect", { x: index * width, width: 0.9 * width, y: 40 - height, height }));
  });
  return container(
    "div",
    "",
    svg,
    container("div", "row soft number", element("span", formatNumber(low)), element("span", formatNumber(high), "end")),
  );
}
