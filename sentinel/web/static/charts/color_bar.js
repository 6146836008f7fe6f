// A colour bar with a title and ticks, drawn as a chart of its own beside another one: that of
// plotly.js sets style attributes, which the content security policy refuses.
const BAR_WIDTH = 12;
const BAR_GAP = 10;
const BAR_MARGIN = 66;
const BAR_STEPS = 96;
const BAR_LETTER = 6.5;

/**
 * Ticks of a logarithmic scale: powers of ten, or five values where there are few of them.
 * @param {number} low
 * @param {number} high
 */
export function logarithmicTicks(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  if (last - first < 2) return [0, 1, 2, 3, 4].map((index) => low * (high / low) ** (index / 4));
  const step = Math.ceil((last - first) / 5);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, index) => 10 ** (first + index * step));
}

/**
 * The picture with a bar at its right. `range` are the values at the ends, `at` the key of what gives
 * up its place: "xaxis", or "scene" in three dimensions.
 * @param {PlotFigure} picture
 * @param {ColorBar} bar
 * @returns {PlotFigure}
 */
export function withColorBar(
  { traces, layout, ...rest },
  { colorscale, range: [low, high], title, tickvals, ticktext, at = "xaxis" },
) {
  const margin = { ...layout.margin, r: BAR_MARGIN };
  const pixels = Math.max(1, layout.width - margin.l - margin.r);
  const hasRoom = layout.height - margin.t - margin.b > BAR_LETTER * title.length;
  const values = Array.from({ length: BAR_STEPS }, (_, index) => low + ((high - low) * (index + 0.5)) / BAR_STEPS);
  const place = [0, Math.max(0.1, 1 - (BAR_WIDTH + BAR_GAP) / pixels)];
  const base = { showgrid: false, zeroline: false, fixedrange: true, autorange: false };
  const scene = { domain: { x: place, y: [0, 1] } };
  const bar = {
    type: "heatmap",
    x: [0],
    y: values,
    z: values.map((value) => [value]),
    zmin: low,
    zmax: high,
    colorscale,
    showscale: false,
    hoverinfo: "skip",
    xaxis: "x9",
    yaxis: "y9",
    // Without a gap plotly.js scales a small image with an inline style, which the policy refuses.
    xgap: 0.01,
    ygap: 0,
  };
  return {
    ...rest,
    traces: [...traces, bar],
    layout: {
      ...layout,
      margin,
      [at]: { ...layout[at], ...(at === "scene" ? scene : { domain: place }) },
      xaxis9: {
        ...base,
        domain: [1 - BAR_WIDTH / pixels, 1],
        anchor: "y9",
        range: [-0.5, 0.5],
        showticklabels: false,
        ticks: "",
      },
      yaxis9: {
        ...base,
        domain: at === "scene" ? [0.1, 0.9] : [0, 1],
        anchor: "x9",
        side: "right",
        range: [low, high],
        tickvals,
        ticktext,
        ticks: "outside",
        ticklen: 3,
        tickcolor: layout.font.color,
        showline: false,
        automargin: false,
        title: { text: hasRoom ? title : "", standoff: 4, font: layout.font },
      },
    },
  };
}
