"""KL blow-up: the policy moves away from its reference model at an accelerating rate.

Formula
    shifted  = the baseline of the KL, a power of the sum of the learning rates fitted to the run so
               far, has `sure` nats of evidence that the KL departs upwards, the median of the last
               8 is `ratio` times the expected value or more, and 10 % above 0.01 nats per
               token and every earlier one
    far      = the median of the last 5 KL values exceeds `limit`, and twice the KL at the start or
               `severe`
    single   = one value is ten times the second highest of the 64 before, and over a tenth of
               `limit`
    leaping  = in a run without a reference, the median of the last 5 values of the divergence of
               one update exceeds 0.3 nats per token
    Finding  = shifted, or shifted with `noted` nats, or far, or single, or leaping
    info     = shifted with less than `sure` nats; far with a reward that has gained and kept its
               gain; single, as such values usually are back in the next record
    critical = shifted, and that median of 8 is ten times the expected value, or that median of 5
               exceeds `severe` and twice the KL at the start

Units
    `limit`, `severe`: nats per token, as `kl_ref`. For a KL summed over the tokens of a sequence,
    as determined by its key, framework and algorithm, they are multiplied by 50. A KL that its
    trainer clamps is critical if it is almost at the clamp. `ratio`: plain factor. `noted`, `sure`:
    nats of evidence.

Source
    A policy that moves steadily drifts as a power of the distance travelled, at most ballistically,
    KL ~ S^2, while a blow-up grows exponentially. The common rule "three times the baseline"
    assumes a constant KL, which no healthy run has. Evidence: sentinel.stats.baseline.

Defaults
    `sure` 8 and `noted` 5 are calibrated on 2.5 million points of healthy synthetic runs (single
    values up to 60 times too high). On 2 million others 3 and 66 runs reached them, 0.015 (0.005 to
    0.044) and 0.33 per 10,000 points; over all 5.2 million of both and a third set 0.035 reached
    `sure`. On the 2 million a KL that doubles every 60, 20 or 5 points reaches it in 86, 100 and
    100 % of 200 runs, after a median of 89, 44 and 18 points; from point 30 on, every 5 points,
    after 31. `ratio` 1.3 is far less than such a KL has risen by then. `limit` is ten times the KL
    at the end of healthy runs, 0.035 to 0.1 nats per token; `severe` is where trainers that clamp
    the KL clamp it. A value ten times the second highest is seen 2 times in 10,000 such points.
    Updates are aimed at 0.01 to 0.03 nats; 0.3 is ten times that: 2 of 40 public logs exceed it,
    one of which loses its reward soon after.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from sentinel.model.finding import CLEAR, Clear, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import STEP, Record
from sentinel.signals.kl import KlKind, get_kl_kind
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.rolling_highest import RollingHighest
from sentinel.stats.shared_baselines import SharedBaselines

FLOOR = 0.01
"""KL in nats per token below which it is of no importance, however fast it grows."""

PER_SEQUENCE = 50.0
"""Factor on limits for a KL that is summed over a sequence: twice a healthy sum of 20 nats."""

SEVERE_RATIO, SINGLE_RATIO = 10.0, 10.0
"""Factor on the expected KL that is critical, and on the second highest for a single value."""

STEP_LIMIT = 0.3
"""KL of one update, in nats per token, that leaves the trust region of a policy."""

CLAMPED_SHARE = 0.95
"""Fraction of the clamp of a trainer from which on the KL counts as clamped."""

MEDIAN_WINDOW = 5
"""Values in the median compared with the limits; two outliers do not change it."""

SINGLE_LIMIT_SHARE = 0.1
"""Share of the limit below which a single value is of no importance."""


@dataclass
class KlBlowup(DetectorDefaults):
    """Evaluates `kl_ref` against its expected trajectory and limits; without it, `kl_old`."""

    ratio: float = 1.3
    limit: float = 1.0
    severe: float = 10.0
    noted: float = 5.0
    sure: float = 8.0

    reads = frozenset({"kl_old"})
    events = frozenset({STEP})
    steps_with = frozenset({"kl_ref", "kl_old"})
    baselines = frozenset({"kl_ref"})
    signal = "kl_ref"
    remedy = (
        "Resume from the checkpoint before the onset. Raise {KL coefficient} to 0.02 or, if it is "
        "higher, to 2 to 5 times its value, or halve {learning rate}. If only single samples have "
        "a high KL, check padding and stop masks."
    )

    def __post_init__(self) -> None:
        self._departure = LevelDeparture("kl_ref", 1, self.ratio, self.noted)
        self._highest = RollingHighest(rank=2)
        self._recent = KOfN(MEDIAN_WINDOW)
        self._start_kl = inf
        self._bound = self.limit
        self._has_reference = False
        self._updates = KOfN(MEDIAN_WINDOW)

    def update(self, record: Record, baselines: SharedBaselines) -> DetectorOutput:
        """Evaluate one KL value."""
        if "kl_ref" not in record.values:
            return None if self._has_reference else self._evaluate_update(record)
        self._has_reference = True
        kl, departure = record.values["kl_ref"], self._departure
        kind = get_kl_kind(record.attributes, "kl_ref")
        unit = PER_SEQUENCE if kind.is_summed else 1.0
        if not isfinite(kl) or not departure.add(max(kl, FLOOR * unit), baselines):
            return None
        if not self._recent.is_full:
            self._start_kl = min(self._start_kl, kl)
        # A distilled policy may start far from its reference, but not beyond any other.
        self._bound = max(self.limit * unit, min(2 * self._start_kl, self.severe * unit))
        is_over = self._recent.add(kl, self._bound, record.step) or False
        highest = self._highest.level
        self._highest.add(kl)
        if departure.has_departed or is_over:
            has_reward = baselines.reward_gain.has_kept_gain
            return self._finding(kind, unit, is_over=is_over, has_reward=has_reward)
        if highest is not None and kl > SINGLE_LIMIT_SHARE * self._bound:
            highest = max(highest, FLOOR * unit)
            if kl > SINGLE_RATIO * highest:
                return self._single_finding(kl, highest, kind, record.step)
        threshold = departure.threshold
        return None if threshold is None else Clear(min(threshold, self._bound))

    def _evaluate_update(self, record: Record) -> DetectorOutput:
        """Evaluate the divergence of one update, of a policy without a reference."""
        kl, kind = record.values["kl_old"], get_kl_kind(record.attributes, "kl_old")
        if not isfinite(kl):
            return None
        limit = STEP_LIMIT * (PER_SEQUENCE if kind.is_summed else 1.0)
        is_over = self._updates.add(kl, limit, record.step)
        if not is_over:
            return None if is_over is None else CLEAR
        level = self._updates.median
        return Finding(
            summary=f"KL of a single update is {level:.3g} {kind.unit} (median of the last 5); the "
            f"limit is {limit:.3g}.",
            evidence={"kl_old_nats": kl, "median_kl_old_nats": level, "kl_old_nats_limit": limit},
            onset_step=self._updates.onset,
            signal="kl_old",
            remedy="Lower {number of updates per batch}, or halve {learning rate}.",
        )

    def _finding(self, kind: KlKind, unit: float, *, is_over: bool, has_reward: bool) -> Finding:
        departure, level = self._departure, self._recent.median
        expected, is_shifted = departure.expected_level or level, departure.has_departed
        severe = max(2 * self._start_kl, min(self.severe * unit, CLAMPED_SHARE * kind.cap))
        is_severe = is_over and level > severe
        text = f"{level:.3g} {kind.unit} (median of the last 5); the limit is {self._bound:.3g}"
        if is_shifted:
            level = departure.level
            is_severe |= level > SEVERE_RATIO * expected
            text = f"{level:.3g} {kind.unit} (median of the last 8); its trend predicts "
            text += f"{expected:.3g}"
        is_sure = is_shifted and departure.evidence >= self.sure
        severity = None if is_sure or (is_over and not has_reward) else Severity.INFO
        return Finding(
            summary=f"KL to the reference is {text}.",
            evidence={
                "kl_nats": self._recent.values[-1],
                "median_kl_nats": level,
                "kl_nats_expected": expected,
                "kl_nats_limit": self._bound,
            }
            | ({"kl_kind": kind.describe()} if kind.is_known else {}),
            severity=Severity.CRITICAL if is_severe else severity,
            onset_step=departure.onset_range[0] if is_shifted else self._recent.onset,
            onset_range=departure.onset_range if is_shifted else None,
            threshold=departure.threshold,
        )

    def _single_finding(self, kl: float, highest: float, kind: KlKind, step: int) -> Finding:
        return Finding(
            summary=f"KL to the reference jumped to {kl:.3g} {kind.unit} in one value; the second "
            f"highest of the 64 before was {highest:.3g}.",
            evidence={"kl_nats": kl, "second_highest_kl_nats": highest},
            severity=Severity.INFO,
            onset_step=step,
            onset_range=(step, step),
        )
