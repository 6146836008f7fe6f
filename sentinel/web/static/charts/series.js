// The points of signals that charts show: an overview of the whole run, and detail of the shown range.
import { axisSignal, joinByStep, stepsInRange } from "./horizontal_axis.js";

// A chart has about a point for each pixel: spikes stay visible as the range of a point.
const SERIES_POINTS = 320;
const SERIES_MAX_POINTS = 2 * SERIES_POINTS;
// How far detail reaches beyond the shown range, so that lines go on to the edge.
const SERIES_MARGIN = 0.02;
const SERIES_NAMES_PER_REQUEST = 40;

/**
 * The points of a reply, all fields filled.
 * @param {SeriesAnswer} reply
 * @returns {Points}
 */
export function seriesPoints(reply) {
  const none = reply.x.map(() => null);
  return {
    x: reply.x,
    mean: reply.mean,
    min: reply.min || reply.mean,
    max: reply.max || reply.mean,
    rank_min: reply.rank_min || [...none],
    rank_max: reply.rank_max || [...none],
    worst_rank: reply.worst_rank || [...none],
    attempt: reply.attempt || reply.x.map(() => 0),
    fetched: reply.x.length,
    bad: [...(reply.bad || [])],
    isRaw: Boolean(reply.is_raw),
    count: reply.count ?? reply.x.length,
    // The newest value itself: the last point may be the mean of several.
    last: seriesLast(reply),
  };
}

/**
 * Exponential smoothing. The weight is that of a point in a chart of 320 points, whatever their
 * real number, so that a curve looks the same with more detail. Each attempt starts anew. Over the
 * values of another signal, the distance of points is that of their steps.
 * @param {Points} points
 * @param {number} smoothing
 * @param {number} span
 * @param {Values} [values]
 */
export function seriesSmooth(points, smoothing, span, values = points.mean) {
  const x = points.step ?? points.x;
  let sum = 0;
  let weight = 0;
  return values.map((value, index) => {
    if (index && points.attempt[index] !== points.attempt[index - 1]) sum = weight = 0;
    if (value === null) return null;
    const distance = index ? Math.abs(x[index] - x[index - 1]) : 0;
    const kept = smoothing ** Math.min(SERIES_POINTS, Math.max(0.05, (distance / (span || 1)) * SERIES_POINTS));
    sum = kept * sum + (1 - kept) * value;
    weight = kept * weight + (1 - kept);
    return sum / weight;
  });
}

/**
 * The newest value of a reply, NaN if it is not finite.
 * @param {SeriesEnd} curve
 * @returns {number}
 */
export function seriesLast({ x, mean, bad = [], last }) {
  if (last !== undefined) return last ?? NaN;
  return seriesEndsBad({ x, bad }) ? NaN : (mean.findLast((value) => value !== null) ?? NaN);
}

/**
 * Whether the newest value is not finite.
 * @param {{ x: number[], bad: number[] }} curve
 */
function seriesEndsBad({ x, bad }) {
  return bad.length > 0 && bad[bad.length - 1] >= x[x.length - 1];
}

/**
 * A function of an index: whether a later attempt did the same steps again.
 * @param {Points} points
 * @returns {(index: number) => boolean}
 */
export function seriesRepeated(points) {
  const last = points.x.length - 1;
  if (last < 0 || points.attempt[0] === points.attempt[last]) return () => false;
  const firstLater = new Array(points.x.length);
  let [later, own] = [Infinity, Infinity];
  for (let index = last; index >= 0; index -= 1) {
    if (index < last && points.attempt[index] !== points.attempt[index + 1])
      [later, own] = [Math.min(later, own), Infinity];
    firstLater[index] = later;
    own = Math.min(own, points.x[index]);
  }
  return (index) => points.x[index] >= firstLater[index];
}

/**
 * Where rows are on an axis; undefined for one that they do not have.
 * @param {Rows} rows
 * @param {string} axis
 * @returns {Values | undefined}
 */
function rowPositions(rows, axis) {
  return axis === "step" ? rows.step : axis === "time" ? rows.time : axis === "tokens" ? rows.tokens : undefined;
}

