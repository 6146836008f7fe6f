// Pictures of a loss surface: a contour, a surface in three dimensions, or a curve.
import { formatNumber, isNumber } from "../dom.js";
import { logarithmicTicks, withColorBar } from "./color_bar.js";
import { PLOT_SCALE, plotBase, plotFade, plotFont, plotText } from "./plot.js";
import { chartNumber } from "./units.js";

const SURFACE_MAX_SIDE = 401;
const SURFACE_LEVELS = 16;
// Values above this quantile are drawn in one colour if they would hide all others.
const SURFACE_TOP_QUANTILE = 0.97;
const SURFACE_OUTLIER_FACTOR = 3;
const MIN_TITLED_SCENE_PX = 560;
const SURFACE_MARGIN = { l: 72, r: 12, t: 10, b: 54, pad: 0 };
// A place at a border that rounding has moved beyond it is inside, as a share of the width.
const SURFACE_ROUNDING = 1e-6;
// Lines between levels: light on dark colours, dark on light ones.
/** @type {ColorScale} */
const SURFACE_LINES = [
  [0, "#ffffff"],
  [0.5, "#ffffff"],
  [0.5, "#000000"],
  [1, "#000000"],
];
// Marks are seen on every colour of the scale.
const SURFACE_INK = "#ffffff";
const SURFACE_EDGE = "#000000";
const SURFACE_CENTER = "#c2570c";
/** @type {Record<string, string>} */
const SURFACE_SYMBOLS = { minimum: "triangle-down", saddle: "x", maximum: "triangle-up" };
/** @type {Record<string, string>} */
const SURFACE_SYMBOLS_3D = { minimum: "diamond", saddle: "cross", maximum: "square" };
/** @type {Record<string, string>} */
const SURFACE_KINDS = {
  random: "random direction",
  hessian: "Hessian eigenvector",
  pca: "principal axis",
  gradient: "gradient",
  checkpoint: "towards a checkpoint",
};

/**
 * The surface in stored data, whatever these are. Throws an Error whose message is for people.
 * @param {StoredJson} data
 * @returns {Surface}
 */
