// The horizontal axis of charts: steps, time, tokens, or the values of a signal at the same steps.

const AXIS_SIGNAL_PREFIX = "signal:";
// What a point has beside its position, one value for each point.
/** @type {("mean" | "min" | "max" | "rank_min" | "rank_max" | "worst_rank" | "attempt")[]} */
const AXIS_POINT_FIELDS = ["mean", "min", "max", "rank_min", "rank_max", "worst_rank", "attempt"];

/**
 * The signal of an axis such as `signal:kl_ref`; null for steps, time and tokens.
 * @param {string} axis
 */
export function axisSignal(axis) {
  return axis.startsWith(AXIS_SIGNAL_PREFIX) ? axis.slice(AXIS_SIGNAL_PREFIX.length) : null;
}

/** @param {string} name */
export function axisOfSignal(name) {
  return AXIS_SIGNAL_PREFIX + name;
}

/**
 * The points of a curve at the values that another signal has at the same steps. Both are answers of
 * `api/series` over steps, or points of them. Points at whose steps the other signal has no finite
 * value are left out. `step` has the steps of the points that are left; the order is that of the
 * curve, so `x` may go back.
 * @param {Points} curve
 * @param {SeriesAnswer | Points} positions
 * @returns {Points}
 */
export function joinByStep(curve, positions) {
  const valueAt = axisLookup(positions, curve.x.length);
  /** @type {number[]} */
  const kept = [];
  /** @type {number[]} */
  const x = [];
  curve.x.forEach((step, index) => {
    const value = valueAt(step, curve.attempt?.[index] ?? 0);
    if (value === null) return;
    kept.push(index);
    x.push(value);
  });
  const joined = { ...curve, x, step: kept.map((index) => curve.x[index]) };
  for (const field of AXIS_POINT_FIELDS)
    if (curve[field]) Object.assign(joined, { [field]: kept.map((index) => curve[field][index]) });
  joined.bad = (curve.bad ?? []).map((step) => valueAt(step, null)).filter((value) => value !== null);
  return joined;
}

/**
 * The first and the last step at which the values of an axis can be in `range`; null if none is. A
 * point that is the mean of several records covers the steps since the one before it.
 * @param {SeriesAnswer | Points} positions
 * @param {Span} range
 * @returns {Span | null}
 */
export function stepsInRange({ x, mean, min = mean, max = mean, attempt }, [start, end]) {
  /** @type {Span | null} */
  let found = null;
  for (const [index, step] of x.entries()) {
    const [lowest, highest] = [min[index], max[index]];
    if (lowest === null || highest === null || lowest > end || highest < start) continue;
    const first = index > 0 && attempt?.[index] === attempt?.[index - 1] ? x[index - 1] : step;
    found = found ? [Math.min(found[0], first), Math.max(found[1], step)] : [first, step];
  }
  return found;
}

/**
 * Whether a curve goes back on its axis, as one over the values of a signal can.
 * @param {Points} points
 */
export function goesBack({ x, attempt }) {
  return x.some((value, index) => index > 0 && value < x[index - 1] && attempt?.[index] === attempt?.[index - 1]);
}

/**
 * A function of a step and an attempt, null for any: the value at the step, or null. A point that is
 * the mean of several records holds for the steps since the one before it, which curves of fewer
 * points need, such as those of evaluations.
 * @param {AxisPositions} positions
 * @param {number} curvePoints
 */
function axisLookup({ x, mean, attempt, is_raw: isAnswerRaw, isRaw = isAnswerRaw }, curvePoints) {
  /** @type {Map<string, number | null>} */
  const valueOf = new Map();
  /** @type {Map<number | null, number[]>} */
  const stepsOf = new Map([[null, [...x].sort((a, b) => a - b)]]);
  x.forEach((step, index) => {
    const own = attempt?.[index] ?? 0;
    for (const key of [own, null]) valueOf.set(`${key} ${step}`, mean[index]);
    const steps = stepsOf.get(own);
    if (steps) steps.push(step);
    else stepsOf.set(own, [step]);
  });
  const isCovering = !isRaw && x.length > curvePoints;
  return (/** @type {number} */ step, /** @type {number | null} */ key) => {
    const exact = valueOf.get(`${key} ${step}`);
    if (exact !== undefined || !isCovering) return exact ?? null;
    const steps = stepsOf.get(key) ?? [];
    return valueOf.get(`${key} ${steps[axisFirstAbove(steps, step)]}`) ?? null;
  };
}

/**
 * The index of the first of sorted numbers that is above a value.
 * @param {number[]} numbers
 * @param {number} value
 */
function axisFirstAbove(numbers, value) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}
