// Loss surfaces: a contour or a surface that turns, with the path of the weights, for each step.
import { button, container, element, formatCount, formatDuration, formatNumber, isNumber, setAttributes, setText } from "../dom.js";
import { chartContext } from "../charts/context.js";
import { PlotChart } from "../charts/plot_chart.js";
import { directionText, hasLogarithm, lowestPoint, readSurface, surfaceLimits, surfacePicture } from "../charts/surface.js";
import { chartNumber } from "../charts/units.js";
import { InsightChoice, insightFacts, loadInsight } from "./insight_items.js";

const SURFACE_EYE = { x: 1.3, y: -1.3, z: 0.9 };
const SURFACE_TURN = Math.PI / 8;

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

// `refresh()` shows the note again. Returns { element, show(items), note() }.
export function createLossSurfaces(page, refresh) {
  const view = new SurfaceView(page, refresh);
  return { element: view.element, show: (items) => view.choice.set(items), note: () => view.note };
}

class SurfaceView {
  constructor(page, refresh) {
    this.page = page;
    this.refresh = refresh;
    this.note = "";
    this.surface = null;
    this.options = { is3d: false, isLog: false, hasPoints: false, hasArrows: true, camera: { eye: SURFACE_EYE }, limits: [0, 1] };
    this.choice = new InsightChoice("Surface", (item) => this.#load(item));
    this.chart = new PlotChart(chartContext(page), { className: "surface", onBuild: (plotly, plot) => this.#listen(plotly, plot) });
    this.#makeControls();
    this.summary = element("p", "", "summary");
    this.problem = element("p", "", "bad");
    this.facts = element("div", "", "insight-side");
    this.body = container("div", "insight-body", this.chart.element, this.facts);
    this.element = container("div", "", this.controls, this.missing, this.problem, this.summary, this.body);
    this.#showControls();
    // Paper shows the contour.
    addEventListener("beforeprint", () => this.#print(true), true);
    addEventListener("afterprint", () => this.#print(false), true);
  }

  #makeControls() {
    const toggle = (text, title, name) => setAttributes(button(text, () => this.#set({ [name]: !this.options[name] }), "small"), { title });
    this.flat = button("Contour", () => this.#set({ is3d: false }));
    this.solid = button("3-D", () => this.#set({ is3d: true }));
    this.kinds = setAttributes(container("span", "segmented", this.flat, this.solid), { role: "group", "aria-label": "Picture" });
    this.log = toggle("Log", "Logarithmic colours", "isLog");
    this.points = toggle("Points", "The points at which the loss was evaluated; between them it is interpolated", "hasPoints");
    this.arrows = toggle("Arrows", "The negative gradient in this plane", "hasArrows");
    this.turns = container("span", "row", button("Turn left", () => this.#turn(1), "small"), button("Turn right", () => this.#turn(-1), "small"),
      button("Reset", () => this.#turn(0), "small"));
    this.low = element("span");
    this.high = element("span");
    this.scale = container("span", "scale soft number", this.low, element("i"), this.high);
    this.missing = element("p", "This browser has no WebGL, so the surface is shown as a contour.", "soft");
    this.missing.hidden = hasWebGl();
    this.controls = container("div", "row insight-controls", this.choice.element, this.kinds, this.log, this.points, this.arrows, this.turns, this.scale);
  }

  async #load(item) {
    const isNew = item.id !== this.item?.id;
    this.item = item;
    if (isNew && !this.surface) setText(this.summary, "Loading…");
    try {
      const { data } = await loadInsight(this.page.source, item);
      if (item !== this.item) return;
      this.surface = readSurface(data);
      setText(this.problem, "");
    } catch (error) {
      if (item !== this.item) return;
      this.surface = null;
      setText(this.problem, error.message);
    }
    this.problem.hidden = !this.problem.textContent;
    this.#draw();
  }

  #set(changes) {
    Object.assign(this.options, changes);
    this.#draw();
  }

  #draw() {
    this.#showControls();
    const { surface } = this;
    this.body.hidden = !surface;
    if (!surface) {
      this.summary.textContent = "";
      this.note = "cannot be read";
      this.refresh();
      return;
    }
    const isLog = this.options.isLog && hasLogarithm(surface);
    const limits = surfaceLimits([surface]);
    const is3d = this.options.is3d && hasWebGl() && !surface.is1d && !this.isPrinting;
    this.chart.element.classList.toggle("solid", is3d);
    this.chart.show(surfacePicture(surface, { ...this.options, is3d, isLog, limits }));
    setText(this.low, chartNumber(limits[0]));
    setText(this.high, `${limits[1] < surface.highest ? "≥ " : ""}${chartNumber(limits[1])}`);
    const text = surfaceSummary(surface);
    setText(this.summary, text);
    this.facts.replaceChildren(surfaceFacts(surface), ...surface.notes.map((note) => element("p", note, "soft")));
    this.note = [isNumber(surface.step) && `step ${formatNumber(surface.step)}`, surface.evaluations !== null && formatCount(surface.evaluations, "evaluation")]
      .filter(Boolean).join(", ");
    this.refresh();
  }

  #showControls() {
    const { is3d, isLog, hasPoints, hasArrows } = this.options;
    const { surface } = this;
    const isSolid = is3d && hasWebGl() && !surface?.is1d;
    this.flat.setAttribute("aria-pressed", String(!isSolid));
    this.solid.setAttribute("aria-pressed", String(isSolid));
    this.solid.disabled = !hasWebGl();
    this.kinds.hidden = Boolean(surface?.is1d);
    this.turns.hidden = !isSolid;
    this.scale.hidden = !surface || surface.is1d;
    const canLog = !surface || hasLogarithm(surface);
    this.log.disabled = !canLog;
    this.log.title = canLog ? "Logarithmic colours" : "The loss has values of 0 or less, which have no logarithm";
    for (const [control, isOn] of [[this.log, isLog && canLog], [this.points, hasPoints], [this.arrows, hasArrows]]) control.setAttribute("aria-pressed", String(isOn));
    this.points.hidden = Boolean(surface && !surface.points.length);
    this.arrows.hidden = Boolean(surface && (surface.is1d || !surface.arrows.length));
  }

  // The camera stays as the user left it.
  #listen(plotly, plot) {
    plot.on("plotly_relayout", (changes) => {
      if (changes["scene.camera"]) this.options.camera = changes["scene.camera"];
    });
    plot.on("plotly_doubleclick", () => this.#draw());
    this.turnTo = (camera) => plotly.relayout(plot, { "scene.camera": camera });
  }

  #turn(direction) {
    const { eye } = this.options.camera;
    const [radius, angle] = [Math.hypot(eye.x, eye.y), Math.atan2(eye.y, eye.x) + direction * SURFACE_TURN];
    const turned = direction ? { ...this.options.camera, eye: { x: radius * Math.cos(angle), y: radius * Math.sin(angle), z: eye.z } } : { eye: SURFACE_EYE };
    this.options.camera = turned;
    this.turnTo?.(turned);
  }

  #print(isPrinting) {
    if (!this.options.is3d || this.isPrinting === isPrinting) return;
    this.isPrinting = isPrinting;
    this.#draw();
  }
}

// The surface in one sentence.
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
    parts.push(gain > 1e-3 * Math.abs(center.loss) ? `; the lowest one here is ${chartNumber(lowest.loss)} at ${place}.` : ", and nothing here is lower.");
  } else parts.push(`The lowest loss here is ${chartNumber(lowest.loss)} at ${place}.`);
  if (surface.holes) parts.push(` ${formatCount(surface.holes, "point")} of the picture ${surface.holes === 1 ? "is" : "are"} NaN or infinite.`);
  return parts.join("");
}

function surfaceFacts(surface) {
  const { sharpness } = surface;
  const eigenvalue = Array.isArray(sharpness?.eigenvalues) && isNumber(sharpness.eigenvalues[0]) ? sharpness.eigenvalues[0] : null;
  const limit = isNumber(sharpness?.limit) ? `, limit of stability ${chartNumber(sharpness.limit)}` : "";
  const rate = isNumber(sharpness?.learning_rate) ? ` at a learning rate of ${chartNumber(sharpness.learning_rate)}` : "";
  const isOver = isNumber(sharpness?.ratio) && sharpness.ratio > 1;
  const count = (kind) => surface.features.filter((each) => each.kind === kind).length;
  const kinds = ["minimum", "saddle", "maximum"].filter(count).map((kind) => `${count(kind)} ${count(kind) === 1 ? kind : kind === "saddle" ? "saddles" : kind.replace("um", "a")}`);
  return insightFacts([
    ["Horizontal", directionText(surface.directions[0])],
    ["Vertical", surface.is1d ? "" : directionText(surface.directions[1])],
    ["Sharpness", eigenvalue !== null && element("span", `${chartNumber(eigenvalue)}${limit}${rate}`, isOver ? "bad" : "")],
    ["Marks", [surface.center && "orange: the weights", surface.path.length > 0 && "line: the path of the weights, from the open circle", ...kinds].filter(Boolean).join("; ")],
    ["Evaluations", surface.evaluations === null ? "" : `${formatNumber(surface.evaluations)}${surface.seconds === null ? "" : ` in ${formatDuration(surface.seconds)}`}`],
    ["Parameters", surface.parameters === null ? surface.selection : `${formatNumber(surface.parameters)}${surface.selection ? `: ${surface.selection}` : ""}`],
    ["Model", surface.model],
  ]);
}
