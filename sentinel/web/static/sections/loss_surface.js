// Loss surfaces: a contour or a surface that turns, with the path of the weights, for each step.
import {
  button,
  container,
  element,
  errorMessage,
  formatCount,
  formatDuration,
  formatNumber,
  isNumber,
  setAttributes,
  setText,
} from "../dom.js";
import { chartContext } from "../charts/context.js";
import { PlotChart } from "../charts/plot_chart.js";
import {
  directionLength,
  directionText,
  hasLogarithm,
  lowestPoint,
  readSurface,
  surfaceLimits,
  surfacePicture,
} from "../charts/surface.js";
import { chartNumber } from "../charts/units.js";
import { InsightChoice, insightFacts, loadInsight } from "./insight_items.js";

const SURFACE_CAMERA = { eye: { x: 1.25, y: -1.25, z: 0.95 }, center: { x: 0, y: 0, z: -0.12 } };
const SURFACE_TURN = Math.PI / 8;

/** @type {boolean | undefined} */
let surfaceGl;

// Whether this browser draws in three dimensions.
export function hasWebGl() {
  if (surfaceGl === undefined) {
    try {
      const canvas = document.createElement("canvas");
      const gl = canvas.getContext("webgl2") ?? canvas.getContext("webgl");
      surfaceGl = Boolean(gl);
      // A browser has few of them.
      gl?.getExtension("WEBGL_lose_context")?.loseContext();
    } catch {
      surfaceGl = false;
    }
  }
  return surfaceGl;
}

// How surfaces are shown. `onChange()` is called with each choice.
export class SurfaceControls {
  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    this.is3d = false;
    this.chosen = { isLog: false, hasPoints: false, hasArrows: true, hasOwnScale: false };
    /** @type {Surface[]} */
    this.surfaces = [];
    this.limits = surfaceLimits([]);
    this.isPrinting = false;
    /**
     * @param {string} text
     * @param {string} title
     * @param {"isLog" | "hasPoints" | "hasArrows" | "hasOwnScale"} name
     */
    const toggle = (text, title, name) =>
      setAttributes(
        button(
          text,
          () => {
            this.chosen[name] = !this.chosen[name];
            this.#change();
          },
          "small",
        ),
        { title },
      );
    /**
     * @param {string} text
     * @param {boolean} is3d
     */
    const picture = (text, is3d) =>
      button(text, () => {
        this.is3d = is3d;
        this.#change();
      });
    this.flat = picture("Contour", false);
    this.solid = picture("3-D", true);
    this.kinds = setAttributes(container("span", "segmented", this.flat, this.solid), {
      role: "group",
      "aria-label": "Picture",
    });
    this.log = toggle("Log", "", "isLog");
    this.points = toggle(
      "Points",
      "The points at which the loss was evaluated; between them it is interpolated",
      "hasPoints",
    );
    this.arrows = toggle("Arrows", "The negative gradient in this plane", "hasArrows");
    this.own = toggle(
      "Own scales",
      "Each surface with the colours of its own values; otherwise all share one scale",
      "hasOwnScale",
    );
    this.missing = element("p", "This browser has no WebGL, so surfaces are shown as contours.", "soft");
    this.missing.hidden = true;
    this.buttons = [this.kinds, this.log, this.points, this.arrows, this.own];
    // Paper shows the contour.
    addEventListener("beforeprint", () => this.#print(true), true);
    addEventListener("afterprint", () => this.#print(false), true);
  }

  #change() {
    this.show(this.surfaces);
    this.onChange();
  }

  /** @param {boolean} isPrinting */
  #print(isPrinting) {
    if (!this.is3d || this.isPrinting === isPrinting) return;
    this.isPrinting = isPrinting;
    this.onChange();
  }

  // Whether the surfaces are drawn in three dimensions now.
  get isSolid() {
    return this.is3d && !this.is1d && !this.isPrinting && hasWebGl();
  }

  get is1d() {
    return this.surfaces.length > 0 && this.surfaces.every((surface) => surface.is1d);
  }

  /**
   * What `surfacePicture` needs for one of these surfaces.
   * @param {Surface} surface
   * @returns {SurfaceOptions}
   */
  options(surface) {
    const { hasPoints, hasArrows, isLog, hasOwnScale } = this.chosen;
    const limits = hasOwnScale ? surfaceLimits([surface]) : this.limits;
    return { hasPoints, hasArrows, isLog: isLog && this.surfaces.every(hasLogarithm), is3d: this.isSolid, limits };
  }

  /**
   * Offer what these surfaces have.
   * @param {Surface[]} surfaces
   */
  show(surfaces) {
    this.surfaces = surfaces;
    this.limits = surfaceLimits(surfaces);
    const isSolid = this.is3d && !this.is1d && hasWebGl();
    this.flat.setAttribute("aria-pressed", String(!isSolid));
    this.solid.setAttribute("aria-pressed", String(isSolid));
    this.solid.disabled = !hasWebGl();
    this.missing.hidden = hasWebGl() || this.is1d;
    this.kinds.hidden = this.is1d;
    this.own.hidden = surfaces.length < 2;
    const canLog = surfaces.every(hasLogarithm);
    this.log.disabled = !canLog;
    this.log.title = canLog ? "Logarithmic colours" : "The loss has values of 0 or less, which have no logarithm";
    const { isLog, hasPoints, hasArrows, hasOwnScale } = this.chosen;
    this.log.setAttribute("aria-pressed", String(isLog && canLog));
    this.points.setAttribute("aria-pressed", String(hasPoints));
    this.arrows.setAttribute("aria-pressed", String(hasArrows));
    this.own.setAttribute("aria-pressed", String(hasOwnScale));
    this.points.hidden = !surfaces.some(({ points }) => points.length);
    this.arrows.hidden = !surfaces.some(({ arrows, is1d }) => arrows.length && !is1d);
  }
}