export function readSurface(data) {
  /**
   * @param {StoredJson} values
   * @returns {number[]}
   */
  const numbers = (values) => (Array.isArray(values) ? values.filter(isNumber) : []);
  const x = numbers(data.x);
  const y = numbers(data.y);
  const rows = Array.isArray(data.loss) ? data.loss : [];
  const is1d = y.length === 0;
  const isWhole =
    x.length >= 2 &&
    x.length === data.x.length &&
    y.length === (data.y ?? []).length &&
    rows.length === (is1d ? 1 : y.length) &&
    rows.every((/** @type {StoredJson} */ row) => Array.isArray(row) && row.length === x.length);
  if (!isWhole || y.length === 1) throw new Error("The stored surface is damaged: its sizes do not match.");
  if (Math.max(x.length, y.length) > SURFACE_MAX_SIDE)
    throw new Error(`The stored surface is larger than ${SURFACE_MAX_SIDE} points a side.`);
  /**
   * @param {StoredJson[][]} values
   * @returns {Values[]}
   */
  const heights = (values) => values.map((row) => row.map((value) => (isNumber(value) ? value : null)));
  const loss = heights(rows);
  /**
   * @param {StoredJson} values
   * @returns {StoredJson[]}
   */
  const objects = (values) =>
    Array.isArray(values) ? values.filter((each) => each !== null && typeof each === "object") : [];
  /**
   * @param {StoredJson} values
   * @returns {SurfacePoint[]}
   */
  const placed = (values) =>
    objects(values)
      .filter((each) => isNumber(each.x) && (is1d || isNumber(each.y)))
      .map((each) => ({ ...each, y: isNumber(each.y) ? each.y : 0, loss: isNumber(each.loss) ? each.loss : null }));
  /**
   * @param {StoredJson} values
   * @param {number} count
   */
  const quadruples = (values, count) =>
    (Array.isArray(values) ? values : []).filter((each) => Array.isArray(each) && each.slice(0, count).every(isNumber));
  /**
   * @param {StoredJson} each
   * @returns {boolean}
   */
  const isRegion = (each) =>
    ["x", "y"].every(
      (axis) =>
        Array.isArray(each[axis]) &&
        each[axis].length > 1 &&
        each[axis].length <= SURFACE_MAX_SIDE &&
        each[axis].every(isNumber),
    ) &&
    Array.isArray(each.loss) &&
    each.loss.length === each.y.length &&
    each.loss.every((/** @type {StoredJson} */ row) => Array.isArray(row) && row.length === each.x.length);
  const regions = (is1d ? [] : objects(data.regions).filter(isRegion)).map((each) => ({
    x: each.x,
    y: each.y,
    loss: heights(each.loss),
  }));
  const all = [loss, ...regions.map((each) => each.loss)]
    .flat(2)
    .filter((value) => value !== null)
    .sort((a, b) => a - b);
  return {
    x,
    y,
    loss,
    is1d,
    regions,
    weightsNorm: isNumber(data.weights_norm) && data.weights_norm > 0 ? data.weights_norm : null,
    estimatedError: isNumber(data.estimated_error) ? data.estimated_error : null,
    lowest: all[0] ?? null,
    highest: all[all.length - 1] ?? null,
    top: all[Math.floor(all.length * SURFACE_TOP_QUANTILE)] ?? null,
    holes: loss.flat().filter((value) => value === null).length,
    center: placed([data.center])[0] ?? null,
    path: placed(data.trajectory),
    features: placed(data.features).filter(({ kind = "" }) => kind in SURFACE_SYMBOLS),
    arrows: quadruples(data.arrows, 4),
    points: quadruples(data.points, 2).map(([first, second, value]) => ({
      x: first,
      y: isNumber(second) ? second : 0,
      loss: isNumber(value) ? value : null,
    })),
    directions: objects(data.directions).slice(0, 2),
    sharpness: objects([data.sharpness])[0] ?? null,
    evaluations: isNumber(data.evaluations) ? data.evaluations : null,
    seconds: isNumber(data.seconds) ? data.seconds : null,
    parameters: isNumber(data.parameter_count) ? data.parameter_count : null,
    selection: String(data.selection ?? ""),
    model: String(data.model ?? ""),
    step: isNumber(data.step) ? data.step : null,
    notes: (Array.isArray(data.note) ? data.note : data.note ? [data.note] : []).map(String).slice(0, 20),
  };
}

/**
 * The values at the ends of the colour scale, of one or several surfaces.
 * @param {Surface[]} surfaces
 * @returns {Span}
 */
export function surfaceLimits(surfaces) {
  const known = surfaces.filter(({ lowest }) => lowest !== null);
  if (!known.length) return [0, 1];
  const low = Math.min(...known.map(({ lowest }) => lowest ?? Infinity));
  const high = Math.max(...known.map(({ highest }) => highest ?? -Infinity));
  const top = Math.max(...known.map(({ top: each }) => each ?? -Infinity));
  const isOutlying = top > low && high - low > SURFACE_OUTLIER_FACTOR * (top - low);
  // The interpolation of a constant loss differs in the last digit.
  const least = low + (Math.abs(low) || 1) * 1e-6;
  return [low, isOutlying ? top : Math.max(high, least)];
}

/**
 * The position of the lowest value: { x, y, loss }; null if there is none.
 * @param {Surface} surface
 */
export function lowestPoint(surface) {
  /** @type {{ x: number, y: number, loss: number } | null} */
  let best = null;
  for (const { x, y, loss: rows } of [surface, ...surface.regions]) {
    for (const [rowIndex, row] of rows.entries()) {
      for (const [index, loss] of row.entries()) {
        if (loss !== null && (!best || loss < best.loss)) best = { x: x[index], y: y[rowIndex] ?? 0, loss };
      }
    }
  }
  return best;
}

/**
 * A direction in words.
 * @param {SurfaceDirection | undefined} direction
 */
