// Pictures of curves and bars with data of their own, for a PlotChart.
import { withColorBar } from "./color_bar.js";
import { PLOT_SCALE, plotBase, plotExtent, plotFade, plotFont, plotLayout, plotText } from "./plot.js";
import { chartNumber } from "./units.js";

// Values below this share of the largest one are too small for a linear axis.
const LINES_LOG_RATIO = 50;
const PATH_MARGIN = { l: 62, r: 12, t: 8, b: 42, pad: 0 };

/**
 * @param {string} text
 * @param {PlotColors} colors
 */
function linesTitle(text, colors) {
  return { text: plotText(text), standoff: 6, font: plotFont(colors) };
}

/**
 * Curves over steps: [{ name, x, y, color }], the color by its number. `range` are the shown steps,
 * null for all. `isLog` if small values matter, where all are positive. `value` is what the values are.
 * @param {PlotCurve[]} curves
 * @param {LinesOptions} options
 * @returns {Picture}
 */
export function linesPicture(
  curves,
  { title, value = "", unit = "", range = null, isLog = false, shapes = [], noun = "step" },
) {
  return ({ width, height, colors }) => {
    /** @type {Span} */
    const shown = range ?? plotExtent(curves.flatMap(({ x }) => x)) ?? [0, 1];
    /** @param {number} x */
    const isIn = (x) => x >= shown[0] && x <= shown[1];
    const extent = plotExtent(curves.flatMap(({ x, y }) => y.filter((_, index) => isIn(x[index])))) ?? [0, 1];
    const isLogarithmic = isLog && extent[0] > 0 && extent[1] / extent[0] > LINES_LOG_RATIO;
    const [low, high] = isLogarithmic ? extent.map(Math.log10) : extent;
    const pad = 0.06 * (high - low || Math.abs(high) || 1);
    const suffix = unit ? ` ${unit}` : "";
    const traces = curves.map(({ name, x, y, color }) => ({
      type: "scatter",
      mode: x.length === 1 ? "markers" : "lines",
      x,
      y,
      connectgaps: false,
      line: { color: colors.series[color % colors.series.length], width: 1.6 },
      marker: { color: colors.series[color % colors.series.length], size: 6 },
      name: plotText(name),
      hovertemplate: `${curves.length > 1 ? `${plotText(name)}: ` : ""}%{y:.4~g}${suffix}<extra></extra>`,
    }));
    const layout = plotLayout({
      width,
      height,
      axis: noun,
      range: shown[0] === shown[1] ? [shown[0] - 0.5, shown[1] + 0.5] : shown,
      colors,
      shapes,
      yaxis: {
        type: isLogarithmic ? "log" : "linear",
        range: [low - pad, high + pad],
        autorange: false,
        gridcolor: colors.grid,
        ...(isLogarithmic ? { dtick: Math.max(1, Math.ceil((high - low) / 4)), exponentformat: "e" } : {}),
      },
    });
    layout.margin = { ...layout.margin, l: PATH_MARGIN.l, b: PATH_MARGIN.b };
    layout.xaxis.title = linesTitle(noun, colors);
    layout.yaxis.title = linesTitle(`${value}${isLogarithmic ? " (logarithmic)" : ""}`, colors);
    const last = curves.map(
      ({ name, y }) =>
        `${curves.length > 1 ? `${name} ` : ""}${chartNumber(y.filter((value) => value !== null).pop())}`,
    );
    return {
      traces,
      layout,
      label: `${title}: from ${chartNumber(extent[0])} to ${chartNumber(extent[1])}, last ${last.join(", ")}`,
    };
  };
}

/**
 * The colours of the steps of a single path; five of them have ticks.
 * @param {Span} steps
 * @returns {ColorBar}
 */
function stepBar([first, last]) {
  const tickvals = [...new Set([0, 1, 2, 3, 4].map((index) => Math.round(first + ((last - first) * index) / 4)))];
  return { colorscale: PLOT_SCALE, range: [first, last], title: "step", tickvals, ticktext: tickvals.map(chartNumber) };
}

/**
 * The paths of runs in one plane: [{ name, color, x, y, steps, loss }]. The path of a single run has
 * the colours of its steps.
 * @param {ColoredPath[]} paths
 * @param {{ title: string, axes: string[], reference?: { x: number, y: number } | null }} options
 * @returns {Picture}
 */