// A surface that turns: its camera stays as the user left it. `onTurn(camera)` reports that.
export class SurfaceChart extends PlotChart {
  /**
   * @param {ChartContext} context
   * @param {{ title?: string, onTurn?: (camera: Camera) => void }} [options]
   */
  constructor(context, { title = "", onTurn = () => {} } = {}) {
    super(context, { title, className: "surface" });
    /** @type {Camera} */
    this.camera = SURFACE_CAMERA;
    this.onTurn = onTurn;
    /** @type {Plotly | null} */
    this.plotly = null;
    /** @type {{ surface: Surface, options: SurfaceOptions } | null} */
    this.last = null;
    this.onBuild = (/** @type {Plotly} */ plotly, /** @type {PlotElement} */ plot) => {
      this.plotly = plotly;
      plot.on?.("plotly_relayout", (changes) => {
        if (!changes["scene.camera"]) return;
        this.camera = changes["scene.camera"];
        this.onTurn(this.camera);
      });
      plot.on?.("plotly_doubleclick", () => {
        if (this.last) this.showSurface(this.last.surface, this.last.options);
      });
    };
  }

  /**
   * @param {Surface} surface
   * @param {SurfaceOptions} options
   */
  showSurface(surface, options) {
    this.last = { surface, options };
    this.element.classList.toggle("solid", options.is3d);
    this.show(surfacePicture(surface, { ...options, camera: this.camera }));
  }

  /**
   * Turn by steps of 22.5 degrees; 0 goes back to the start.
   * @param {number} steps
   */
  turn(steps) {
    const { eye } = this.camera;
    const [radius, angle] = [Math.hypot(eye.x, eye.y), Math.atan2(eye.y, eye.x) + steps * SURFACE_TURN];
    this.setCamera(
      steps
        ? { ...this.camera, eye: { x: radius * Math.cos(angle), y: radius * Math.sin(angle), z: eye.z } }
        : SURFACE_CAMERA,
    );
  }

  /** @param {Camera} camera */
  setCamera(camera) {
    this.camera = camera;
    if (this.isBuilt && this.last?.options.is3d) this.plotly?.relayout(this.plot, { "scene.camera": camera });
  }
}

/**
 * Buttons that turn surfaces, for those who do not drag them.
 * @param {(steps: number) => void} turn
 */
export function turnButtons(turn) {
  return container(
    "span",
    "row",
    button("Turn left", () => turn(1), "small"),
    button("Turn right", () => turn(-1), "small"),
    button("Reset", () => turn(0), "small"),
  );
}

/**
 * `refresh()` shows the note again. Returns { element, show(items), note() }.
 * @param {InsightPage} page
 * @param {() => void} refresh
 * @returns {InsightView}
 */
export function createLossSurfaces(page, refresh) {
  const view = new SurfaceView(page, refresh);
  return { element: view.element, show: (items) => view.choice.set(items), note: () => view.note };
}

class SurfaceView {
  /**
   * @param {InsightPage} page
   * @param {() => void} refresh
   */
  constructor(page, refresh) {
    this.page = page;
    this.refresh = refresh;
    this.note = "";
    /** @type {Surface | null} */
    this.surface = null;
    this.choice = new InsightChoice("Surface", (item) => this.#load(item));
    this.chart = new SurfaceChart(chartContext(page));
    this.controls = new SurfaceControls(() => this.#draw());
    this.turns = turnButtons((steps) => this.chart.turn(steps));
    this.turns.hidden = true;
    this.summary = element("p", "", "summary");
    this.problem = element("p", "", "bad");
    this.facts = element("div", "", "insight-side");
    this.body = container("div", "insight-body", this.chart.element, this.facts);
    const { buttons, missing } = this.controls;
    this.element = container(
      "div",
      "",
      container("div", "row insight-controls", this.choice.element, ...buttons, this.turns),
      missing,
      this.problem,
      this.summary,
      this.body,
    );
  }

  /** @param {InsightItem} item */
  async #load(item) {
    this.item = item;
    if (!this.surface) setText(this.summary, "Loading…");
    try {
      const { data } = await loadInsight(this.page.source, item);
      if (item !== this.item) return;
      this.surface = readSurface(data);
      setText(this.problem, "");
    } catch (error) {
      if (item !== this.item) return;
      this.surface = null;
      setText(this.problem, errorMessage(error));
    }
    this.problem.hidden = this.surface !== null;
    this.body.hidden = this.surface === null;
    this.controls.show(this.surface ? [this.surface] : []);
    this.#draw();
  }

  #draw() {
    const { surface, controls } = this;
    this.turns.hidden = !controls.isSolid;
    if (!surface) {
      setText(this.summary, "");
      this.note = "cannot be read";
      this.refresh();
      return;
    }
    this.chart.showSurface(surface, controls.options(surface));
    setText(this.summary, surfaceSummary(surface));
    this.facts.replaceChildren(surfaceFacts(surface), ...surface.notes.map((note) => element("p", note, "soft")));
    this.note = [
      isNumber(surface.step) && `step ${formatNumber(surface.step)}`,
      surface.evaluations !== null && formatCount(surface.evaluations, "evaluation"),
    ]
      .filter(Boolean)
      .join(", ");
    this.refresh();
  }
}