export function directionText(direction) {
  if (!direction) return "";
  const words = SURFACE_KINDS[direction.kind ?? ""] ?? String(direction.kind ?? "direction").replaceAll("_", " ");
  const name = String(direction.name ?? "");
  // The name of an automatic one is its kind with a number.
  const number = /^(?:random direction|principal axis|eigenvector) (\d+)\b/.exec(name)?.[1];
  const isAutomatic = number || /^[xy12]$/.test(name) || (direction.kind && name.startsWith(direction.kind));
  const kind = number ? `${words} ${number}` : words;
  const details = [
    isAutomatic ? "" : name,
    isNumber(direction.eigenvalue) ? `eigenvalue ${chartNumber(direction.eigenvalue)}` : "",
    isNumber(direction.explained) ? `${Math.round(100 * direction.explained)} % of the path` : "",
  ].filter(Boolean);
  return details.length ? `${kind} (${details.join(", ")})` : kind;
}

/**
 * What the coordinate 1 of a direction means.
 * @param {SurfaceDirection | undefined} direction
 * @param {Surface} surface
 */
export function directionLength(direction, { weightsNorm }) {
  if (!direction || !isNumber(direction.norm)) return "";
  const share =
    weightsNorm === null
      ? ""
      : `, ${chartNumber(Number(((100 * direction.norm) / weightsNorm).toPrecision(2)))} % of the weights' norm`;
  return `1 = ${chartNumber(Number(direction.norm.toPrecision(3)))} (L2)${share}`;
}

/**
 * The title of an axis in two lines, as HTML of plotly.js.
 * @param {Surface} surface
 * @param {number} index
 */
function directionTitle(surface, index) {
  const direction = surface.directions[index];
  const text = directionText(direction) || ["first direction", "second direction"][index];
  return [text, directionLength(direction, surface)].filter(Boolean).map(plotText).join("<br>");
}

/**
 * A picture for a PlotChart. `options`: is3d, isLog, hasPoints, hasArrows, limits (those of
 * `surfaceLimits`), camera.
 * @param {Surface} surface
 * @param {SurfaceOptions} options
 * @returns {Picture}
 */
export function surfacePicture(surface, options) {
  return (size) => {
    if (surface.is1d) return curvePicture(surface, options, size);
    return options.is3d ? scenePicture(surface, options, size) : contourPicture(surface, options, size);
  };
}

/** @param {Surface} surface */
function surfaceLabel(surface) {
  const lowest = lowestPoint(surface);
  const kind = surface.is1d ? "Loss along one direction" : "Loss in a plane through the weights";
  if (!lowest) return `${kind}: no finite value`;
  return (
    `${kind}: from ${chartNumber(surface.lowest)} to ${chartNumber(surface.highest)}, ` +
    `lowest at ${chartNumber(lowest.x)}${surface.is1d ? "" : `, ${chartNumber(lowest.y)}`}`
  );
}

/**
 * Whether all values have a logarithm.
 * @param {Surface} surface
 */
export function hasLogarithm(surface) {
  return surface.lowest !== null && surface.lowest > 0;
}

/**
 * @param {SurfaceOptions} options
 * @returns {<T extends number | null>(value: T) => T}
 */
function scaled(options) {
  return (value) => /** @type {typeof value} */ (value !== null && options.isLog ? Math.log10(value) : value);
}

/** @param {PlotSize} size */
function baseLayout(size) {
  return {
    ...plotBase(size),
    margin: SURFACE_MARGIN,
    plot_bgcolor: size.colors.grid,
    uirevision: "surface",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  };
}

/**
 * @param {number[]} values
 * @param {string} title
 * @param {PlotColors} colors
 */
function axisOf(values, title, colors) {
  return {
    title: { text: title, standoff: 6, font: plotFont(colors) },
    range: [values[0], values[values.length - 1]],
    autorange: false,
    zeroline: false,
    showgrid: false,
    showline: false,
    ticks: "",
    nticks: 7,
    automargin: false,
  };
}

/**
 * The ticks of losses on an axis or a colour bar; the last one of a scale that is cut off is marked.
 * @param {SurfaceOptions} options
 * @param {number | null} highest
 */
function lossTicks(options, highest) {
  const [low, high] = options.limits;
  const values = options.isLog ? logarithmicTicks(low, high) : roundValues(low, high);
  const isCut = highest !== null && highest > high * (1 + SURFACE_ROUNDING) + SURFACE_ROUNDING * (high - low);
  if (isCut) values.push(high);
  /**
   * @param {number} value
   * @param {number} index
   */
  const text = (value, index) =>
    `${isCut && index === values.length - 1 ? "≥ " : ""}${chartNumber(Number(value.toPrecision(3)))}`;
  return { tickvals: values.map(scaled(options)), ticktext: values.map(text) };
}

