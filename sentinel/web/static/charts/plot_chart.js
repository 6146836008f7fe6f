// A chart with data of its own: a card whose plot is drawn when it comes into view, and again when
// its data, its width or the theme changed.
import { container, element, setText } from "../dom.js";
import { plotDraw } from "./plot.js";

export class PlotChart {
  /**
   * `picture({ width, height, colors })` returns { traces, layout, label }: the label is for those
   * who do not see the picture. `onBuild(plotly, plot)` is called once for each plot.
   * @param {ChartContext} context
   * @param {{ title?: string, className?: string, onBuild?: (plotly: Plotly, plot: PlotElement) => void }} [options]
   */
  constructor(context, { title = "", className = "", onBuild = () => {} } = {}) {
    this.context = context;
    /** @type {string[]} */
    this.names = [];
    this.isBuilt = false;
    this.onBuild = onBuild;
    /** @type {Picture | null} */
    this.picture = null;
    this.version = 0;
    this.shown = "";
    this.isListening = false;
    /** @type {number | undefined} */
    this.drawnWidth = undefined;
    this.heading = element("h3", title);
    this.detail = element("span", "", "unit");
    this.header = container("header", "", this.heading, this.detail);
    this.header.hidden = !title;
    /** @type {PlotElement} */
    this.plot = element("div", "", "plot");
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", title);
    this.plot.addEventListener("pointerdown", () => context.hold(this), true);
    this.legend = element("div", "", "legend");
    this.legend.hidden = true;
    this.element = container("article", `chart ${className}`.trim(), this.header, this.plot, this.legend);
    context.add(this);
  }

  /**
   * Show another picture; null for none.
   * @param {Picture | null} picture
   */
  show(picture) {
    this.picture = picture;
    this.version += 1;
    this.context.redraw([this]);
  }

  /**
   * @param {string} title
   * @param {string} [detail]
   */
  setTitle(title, detail = "") {
    setText(this.heading, title);
    setText(this.detail, detail);
    this.header.hidden = !title;
  }

  /**
   * Name the colours of curves: [{ name, color }].
   * @param {{ name: string, color: number }[]} curves
   */
  setLegend(curves) {
    this.legend.hidden = curves.length < 2;
    this.legend.replaceChildren(
      ...curves.map(({ name, color }) => {
        const line = element("i");
        line.style.setProperty("color", `var(--series-${(color % 8) + 1})`);
        return container("span", "", line, name);
      }),
    );
  }

  /** @param {MaybePlotly} plotly */
  draw(plotly) {
    if (!this.picture) return;
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    const { colors } = this.context;
    const shown = JSON.stringify([this.version, width, height, colors.text, plotly === null]);
    if (!width || shown === this.shown) return;
    this.shown = shown;
    this.drawnWidth = width;
    const { traces, layout, label } = this.picture({ width, height, colors });
    this.plot.setAttribute("aria-label", label);
    if (!plotly) {
      this.plot.replaceChildren(
        element(
          "p",
          "This picture needs the chart library: `pip install 'train-sentinel[web]'` on the server.",
          "soft",
        ),
      );
      this.isBuilt = true;
      return;
    }
    if (!this.isBuilt) this.plot.replaceChildren();
    plotDraw(plotly, this.plot, traces, layout);
    if (!this.isListening) this.onBuild(plotly, this.plot);
    this.isListening = true;
    this.isBuilt = true;
  }

  /** @param {MaybePlotly} plotly */
  destroy(plotly) {
    if (plotly && this.isBuilt) plotly.purge(this.plot);
    this.isBuilt = false;
    this.isListening = false;
    this.shown = "";
  }
}