export class SeriesStore {
  axis = "step";
  /** @type {string | null} */
  axisSignal = null;
  storedAxis = "step";
  /** @type {Set<string>} */
  axisCurves = new Set();
  /** @type {Map<string, Points>} */
  overview = new Map();
  /** @type {Map<string, { start: number, end: number, points: Points }>} */
  detail = new Map();
  /** @type {Map<string, { stored: Points, positions: Points, revision: number, points: Points }>} */
  joined = new Map();
  revision = 0;
  /** @type {Map<string, Span>} */
  storedRanges = new Map();
  /** @type {Rows[]} */
  lateRows = [];
  /** @type {Span | null} */
  domain = null;
  trainings = [0];
  generation = 0;

  /**
   * `onMissingAxis` is called if the run has no values for an axis, with the one that it has. A source
   * with curves of several runs has axisCurve(signal, name): the curve of a signal in the run of a curve.
   * @param {Source} source
   * @param {(missing: string, axis: string) => void} onMissingAxis
   */
  constructor(source, onMissingAxis) {
    this.source = source;
    this.onMissingAxis = onMissingAxis;
    this.fetchCount = 0;
  }

  /**
   * Forget all points, and show others over this axis.
   * @param {string} axis
   */
  clear(axis) {
    this.axis = axis;
    // Points are kept by step if the axis is a signal, and joined when they are shown.
    this.axisSignal = axisSignal(axis);
    this.storedAxis = this.axisSignal === null ? axis : "step";
    this.axisCurves = new Set();
    this.overview = new Map();
    this.detail = new Map();
    this.joined = new Map();
    this.revision = 0;
    this.storedRanges = new Map();
    this.lateRows = [];
    this.domain = null;
    this.trainings = [0];
    this.generation += 1;
  }

  /**
   * Whether the points of a signal for `range` are here. Points that are records need no detail.
   * @param {string} name
   * @param {Span | null} range
   */
  has(name, range) {
    return this.#needed([name]).every((each) => this.#hasStored(each, range && this.storedRange(range)));
  }

  /**
   * The points of a signal for `range`, null for all of the run; undefined if they are not here.
   * @param {string} name
   * @param {Span | null} range
   * @returns {Points | undefined}
   */
  points(name, range) {
    const stored = this.#stored(name, range);
    if (this.axisSignal === null || !stored) return stored;
    const positions = this.#stored(this.axisCurve(name), range);
    if (!positions) return undefined;
    const known = this.joined.get(name);
    if (known?.stored === stored && known.positions === positions && known.revision === this.revision)
      return known.points;
    const points = joinByStep(stored, positions);
    this.joined.set(name, { stored, positions, revision: this.revision, points });
    return points;
  }

  /**
   * A range of the axis on that by which points are stored: the steps at which a signal is in it.
   * @param {Span} range
   * @returns {Span | null}
   */
  storedRange(range) {
    if (this.axisSignal === null) return range;
    const key = range.join();
    const known = this.storedRanges.get(key);
    if (known) return known;
    const found = [...this.axisCurves]
      .map((name) => this.overview.get(name))
      .filter((positions) => positions !== undefined)
      .map((positions) => stepsInRange(positions, range))
      .filter((steps) => steps !== null);
    if (!found.length) return null;
    /** @type {Span} */
    const stored = [Math.min(...found.map(([start]) => start)), Math.max(...found.map(([, end]) => end))];
    this.storedRanges.set(key, stored);
    return stored;
  }

  /**
   * The curve whose values are the positions of another one.
   * @param {string} name
   * @returns {string}
   */
  axisCurve(name) {
    const signal = this.axisSignal;
    return signal === null ? name : (this.source.axisCurve?.(signal, name) ?? signal);
  }