/**
 * About five round numbers.
 * @param {number} low
 * @param {number} high
 */
function roundValues(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const size = power * ([1, 2, 2.5, 5, 10].find((digit) => digit * power >= (high - low) / 5) ?? 10);
  const values = [];
  const first = Math.ceil(low / size);
  for (let index = 0; index <= 10 && (first + index) * size <= high - 0.04 * (high - low); index += 1)
    values.push((first + index) * size);
  return values;
}

/** @param {SurfaceOptions} options */
function lossTitle(options) {
  return options.isLog ? "loss (logarithmic)" : "loss";
}

/**
 * @param {Surface} surface
 * @param {SurfaceOptions} options
 * @param {"xaxis" | "scene"} at
 * @returns {ColorBar}
 */
function lossBar(surface, options, at) {
  return {
    colorscale: PLOT_SCALE,
    range: options.limits.map((value) => scaled(options)(value)),
    title: lossTitle(options),
    at,
    ...lossTicks(options, surface.highest),
  };
}

/**
 * The levels of a surface, or of a part of it, and the lines between them.
 * @param {SurfaceGrid} part
 * @param {SurfaceOptions} options
 */
function levels(part, options) {
  const toScale = scaled(options);
  const [low, high] = options.limits.map(toScale);
  const z = part.loss.map((row) => row.map((value) => (value === null ? null : Math.min(toScale(value), high))));
  const contour = {
    type: "contour",
    x: part.x,
    y: part.y,
    z,
    customdata: part.loss,
    zmin: low,
    zmax: high,
    zauto: false,
    connectgaps: false,
    autocontour: false,
    hoverongaps: false,
    showscale: false,
  };
  const range = { showlines: true, start: low, end: high, size: (high - low) / SURFACE_LEVELS };
  return [
    {
      ...contour,
      colorscale: PLOT_SCALE,
      contours: { ...range, coloring: "fill", showlines: false },
      hovertemplate: "%{x:.3~f}, %{y:.3~f}<br>loss %{customdata:.5~g}<extra></extra>",
    },
    {
      ...contour,
      colorscale: SURFACE_LINES,
      contours: { ...range, coloring: "lines" },
      line: { width: 0.9, smoothing: 0.6 },
      opacity: 0.5,
      hoverinfo: "skip",
    },
  ];
}

/**
 * @param {Surface} surface
 * @param {SurfaceOptions} options
 * @param {PlotSize} size
 */
function contourPicture(surface, options, size) {
  const { colors } = size;
  /** @type {PlotTrace[]} */
  const traces = [];
  if (surface.holes) {
    traces.push({
      type: "heatmap",
      x: surface.x,
      y: surface.y,
      z: surface.loss.map((row) => row.map((value) => (value === null ? 1 : null))),
      zmin: 0,
      zmax: 1,
      colorscale: [
        [0, colors.critical],
        [1, colors.critical],
      ],
      opacity: 0.55,
      showscale: false,
      hoverongaps: false,
      // Without a gap plotly.js scales a small image with an inline style, which the policy refuses.
      xgap: 0.01,
      ygap: 0.01,
      hovertemplate: "%{x:.3~f}, %{y:.3~f}<br>NaN or infinite<extra></extra>",
    });
  }
  traces.push(...levels(surface, options));
  // A zoom shows that these parts are finer.
  traces.push(...surface.regions.flatMap((region) => levels(region, options)));
  traces.push(...planeMarks(surface, options));
  return withColorBar(
    {
      traces,
      label: surfaceLabel(surface),
      layout: {
        ...baseLayout(size),
        xaxis: axisOf(surface.x, directionTitle(surface, 0), colors),
        yaxis: axisOf(surface.y, directionTitle(surface, 1), colors),
        shapes: surface.regions.map(({ x, y }) => ({
          type: "rect",
          x0: x[0],
          x1: x[x.length - 1],
          y0: y[0],
          y1: y[y.length - 1],
          line: { color: SURFACE_INK, width: 1, dash: "dot" },
        })),
      },
    },
    lossBar(surface, options, "xaxis"),
  );
}