/**
 * The surface in one sentence.
 * @param {Surface} surface
 */
export function surfaceSummary(surface) {
  const { center } = surface;
  const lowest = lowestPoint(surface);
  if (!lowest) return "No evaluation of the loss was finite.";
  const at = isNumber(surface.step) ? ` of step ${formatNumber(surface.step)}` : "";
  const place = surface.is1d ? chartNumber(lowest.x) : `(${chartNumber(lowest.x)}, ${chartNumber(lowest.y)})`;
  const parts = [];
  if (center?.loss !== null && center) {
    const gain = center.loss - lowest.loss;
    parts.push(`The loss at the weights${at} is ${chartNumber(center.loss)}`);
    parts.push(
      gain > 1e-3 * Math.abs(center.loss)
        ? `; the lowest one here is ${chartNumber(lowest.loss)} at ${place}.`
        : ", and nothing here is lower.",
    );
  } else parts.push(`The lowest loss here is ${chartNumber(lowest.loss)} at ${place}.`);
  if (surface.holes)
    parts.push(
      ` ${formatCount(surface.holes, "point")} of the picture ${surface.holes === 1 ? "is" : "are"} NaN or infinite.`,
    );
  return parts.join("");
}

/**
 * @param {Surface} surface
 * @param {number} index
 */
function directionFact(surface, index) {
  const direction = surface.directions[index];
  return [directionText(direction), directionLength(direction, surface)].filter(Boolean).join("; the coordinate ");
}

/** @param {Surface} surface */
function surfaceFacts(surface) {
  const { sharpness } = surface;
  const eigenvalue =
    Array.isArray(sharpness?.eigenvalues) && isNumber(sharpness.eigenvalues[0]) ? sharpness.eigenvalues[0] : null;
  const limit = isNumber(sharpness?.limit) ? `, limit of stability ${chartNumber(sharpness.limit)}` : "";
  const rate = isNumber(sharpness?.learning_rate)
    ? ` at a learning rate of ${chartNumber(sharpness.learning_rate)}`
    : "";
  const isOver = isNumber(sharpness?.ratio) && sharpness.ratio > 1;
  /** @param {string} kind */
  const count = (kind) => surface.features.filter((each) => each.kind === kind).length;
  const kinds = ["minimum", "saddle", "maximum"]
    .filter(count)
    .map(
      (kind) => `${count(kind)} ${count(kind) === 1 ? kind : kind === "saddle" ? "saddles" : kind.replace("um", "a")}`,
    );
  return insightFacts([
    ["Horizontal", directionFact(surface, 0)],
    ["Vertical", surface.is1d ? "" : directionFact(surface, 1)],
    [
      sharpness?.preconditioned ? "Preconditioned sharpness" : "Sharpness",
      eigenvalue !== null && element("span", `${chartNumber(eigenvalue)}${limit}${rate}`, isOver ? "bad" : ""),
    ],
    [
      "Marks",
      [
        surface.center && "orange: the weights",
        surface.path.length > 0 && "line: the path of the weights, from the open circle",
        ...kinds,
      ]
        .filter(Boolean)
        .join("; "),
    ],
    [
      "Evaluations",
      surface.evaluations === null
        ? ""
        : formatNumber(surface.evaluations) +
          (surface.seconds === null ? "" : ` in ${formatDuration(surface.seconds)}`),
    ],
    [
      "Finer parts",
      surface.regions
        .map(
          ({ x, y }) =>
            `${chartNumber(x[0])} to ${chartNumber(x[x.length - 1])}, ` +
            `${chartNumber(y[0])} to ${chartNumber(y[y.length - 1])}`,
        )
        .join("; "),
    ],
    [
      "Error between points",
      surface.estimatedError === null
        ? ""
        : `about ${chartNumber(Number(surface.estimatedError.toPrecision(2)))} at most; ` +
          "marks are evaluated, or named as interpolated",
    ],
    [
      "Parameters",
      surface.parameters === null
        ? surface.selection
        : `${formatNumber(surface.parameters)}${surface.selection ? `: ${surface.selection}` : ""}`,
    ],
    ["Model", surface.model],
  ]);
}