  /**
   * Fetch what is missing of the signals; whether they are still wanted, unless the axis has changed
   * meanwhile.
   * @param {string[]} names
   * @param {Span | null} range
   */
  async fetch(names, range) {
    const { generation } = this;
    this.fetchCount += 1;
    try {
      const needed = this.#needed(names);
      const axes = [...this.axisCurves].filter((name) => !this.overview.has(name));
      await this.#fetchAll(axes, null, generation);
      if (generation !== this.generation) return false;
      const missing = needed.filter((name) => !this.overview.has(name));
      const stored = range && this.storedRange(range);
      const zoomed = stored ? needed.filter((name) => !missing.includes(name) && !this.#hasStored(name, stored)) : [];
      await Promise.all([this.#fetchAll(missing, null, generation), this.#fetchAll(zoomed, stored, generation)]);
      return generation === this.generation;
    } finally {
      this.fetchCount -= 1;
      if (!this.fetchCount) this.lateRows = [];
    }
  }

  /**
   * The signals without which these cannot be shown.
   * @param {string[]} names
   */
  #needed(names) {
    if (this.axisSignal === null) return names;
    const axes = names.map((name) => this.axisCurve(name));
    for (const axis of axes) this.axisCurves.add(axis);
    return [...new Set([...axes, ...names])];
  }

  /**
   * @param {string} name
   * @param {Span | null} stored
   */
  #hasStored(name, stored) {
    const overview = this.overview.get(name);
    if (!overview || !stored || overview.isRaw) return Boolean(overview);
    const detail = this.detail.get(name);
    return detail !== undefined && detail.start === stored[0] && detail.end === stored[1];
  }

  /**
   * @param {string} name
   * @param {Span | null} range
   */
  #stored(name, range) {
    const detail = this.detail.get(name);
    const stored = range && detail && this.storedRange(range);
    return detail && stored && detail.start <= stored[0] && detail.end >= stored[1]
      ? detail.points
      : this.overview.get(name);
  }