/**
 * A line on the picture that is seen on light and dark colours.
 * @param {PlotTrace} trace
 * @param {number} width
 */
function inkLine(trace, width) {
  return [
    { ...trace, mode: "lines", line: { color: plotFade(SURFACE_EDGE, 0.55), width: width + 1.8 }, hoverinfo: "skip" },
    { ...trace, mode: "lines", line: { color: SURFACE_INK, width }, hoverinfo: "skip" },
  ];
}

/**
 * @param {SurfacePoint[]} points
 * @param {(point: SurfacePoint) => string} text
 * @param {PlotTrace} marker
 */
function inkMarkers(points, text, marker) {
  return {
    type: "scatter",
    mode: "markers",
    x: points.map(({ x }) => x),
    y: points.map(({ y }) => y),
    text: points.map(text),
    marker: { color: SURFACE_INK, line: { color: SURFACE_EDGE, width: 1.2 }, ...marker },
    hovertemplate: "%{text}<extra></extra>",
  };
}

/** @param {number | null | undefined} value */
function lossText(value) {
  return value === null || value === undefined ? "" : `, loss ${chartNumber(value)}`;
}

/** @param {{ step?: number }} point */
function stepText({ step }) {
  return isNumber(step) ? `step ${formatNumber(step)}` : "path";
}

/** @param {Pick<SurfacePoint, "kind" | "loss" | "evaluated">} point */
function featureText({ kind, loss, evaluated }) {
  return `${kind}${lossText(loss)}${evaluated === false ? " (interpolated)" : ""}`;
}

/**
 * @param {number[]} values
 * @param {number} value
 */
function isBetween(values, value) {
  const [low, high] = [values[0], values[values.length - 1]];
  const slack = SURFACE_ROUNDING * (high - low);
  return value >= low - slack && value <= high + slack;
}

/**
 * @param {Surface} surface
 * @param {SurfaceOptions} options
 */
function planeMarks(surface, options) {
  const { x: xs, y: ys } = surface;
  /** @param {{ x: number, y: number }} point */
  const isIn = ({ x, y }) => isBetween(xs, x) && isBetween(ys, y);
  const traces = [];
  if (options.hasPoints) {
    const shown = surface.points.filter(isIn);
    traces.push({
      type: "scatter",
      mode: "markers",
      x: shown.map(({ x }) => x),
      y: shown.map(({ y }) => y),
      text: shown.map(({ loss }) => (loss === null ? "NaN or infinite" : chartNumber(loss))),
      marker: { color: SURFACE_INK, size: 3.2, line: { color: SURFACE_EDGE, width: 0.7 } },
      hovertemplate: "evaluated: %{text}<extra></extra>",
    });
  }
  if (options.hasArrows && surface.arrows.length)
    traces.push(
      ...inkLine(
        {
          type: "scatter",
          ...arrowLines(
            surface,
            surface.arrows.filter(([x, y]) => isIn({ x, y })),
          ),
        },
        1,
      ),
    );
  // plotly.js cuts at the frame what leaves the bounds.
  const { path } = surface;
  if (path.length) {
    traces.push(...inkLine({ type: "scatter", x: path.map(({ x }) => x), y: path.map(({ y }) => y) }, 1.8));
    traces.push(
      inkMarkers(path, (point) => `${stepText(point)}${lossText(point.loss)}`, {
        size: path.length > 60 ? 3 : 4.5,
        line: { color: SURFACE_EDGE, width: 0.6 },
      }),
    );
    traces.push(
      inkMarkers([path[0]], (point) => `start of the path: ${stepText(point)}${lossText(point.loss)}`, {
        symbol: "circle-open",
        size: 10,
        line: { color: SURFACE_INK, width: 2 },
      }),
    );
  }
  for (const kind of Object.keys(SURFACE_SYMBOLS)) {
    const found = surface.features.filter((each) => each.kind === kind && isIn(each));
    if (found.length) traces.push(inkMarkers(found, featureText, { symbol: SURFACE_SYMBOLS[kind], size: 11 }));
  }
  if (surface.center && isIn(surface.center)) {
    traces.push(
      inkMarkers([surface.center], ({ loss }) => `the weights${lossText(loss)}`, {
        symbol: "circle",
        size: 9,
        color: SURFACE_CENTER,
        line: { color: SURFACE_INK, width: 2 },
      }),
    );
  }
  return traces;
}

