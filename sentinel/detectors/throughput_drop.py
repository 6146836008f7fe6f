"""Throughput drop: the run processes less per hour than before.

Formula
    cost     = 1 / tokens per second, or step time / tokens of the step; if the run logs neither,
               1 / samples per second, unless it trains a policy; step time / completion length; or
               the step time alone
    Finding  = a baseline without a trend has 8 nats of evidence that ln(cost) is above its recent
               level by more than ln `ratio`; if the cost is that of a step, also, the slow steps
               have taken 5 seconds
    warning  = also, the cost is that of a token or a sample, and the median of the last 16 is over
               `costly` times the usual cost; or the finding has lasted for 32 records, three
               quarters of the last 16 are over half of `ratio`, and the run samples no completions:
               those that become shorter or longer change the cost of a token as well
    warning  = or the cost is that of a step, the run samples no completions, the finding has lasted
               for 32 records and a minute of steps, and three quarters of the last 16 are over
               `severe` times the usual cost

Units
    `ratio`, `costly`, `severe`: plain factors. `skip`: records after a start that are not
    evaluated. Steps with a save or an evaluation are not evaluated.

Source
    Heat, network contention, a slow loader, memory that is nearly full: a run slows permanently and
    nothing fails. A single step takes longer if it has more work, so the time of a step alone gives
    a warning only for a lasting loss as of half of the hardware. Evidence: sentinel.stats.baseline.

Defaults
    `ratio` 1.1 and `costly` 1.5: a loss of a third of the hardware is a warning at once, of a tenth
    when it lasts. `severe` 2: longer sequences double the time of a step only where their length is
    changed on purpose. On 300 synthetic healthy runs (391,562 points of heavy-tailed,
    autocorrelated noise of 1 to 15 % that drifts by 8 %, with undeclared evaluations) there was 1
    info finding and no warning. Runs that slow by factors of 1.15, 1.3, 1.7 and 3 have a warning
    within 100 points in 40, 50, 50 and 50 of 50. In synthetic logs, 24 a size, samples per second
    that fall from 100 to 70, 50 and 20 are found in at least 70, 95 and 100 %. `skip` 10 excludes
    compilation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, log
from statistics import median

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import EVAL, PHASE, SAVE, START, STEP, Record
from sentinel.stats.baseline import level_baseline

MIN_SIGMA, LEAST_COST = 0.01, 1e-30
"""Least noise of ln(cost), and cost in seconds below which a rate is none."""

MEDIAN_WINDOW = 16
"""Records in the median that counts as the present cost."""

LASTING_RECORDS = 32
"""Records for which a slowdown lasts that is no passing contention."""

NOTICEABLE_SECONDS, LASTING_SECONDS = 5.0, 60.0
"""Time that slow steps take before a finding and before a warning.