export function pathsPicture(paths, { title, axes, reference = null }) {
  return ({ width, height, colors }) => {
    const isSingle = paths.length === 1;
    /** @type {PlotTrace[]} */
    const traces = paths.flatMap(({ name, color, x, y, steps, loss }) => {
      const ink = colors.series[color % colors.series.length];
      const text = steps.map(
        (step, index) =>
          `${isSingle ? "" : `${plotText(name)}<br>`}step ${chartNumber(step)}` +
          (loss[index] === null ? "" : `<br>loss ${chartNumber(loss[index])}`),
      );
      const last = x.length - 1;
      /**
       * @param {number} index
       * @param {string} symbol
       * @param {string} label
       */
      const mark = (index, symbol, label) => ({
        type: "scatter",
        mode: "markers",
        x: [x[index]],
        y: [y[index]],
        text: [`${label}<br>${text[index]}`],
        hovertemplate: "%{text}<extra></extra>",
        marker: {
          symbol,
          size: 11,
          color: isSingle ? colors.text : ink,
          line: { color: isSingle ? colors.text : ink, width: 2 },
        },
      });
      return [
        {
          type: "scatter",
          mode: "lines",
          x,
          y,
          line: { color: plotFade(isSingle ? colors.text : ink, isSingle ? 0.25 : 0.6), width: 1.4 },
          hoverinfo: "skip",
        },
        {
          type: "scatter",
          mode: "markers",
          x,
          y,
          text,
          hovertemplate: "%{text}<extra></extra>",
          marker: isSingle
            ? {
                size: 5,
                color: steps,
                colorscale: PLOT_SCALE,
                showscale: false,
                line: { width: 0.4, color: colors.soft },
              }
            : { size: 3.5, color: ink },
        },
        mark(0, "circle-open", "start"),
        ...(last > 0 ? [mark(last, "diamond", "end")] : []),
      ];
    });
    if (reference) {
      traces.push({
        type: "scatter",
        mode: "markers",
        x: [reference.x],
        y: [reference.y],
        marker: { symbol: "star", size: 13, color: colors.threshold },
        hovertemplate: "the reference<extra></extra>",
      });
    }
    /** @param {string} text */
    const axis = (text) => ({
      title: linesTitle(text, colors),
      gridcolor: colors.grid,
      zeroline: false,
      nticks: 6,
      automargin: false,
    });
    const picture = {
      traces,
      label: title,
      layout: {
        ...plotBase({ width, height, colors }),
        margin: PATH_MARGIN,
        // Distances are those of the weights.
        xaxis: axis(axes[0]),
        yaxis: { ...axis(axes[1]), scaleanchor: "x" },
      },
    };
    const steps = isSingle ? plotExtent(paths[0].steps) : null;
    return steps && steps[1] > steps[0] ? withColorBar(picture, stepBar(steps)) : picture;
  };
}

/**
 * Bars of counts over powers of two: `first` is the exponent of the first one.
 * @param {{ first: number, counts: number[] }} bars
 * @param {{ title: string }} options
 * @returns {Picture}
 */
export function exponentsPicture({ first, counts }, { title }) {
  return ({ width, height, colors }) => {
    const x = counts.map((_, index) => first + index);
    const total = counts.reduce((sum, count) => sum + count, 0) || 1;
    const most = first + counts.indexOf(Math.max(...counts));
    const size = Math.max(1, Math.ceil(counts.length / 6));
    const ticks = x.filter((_, index) => index % size === 0);
    /** @param {number} exponent */
    const power = (exponent) => chartNumber(2 ** exponent);
    return {
      traces: [
        {
          type: "bar",
          x,
          y: counts.map((count) => count / total),
          marker: { color: colors.series[0] },
          width: 0.9,
          text: x.map((exponent) => `${power(exponent)} to ${power(exponent + 1)}`),
          textposition: "none",
          hovertemplate: "%{text}: %{y:.1%}<extra></extra>",
        },
      ],
      layout: {
        ...plotBase({ width, height, colors }),
        margin: { ...PATH_MARGIN, r: 8 },
        xaxis: {
          tickvals: ticks,
          ticktext: ticks.map((exponent) => chartNumber(Number((2 ** exponent).toPrecision(1)))),
          showgrid: false,
          zeroline: false,
          title: linesTitle("size of an element, |g|", colors),
        },
        yaxis: {
          gridcolor: colors.grid,
          zeroline: false,
          tickformat: ".0%",
          nticks: 4,
          title: linesTitle("share of the elements", colors),
        },
      },
      label: `${title}: from ${power(first)} to ${power(first + counts.length)}, most at ${power(most)}`,
    };
  };
}