/**
 * Arrows as one line with gaps: the longest is as long as the distance between two of them.
 * @param {SurfaceGrid} grid
 * @param {Surface["arrows"]} arrows
 */
function arrowLines({ x: xs, y: ys }, arrows) {
  const [width, height] = [xs[xs.length - 1] - xs[0], ys[ys.length - 1] - ys[0]];
  const sizes = arrows.map(([, , dx, dy]) => Math.hypot(dx / width, dy / height));
  const largest = Math.max(...sizes, 0);
  const spacing = 0.85 / Math.max(2, Math.sqrt(arrows.length));
  /** @type {Values[]} */
  const [x, y] = [[], []];
  arrows.forEach(([startX, startY, dx, dy], index) => {
    if (!(sizes[index] > 0)) return;
    // The square root keeps small gradients visible.
    const factor = (spacing * Math.sqrt(sizes[index] / largest)) / sizes[index];
    const [u, v] = [(dx / width) * factor, (dy / height) * factor];
    /**
     * @param {number} along
     * @param {number} across
     */
    const point = (along, across) => {
      x.push(startX + (u * along - v * across) * width);
      y.push(startY + (v * along + u * across) * height);
    };
    point(-0.5, 0);
    point(0.5, 0);
    point(0.2, 0.18);
    point(0.5, 0);
    point(0.2, -0.18);
    x.push(null);
    y.push(null);
  });
  return { x, y };
}

/**
 * The value of the surface between its points; null beyond it and in holes.
 * @param {SurfaceGrid} grid
 * @param {number} x
 * @param {number} y
 */
function heightAt({ x: xs, y: ys, loss }, x, y) {
  /**
   * @param {number[]} values
   * @param {number} given
   * @returns {[number, number] | null}
   */
  const place = (values, given) => {
    const last = values.length - 1;
    if (!isBetween(values, given)) return null;
    const value = Math.min(values[last], Math.max(values[0], given));
    const index = Math.min(
      last - 1,
      Math.max(0, values.findIndex((each) => each > value) - 1 + (value === values[last] ? last : 0)),
    );
    return [index, (value - values[index]) / (values[index + 1] - values[index])];
  };
  const [column, row] = [place(xs, x), place(ys, y)];
  if (!column || !row) return null;
  const corners = [
    [0, 0],
    [0, 1],
    [1, 0],
    [1, 1],
  ].map(([down, right]) => loss[row[0] + down]?.[column[0] + right] ?? null);
  const [topLeft, topRight, lowLeft, lowRight] = corners;
  if (topLeft === null || topRight === null || lowLeft === null || lowRight === null) return null;
  const [first, second] = [topLeft + (topRight - topLeft) * column[1], lowLeft + (lowRight - lowLeft) * column[1]];
  return first + (second - first) * row[1];
}

/**
 * The losses of a part of a surface, without those inside of finer parts, which are drawn instead.
 * @param {SurfaceGrid} part
 * @param {SurfaceGrid[]} finer
 */
function lossesBeside({ x: xs, y: ys, loss }, finer) {
  /**
   * @param {number[]} values
   * @param {number} value
   */
  const isInside = (values, value) => {
    const [low, high] = [values[0], values[values.length - 1]];
    const slack = SURFACE_ROUNDING * (high - low);
    return value > low + slack && value < high - slack;
  };
  return loss.map((row, rowIndex) =>
    row.map((value, index) =>
      finer.some(({ x, y }) => isInside(x, xs[index]) && isInside(y, ys[rowIndex])) ? null : value,
    ),
  );
}

/**
 * @param {Surface} surface
 * @param {SurfaceOptions} options
 * @param {PlotSize} size
 */