A run that takes several steps a second is slow for a few of them whenever another program starts.
"""

INTERRUPTING_EVENTS = frozenset({SAVE, EVAL, PHASE})

TIME_SIGNALS = ("step_time", "data_wait", "generation_time", "weight_sync_time")

COST_KINDS = {
    "token": ("time per token", "token"),
    "sample": ("time per sample", "sample"),
    "length": ("step time per token of completion length", "completion_token"),
    "step": ("step time", "step"),
}
"""Name and unit of each cost, the most precise first."""
UNIT_COSTS = ("token", "sample")
"""Costs of a unit of work, which change only with the speed of the run."""

POLICY_SIGNALS = frozenset({"reward", "policy_loss", "completion_length"})
"""Signals of a run whose samples are episodes or completions, of which some take longer."""
KIND_PRIORITY = ("", *reversed(COST_KINDS))


@dataclass
class ThroughputDrop(DetectorDefaults):
    """Evaluates the time per token or per step."""

    ratio: float = 1.1
    costly: float = 1.5
    severe: float = 2.0
    skip: int = 10

    steps_with = frozenset({
        "completion_length", "samples_per_second", "step_time", "tokens_per_second",
        "tokens_per_second_per_gpu",
    })  # fmt: skip
    signal = "step_time"
    severity = Severity.INFO
    remedy = (
        "Compare the times of data loading, sampling and weight transfer with those before, and "
        "find the slowest rank. Check whether GPUs are throttled (`nvidia-smi -q -d "
        "PERFORMANCE`). Check the nodes for other programs, slow storage and memory that is "
        "nearly full."
    )

    def __post_init__(self) -> None:
        self._kind = ""
        self._count = 0
        self._was_interrupted = False
        self._samples_completions = False
        self._reset_levels()

    def _reset_levels(self) -> None:
        self._baseline = level_baseline(1, log(self.ratio), MIN_SIGMA, least=LEAST_COST)
        self._recent: deque[tuple[int, float]] = deque(maxlen=MEDIAN_WINDOW)
        """Steps and costs."""
        self._slow_count = 0
        self._slow_seconds = 0.0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the cost of one step."""
        if record.event is START:
            self.__post_init__()
        if record.event is not STEP:
            self._was_interrupted |= record.event in INTERRUPTING_EVENTS
            return None
        self._samples_completions |= "completion_length" in record.values
        kind, cost = _step_cost(record)
        if not self._select_kind(kind):
            return None
        is_interrupted, self._was_interrupted = self._was_interrupted, False
        self._count += 1
        if is_interrupted or self._count <= self.skip or not LEAST_COST < cost < 1e30:
            return None
        return self._evaluate(cost, record)

    def _select_kind(self, kind: str) -> bool:
        """Whether this is the evaluated kind, which is the most precise one seen so far."""
        if kind != self._kind and KIND_PRIORITY.index(kind) > KIND_PRIORITY.index(self._kind):
            self._kind = kind
            self._reset_levels()
        return bool(kind) and kind == self._kind

    def _evaluate(self, cost: float, record: Record) -> DetectorOutput:
        self._recent.append((record.step, cost))
        self._baseline.update(cost, self._count, record.step)
        rise = self._baseline.rise
        if rise.is_alarmed:
            self._slow_count += 1
            self._slow_seconds += cost
        else:
            self._slow_count, self._slow_seconds = 0, 0.0
        usual = self._baseline.expected(rise) if rise.is_alarmed else None
        if usual is None:
            return CLEAR if rise.is_armed else None
        if self._kind == "step" and self._slow_seconds < NOTICEABLE_SECONDS:
            return None
        onset = min(rise.onset, record.step)
        # The window may begin before the onset; the summary reports the values since.
        since_onset = median(cost for step, cost in self._recent if step >= onset)
        name, unit = COST_KINDS[self._kind]
        evidence: dict[str, float | str] = {
            "ratio_to_usual": since_onset / usual,
            f"usual_time_seconds_per_{unit}": usual,
            f"median_time_seconds_per_{unit}": since_onset,
        }
        evidence |= {
            f"{signal}_seconds": record.values[signal]
            for signal in TIME_SIGNALS
            if signal in record.values
        }
        return Finding(
            summary=_summary(name, onset, since_onset / usual, self.ratio),
            evidence=evidence,
            severity=Severity.WARNING if self._is_warning(usual) else None,
            onset_step=onset,
        )

    def _is_warning(self, usual: float) -> bool:
        is_lasting = self._slow_count >= LASTING_RECORDS and not self._samples_completions
        ratios = sorted(cost / usual for _, cost in self._recent)
        times, lower_quartile = median(ratios), ratios[min(len(ratios) - 1, MEDIAN_WINDOW // 4)]
        if self._kind not in UNIT_COSTS:
            is_long = self._slow_seconds >= LASTING_SECONDS
            return self._kind == "step" and is_lasting and is_long and lower_quartile > self.severe
        is_slow = times > self.ratio and lower_quartile > self.ratio**0.5
        return times > self.costly or (is_lasting and is_slow)


def _summary(cost: str, onset: int, times: float, ratio: float) -> str:
    if times > ratio:
        return f"The run has slowed since step {onset}: the {cost} is {times:.3g} times as long."
    return (
        f"The run slowed at step {onset} and is recovering: the {cost} is {times:.3g} times its "
        "usual value."
    )


def _step_cost(record: Record) -> tuple[str, float]:
    """Kind of the cost and the cost in seconds; ("", 0.0) if no cost is known."""
    values = record.values
    for name in ("tokens_per_second_per_gpu", "tokens_per_second"):
        if name in values and 0.0 < (speed := values[name]) < inf:
            return "token", 1.0 / speed
    time = values.get("step_time", 0.0)
    has_time = 0.0 < time < inf
    if has_time and "tokens" in values and 0.0 < (tokens := values["tokens"]) < inf:
        return "token", time / tokens
    if "samples_per_second" in values and POLICY_SIGNALS.isdisjoint(values):
        speed = values["samples_per_second"]
        if 0.0 < speed < inf:
            return "sample", 1.0 / speed
    if has_time and "completion_length" in values:
        length = values["completion_length"]
        if 0.0 < length < inf:
            return "length", time / length
    return ("step", time) if has_time else ("", 0.0)
