// The points of signals that charts show: an overview of the whole run, and detail of the shown range.
import { axisSignal, joinByStep, stepsInRange } from "./horizontal_axis.js";

const SERIES_FIELDS = ["x", "mean", "min", "max", "rank_min", "rank_max", "worst_rank", "attempt"];
// A chart has about a point for each pixel: spikes stay visible as the range of a point.
const SERIES_POINTS = 320;
const SERIES_MAX_POINTS = 2 * SERIES_POINTS;
// How far detail reaches beyond the shown range, so that lines go on to the edge.
const SERIES_MARGIN = 0.02;
const SERIES_NAMES_PER_REQUEST = 40;

// The points of a reply, all fields filled.
export function seriesPoints(reply) {
  const fill = (values, other) => values || reply.x.map(other);
  return {
    x: reply.x,
    mean: reply.mean,
    min: reply.min || reply.mean,
    max: reply.max || reply.mean,
    rank_min: fill(reply.rank_min, () => null),
    rank_max: fill(reply.rank_max, () => null),
    worst_rank: fill(reply.worst_rank, () => null),
    attempt: fill(reply.attempt, () => 0),
    weight: reply.x.map(() => Math.max(1, (reply.count || 0) / reply.x.length)),
    bad: [...(reply.bad || [])],
    isRaw: Boolean(reply.is_raw),
    count: reply.count ?? reply.x.length,
    // The newest value itself: the last point may be the mean of several.
    last: seriesLast(reply),
  };
}

// Points merged into buckets of equal width, when live rows have made them too many.
function seriesThin(points) {
  const first = points.x[0];
  const width = (points.x[points.x.length - 1] - first) / SERIES_POINTS || 1;
  const thin = { ...points, isRaw: false, weight: [] };
  for (const field of SERIES_FIELDS) thin[field] = [];
  const lower = (a, b) => (a === null ? b : b === null ? a : Math.min(a, b));
  const higher = (a, b) => (a === null ? b : b === null ? a : Math.max(a, b));
  let bucket = null;
  for (let index = 0; index < points.x.length; index += 1) {
    const last = thin.x.length - 1;
    const own = `${points.attempt[index]}:${Math.floor((points.x[index] - first) / width)}`;
    if (own !== bucket) {
      for (const field of SERIES_FIELDS) thin[field].push(points[field][index]);
      thin.weight.push(points.weight[index]);
      bucket = own;
      continue;
    }
    const weight = thin.weight[last] + points.weight[index];
    if (
      points.rank_max[index] !== null &&
      higher(thin.rank_max[last], points.rank_max[index]) !== thin.rank_max[last]
    ) {
      thin.worst_rank[last] = points.worst_rank[index];
    }
    if (points.mean[index] !== null) {
      thin.mean[last] =
        thin.mean[last] === null
          ? points.mean[index]
          : thin.mean[last] + ((points.mean[index] - thin.mean[last]) * points.weight[index]) / weight;
    }
    thin.min[last] = lower(thin.min[last], points.min[index]);
    thin.max[last] = higher(thin.max[last], points.max[index]);
    thin.rank_min[last] = lower(thin.rank_min[last], points.rank_min[index]);
    thin.rank_max[last] = higher(thin.rank_max[last], points.rank_max[index]);
    thin.weight[last] = weight;
  }
  return thin;
}

// Exponential smoothing. The weight is that of a point in a chart of 320 points, whatever their
// real number, so that a curve looks the same with more detail. Each attempt starts anew. Over the
// values of another signal, the distance of points is that of their steps.
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

// The newest value of a reply, NaN if it is not finite.
export function seriesLast({ x, mean, bad = [], last }) {
  if (last !== undefined) return last ?? NaN;
  return seriesEndsBad({ x, bad }) ? NaN : (mean.findLast((value) => value !== null) ?? NaN);
}

// Whether the newest value is not finite.
function seriesEndsBad({ x, bad }) {
  return bad.length > 0 && bad[bad.length - 1] >= x[x.length - 1];
}

// A function of an index: whether a later attempt did the same steps again.
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

export class SeriesStore {
  // `onMissingAxis` is called if the run has no values for an axis, with the one that it has. A source
  // with curves of several runs has axisCurve(signal, name): the curve of a signal in the run of a curve.
  constructor(source, onMissingAxis) {
    this.source = source;
    this.onMissingAxis = onMissingAxis;
    this.fetchCount = 0;
    this.clear("step");
  }