function scenePicture(surface, options, size) {
  const { colors } = size;
  const toScale = scaled(options);
  const [low, high] = options.limits.map(toScale);
  const lift = 0.015 * (high - low);
  const { regions } = surface;
  /**
   * @param {number} x
   * @param {number} y
   */
  const heightOn = (x, y) => {
    const part = regions.findLast((each) => isBetween(each.x, x) && isBetween(each.y, y));
    const height = toScale(heightAt(part ?? surface, x, y));
    return height === null ? null : Math.min(height, high) + lift;
  };
  /**
   * @param {SurfacePoint[]} points
   * @returns {SurfacePoint[]}
   */
  const on = (points) =>
    points.map((point) => ({ ...point, height: heightOn(point.x, point.y) })).filter(({ height }) => height !== null);
  /**
   * @param {SurfacePoint[]} points
   * @param {(point: SurfacePoint) => string} text
   * @param {PlotTrace} marker
   * @returns {PlotTrace}
   */
  const marks = (points, text, marker) => ({
    type: "scatter3d",
    mode: "markers",
    x: points.map(({ x }) => x),
    y: points.map(({ y }) => y),
    z: points.map(({ height }) => height),
    text: points.map(text),
    marker,
    hovertemplate: "%{text}<extra></extra>",
  });
  /** @type {PlotTrace[]} */
  const traces = [surface, ...regions].map((part, index) => {
    const shown = lossesBeside(part, regions.slice(index));
    return {
      type: "surface",
      x: part.x,
      y: part.y,
      z: shown.map((row) => row.map((value) => (value === null ? null : Math.min(toScale(value), high)))),
      customdata: part.loss,
      cmin: low,
      cmax: high,
      colorscale: PLOT_SCALE,
      showscale: false,
      connectgaps: false,
      contours: { x: { highlight: false }, y: { highlight: false }, z: { highlight: false } },
      lighting: { ambient: 0.75, diffuse: 0.55, specular: 0.05, roughness: 0.9, fresnel: 0.05 },
      hovertemplate: "%{x:.3~f}, %{y:.3~f}<br>loss %{customdata:.5~g}<extra></extra>",
    };
  });
  const ink = colors.text;
  if (options.hasArrows && surface.arrows.length) {
    const { x, y } = arrowLines(surface, surface.arrows);
    traces.push({
      type: "scatter3d",
      mode: "lines",
      x,
      y,
      z: x.map((each, index) => (each === null ? null : heightOn(each, y[index] ?? NaN))),
      line: { color: ink, width: 2 },
      hoverinfo: "skip",
    });
  }
  if (options.hasPoints)
    traces.push(marks(on(surface.points), ({ loss }) => `evaluated: ${chartNumber(loss)}`, { color: ink, size: 1.8 }));
  const path = surface.path.map((point) => ({ ...point, height: heightOn(point.x, point.y) }));
  if (path.length) {
    /** @param {SurfacePoint} point */
    const pathText = (point) => `${stepText(point)}${lossText(point.loss)}`;
    traces.push({
      ...marks(path, pathText, { color: colors.threshold, size: 2.5 }),
      mode: "lines+markers",
      line: { color: colors.threshold, width: 5 },
      connectgaps: false,
    });
    traces.push(
      marks(
        path.slice(0, 1).filter(({ height }) => height !== null),
        (point) => `start of the path: ${pathText(point)}`,
        { symbol: "circle-open", color: colors.threshold, size: 8 },
      ),
    );
  }
  for (const kind of Object.keys(SURFACE_SYMBOLS_3D)) {
    const found = on(surface.features.filter((each) => each.kind === kind));
    if (found.length) traces.push(marks(found, featureText, { symbol: SURFACE_SYMBOLS_3D[kind], color: ink, size: 5 }));
  }
  const center = surface.center ? on([surface.center]) : [];
  if (center.length)
    traces.push(marks(center, ({ loss }) => `the weights${lossText(loss)}`, { color: SURFACE_CENTER, size: 6 }));
  /**
   * On a narrow screen a long title would be cut off; the text below the chart has it.
   * @param {number} index
   */
  const title = (index) =>
    size.width < MIN_TITLED_SCENE_PX ? `coordinate ${index + 1}` : directionTitle(surface, index);
  /** @param {string} text */
  const axis = (text) => ({
    title: { text, font: plotFont(colors) },
    tickfont: plotFont(colors),
    color: colors.soft,
    gridcolor: colors.grid,
    zeroline: false,
    showbackground: false,
    showspikes: false,
    nticks: 5,
  });
  return withColorBar(
    {
      traces,
      label: surfaceLabel(surface),
      layout: {
        ...baseLayout(size),
        plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 0, r: 0, t: 0, b: 0 },
        scene: {
          xaxis: axis(title(0)),
          yaxis: axis(title(1)),
          zaxis: { ...axis(lossTitle(options)), range: [low, high + 3 * lift], ...lossTicks(options, surface.highest) },
          camera: options.camera,
          aspectmode: "manual",
          aspectratio: { x: 0.95, y: 0.95, z: 0.6 },
          dragmode: "turntable",
          uirevision: "surface",
        },
      },
    },
    lossBar(surface, options, "scene"),
  );
}