  /**
   * @param {string[]} names
   * @param {Span | null} range
   * @param {number} generation
   */
  async #fetchAll(names, range, generation) {
    const axis = this.storedAxis;
    for (let first = 0; first < names.length; first += SERIES_NAMES_PER_REQUEST) {
      const some = names.slice(first, first + SERIES_NAMES_PER_REQUEST);
      const query = new URLSearchParams([
        ...some.map((name) => ["signals", name]),
        ["points", String(SERIES_POINTS)],
        ["axis", axis],
      ]);
      if (range) {
        const margin = (range[1] - range[0]) * SERIES_MARGIN;
        query.set("from", String(range[0] - margin));
        query.set("to", String(range[1] + margin));
      }
      /** @type {SeriesAnswers} */
      const reply = await this.source.getJson(`api/series?${query}`);
      if (generation !== this.generation) return;
      if (reply.axis !== axis) {
        this.onMissingAxis(axis, reply.axis);
        return;
      }
      const signal = this.axisSignal;
      if (!range && signal !== null && some.includes(signal) && !reply.series[signal]) {
        this.onMissingAxis(signal, axis);
        return;
      }
      this.trainings = reply.trainings || this.trainings;
      this.revision += 1;
      for (const name of some) {
        const series = reply.series[name];
        if (range && series) this.detail.set(name, { start: range[0], end: range[1], points: seriesPoints(series) });
        else if (!range) this.#addOverview(name, seriesPoints(series ?? { x: [], mean: [], min: [], max: [] }));
      }
    }
  }

  /**
   * @param {string} name
   * @param {Points} points
   */
  #addOverview(name, points) {
    this.overview.set(name, points);
    this.#extend(name, points.x, points.mean);
    // Rows that came while the answer was under way may be newer than it.
    for (const rows of this.lateRows) this.#appendTo(name, points, rows);
  }

  /**
   * The range of the axis, with these points of a signal.
   * @param {string} name
   * @param {number[]} positions
   * @param {Values} values
   */
  #extend(name, positions, values) {
    if (this.axisSignal !== null && !this.axisCurves.has(name)) return;
    for (const x of this.axisSignal === null ? positions : values) {
      if (typeof x !== "number") continue;
      if (!this.domain) this.domain = [x, x];
      else if (x < this.domain[0]) this.domain = [x, this.domain[1]];
      else if (x > this.domain[1]) this.domain = [this.domain[0], x];
    }
  }

  /**
   * The training of an attempt, as "training 2 of 3"; empty if the run has only one.
   * @param {number} attempt
   */
  trainingText(attempt) {
    const count = this.trainings.length;
    const number = this.trainings.filter((first) => first <= attempt).length;
    return count > 1 ? `training ${number} of ${count}` : "";
  }

  /**
   * Append live rows; the names of signals that have new points.
   * @param {Rows} rows
   */
  append(rows) {
    const positions = rowPositions(rows, this.storedAxis);
    if (!positions) return [];
    if (this.fetchCount) this.lateRows.push(rows);
    this.trainings = rows.trainings || this.trainings;
    this.revision += 1;
    const changed = Object.keys(rows.values).filter((name) => {
      const points = this.overview.get(name);
      if (!points || !this.#appendTo(name, points, rows)) return false;
      const detail = this.detail.get(name);
      if (detail && (positions.at(-1) ?? Infinity) <= detail.end) this.#appendValues(detail.points, rows, name);
      return true;
    });
    const long = changed.filter((name) => {
      const points = this.overview.get(name);
      return points && points.x.length > Math.max(SERIES_MAX_POINTS, points.fetched + SERIES_POINTS);
    });
    if (long.length && !this.fetchCount) this.#fetchAgain(long);
    return changed;
  }

  /**
   * Replace the points of signals, which live rows have made too many, by fewer. They stay meanwhile.
   * @param {string[]} names
   */
  async #fetchAgain(names) {
    this.fetchCount += 1;
    try {
      await this.#fetchAll(names, null, this.generation);
    } catch {
      // The next rows try again.
    } finally {
      this.fetchCount -= 1;
      if (!this.fetchCount) this.lateRows = [];
    }
  }

  /**
   * Append the rows to the points of one signal; whether they have any of it.
   * @param {string} name
   * @param {Points} points
   * @param {Rows} rows
   */
  #appendTo(name, points, rows) {
    const values = rows.values[name];
    if (!values) return false;
    const positions = rowPositions(rows, this.storedAxis) ?? [];
    const badPlaces = rows.bad?.[name] ?? [];
    const bad = badPlaces
      .map((place) => positions[place])
      .filter((x) => x !== null)
      .filter((x) => !points.bad.includes(x));
    points.bad.push(...bad);
    points.bad.splice(0, points.bad.length - SERIES_MAX_POINTS);
    const { length } = points.x;
    this.#appendValues(points, rows, name);
    const isLonger = points.x.length > length;
    this.#extend(name, points.x.slice(length), points.mean.slice(length));
    const newest = values.findLastIndex((value) => value !== null);
    const isBad = bad.length > 0 && badPlaces[badPlaces.length - 1] >= newest;
    if (isBad || (isLonger && newest >= 0)) points.last = isBad ? NaN : (values[newest] ?? NaN);
    return isLonger || bad.length > 0;
  }

  /**
   * @param {Points} points
   * @param {Rows} rows
   * @param {string} name
   */
  #appendValues(points, rows, name) {
    const { attempt: attempts, ranks } = rows;
    const positions = rowPositions(rows, this.storedAxis) ?? [];
    rows.values[name].forEach((value, index) => {
      const [x, attempt] = [positions[index], attempts ? attempts[index] : 0];
      const last = points.x.length - 1;
      if (value === null || x === null) return;
      // The first rows of a connection can be among the points that were fetched.
      if (last >= 0 && (attempt < points.attempt[last] || (attempt === points.attempt[last] && x <= points.x[last])))
        return;
      for (const field of [points.mean, points.min, points.max]) field.push(value);
      points.rank_min.push(ranks?.[name]?.rank_min[index] ?? null);
      points.rank_max.push(ranks?.[name]?.rank_max[index] ?? null);
      points.worst_rank.push(ranks?.[name]?.worst_rank[index] ?? null);
      points.x.push(x);
      points.attempt.push(attempt);
      points.count += 1;
    });
  }
}