  // Forget all points, and show others over this axis.
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
    this.generation = (this.generation || 0) + 1;
  }

  // Whether the points of a signal for `range` are here. Points that are records need no detail.
  has(name, range) {
    return this.#needed([name]).every((each) => this.#hasStored(each, range && this.storedRange(range)));
  }

  // The points of a signal for `range`, null for all of the run; undefined if they are not here.
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

  // A range of the axis on that by which points are stored: the steps at which a signal is in it.
  storedRange(range) {
    if (this.axisSignal === null) return range;
    const key = range.join();
    if (!this.storedRanges.has(key)) {
      const found = [...this.axisCurves]
        .map((name) => this.overview.get(name))
        .filter(Boolean)
        .map((positions) => stepsInRange(positions, range))
        .filter(Boolean);
      if (!found.length) return null;
      this.storedRanges.set(key, [
        Math.min(...found.map(([start]) => start)),
        Math.max(...found.map(([, end]) => end)),
      ]);
    }
    return this.storedRanges.get(key);
  }

  // The curve whose values are the positions of another one.
  axisCurve(name) {
    return this.source.axisCurve?.(this.axisSignal, name) ?? this.axisSignal;
  }

  // Fetch what is missing of the signals; whether they are still wanted, unless the axis has changed
  // meanwhile.
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

  // The signals without which these cannot be shown.
  #needed(names) {
    if (this.axisSignal === null) return names;
    const axes = names.map((name) => this.axisCurve(name));
    for (const axis of axes) this.axisCurves.add(axis);
    return [...new Set([...axes, ...names])];
  }

  #hasStored(name, stored) {
    const overview = this.overview.get(name);
    if (!overview || !stored || overview.isRaw) return Boolean(overview);
    const detail = this.detail.get(name);
    return Boolean(detail) && detail.start === stored[0] && detail.end === stored[1];
  }

  #stored(name, range) {
    const detail = this.detail.get(name);
    const stored = range && detail && this.storedRange(range);
    return stored && detail.start <= stored[0] && detail.end >= stored[1] ? detail.points : this.overview.get(name);
  }

  async #fetchAll(names, range, generation) {
    const axis = this.storedAxis;
    for (let first = 0; first < names.length; first += SERIES_NAMES_PER_REQUEST) {
      const some = names.slice(first, first + SERIES_NAMES_PER_REQUEST);
      const query = new URLSearchParams([
        ...some.map((name) => ["signals", name]),
        ["points", SERIES_POINTS],
        ["axis", axis],
      ]);
      if (range) {
        const margin = (range[1] - range[0]) * SERIES_MARGIN;
        query.set("from", range[0] - margin);
        query.set("to", range[1] + margin);
      }
      const reply = await this.source.getJson(`api/series?${query}`);
      if (generation !== this.generation) return;
      if (reply.axis !== axis) {
        this.onMissingAxis(axis, reply.axis);
        return;
      }
      if (!range && some.includes(this.axisSignal) && !reply.series[this.axisSignal]) {
        this.onMissingAxis(this.axisSignal, axis);
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

  #addOverview(name, points) {
    this.overview.set(name, points);
    this.#extend(name, points.x, points.mean);
    // Rows that came while the answer was under way may be newer than it.
    for (const rows of this.lateRows) this.#appendTo(name, points, rows);
  }

  // The range of the axis, with these points of a signal.
  #extend(name, positions, values) {
    if (this.axisSignal !== null && !this.axisCurves.has(name)) return;
    for (const x of this.axisSignal === null ? positions : values) {
      if (typeof x !== "number") continue;
      if (!this.domain) this.domain = [x, x];
      else if (x < this.domain[0]) this.domain = [x, this.domain[1]];
      else if (x > this.domain[1]) this.domain = [this.domain[0], x];
    }
  }

  // The training of an attempt, as "training 2 of 3"; empty if the run has only one.
  trainingText(attempt) {
    const count = this.trainings.length;
    const number = this.trainings.filter((first) => first <= attempt).length;
    return count > 1 ? `training ${number} of ${count}` : "";
  }

  // Append live rows; the names of signals that have new points.
  append(rows) {
    if (!rows[this.storedAxis]) return [];
    if (this.fetchCount) this.lateRows.push(rows);
    this.trainings = rows.trainings || this.trainings;
    this.revision += 1;
    return Object.keys(rows.values).filter((name) => {
      const points = this.overview.get(name);
      if (!points || !this.#appendTo(name, points, rows)) return false;
      const detail = this.detail.get(name);
      if (detail && rows[this.storedAxis].at(-1) <= detail.end) this.#appendValues(detail.points, rows, name);
      if (points.x.length > SERIES_MAX_POINTS) this.overview.set(name, seriesThin(points));
      return true;
    });
  }

  // Append the rows to the points of one signal; whether they have any of it.
  #appendTo(name, points, rows) {
    const values = rows.values[name];
    if (!values) return false;
    const bad = (rows.bad?.[name] || [])
      .map((place) => rows[this.storedAxis][place])
      .filter((x) => !points.bad.includes(x));
    points.bad.push(...bad);
    points.bad.splice(0, points.bad.length - SERIES_MAX_POINTS);
    const { length } = points.x;
    this.#appendValues(points, rows, name);
    const isLonger = points.x.length > length;
    this.#extend(name, points.x.slice(length), points.mean.slice(length));
    const newest = values.findLastIndex((value) => value !== null);
    const isBad = bad.length > 0 && rows.bad[name].at(-1) >= newest;
    if (isBad || (isLonger && newest >= 0)) points.last = isBad ? NaN : values[newest];
    return isLonger || bad.length > 0;
  }

  #appendValues(points, rows, name) {
    const { attempt: attempts, ranks, [this.storedAxis]: positions } = rows;
    rows.values[name].forEach((value, index) => {
      const [x, attempt] = [positions[index], attempts ? attempts[index] : 0];
      const last = points.x.length - 1;
      if (value === null || x === null) return;
      // The first rows of a connection can be among the points that were fetched.
      if (last >= 0 && (attempt < points.attempt[last] || (attempt === points.attempt[last] && x <= points.x[last])))
        return;
      for (const field of ["mean", "min", "max"]) points[field].push(value);
      for (const field of ["rank_min", "rank_max", "worst_rank"])
        points[field].push(ranks?.[name]?.[field][index] ?? null);
      points.x.push(x);
      points.attempt.push(attempt);
      points.weight.push(1);
      points.count += 1;
    });
  }
}