/**
 * @param {Surface} surface
 * @param {SurfaceOptions} options
 * @param {PlotSize} size
 */
function curvePicture(surface, options, size) {
  const { colors } = size;
  const toScale = scaled(options);
  const [low, high] = options.limits.map(toScale);
  const [values] = surface.loss;
  const color = colors.series[0];
  /** @type {PlotTrace[]} */
  const traces = [
    {
      type: "scatter",
      mode: "lines",
      x: surface.x,
      y: values.map(toScale),
      customdata: values,
      line: { color, width: 1.8 },
      connectgaps: false,
      hovertemplate: "%{x:.3~f}<br>loss %{customdata:.5~g}<extra></extra>",
    },
  ];
  /**
   * @param {SurfacePoint[]} points
   * @returns {ScaledPoint[]}
   */
  const at = (points) => points.map((point) => ({ ...point, y: toScale(point.loss) })).filter(({ y }) => y !== null);
  /**
   * @param {ScaledPoint[]} points
   * @param {(point: ScaledPoint) => string} text
   * @param {PlotTrace} marker
   * @returns {PlotTrace}
   */
  const marks = (points, text, marker) => ({
    type: "scatter",
    mode: "markers",
    x: points.map(({ x }) => x),
    y: points.map(({ y }) => y),
    text: points.map(text),
    marker,
    hovertemplate: "%{text}<extra></extra>",
  });
  if (options.hasPoints)
    traces.push(marks(at(surface.points), ({ loss }) => `evaluated: ${chartNumber(loss)}`, { color, size: 4.5 }));
  for (const kind of Object.keys(SURFACE_SYMBOLS)) {
    const found = at(surface.features.filter((each) => each.kind === kind));
    if (found.length)
      traces.push(marks(found, featureText, { color: colors.text, symbol: SURFACE_SYMBOLS[kind], size: 10 }));
  }
  const path = at(surface.path);
  if (path.length)
    traces.push(
      marks(path, (point) => `${stepText(point)}${lossText(point.loss)}`, { color: colors.threshold, size: 5 }),
    );
  const center = surface.center ? at([surface.center]) : [];
  if (center.length)
    traces.push(marks(center, ({ loss }) => `the weights${lossText(loss)}`, { color: SURFACE_CENTER, size: 9 }));
  const pad = 0.05 * (high - low);
  const holes = surface.x.filter((_, index) => values[index] === null);
  const half = (surface.x[1] - surface.x[0]) / 2;
  return {
    traces,
    label: surfaceLabel(surface),
    layout: {
      ...baseLayout(size),
      plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: axisOf(surface.x, directionTitle(surface, 0), colors),
      yaxis: {
        title: { text: lossTitle(options), standoff: 6, font: plotFont(colors) },
        range: [low - pad, high + pad],
        autorange: false,
        gridcolor: colors.grid,
        zeroline: false,
        automargin: false,
        ...lossTicks(options, surface.highest),
      },
      shapes: holes.map((x) => ({
        type: "rect",
        layer: "below",
        yref: "paper",
        x0: x - half,
        x1: x + half,
        y0: 0,
        y1: 1,
        line: { width: 0 },
        fillcolor: plotFade(colors.critical, 0.35),
      })),
    },
  };
}
