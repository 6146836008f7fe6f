"""Gradient explosion: the gradient norm has risen far above its level and stays there.

Formula
    highest  = the third highest of 64 norms without the last 8, from the eighth norm on. A step
               without a learning signal counts as 0: its norm is 0, or no group has a spread of
               rewards, so that only the gradient of the KL remains
    shifted  = a baseline without a trend has 8 nats of evidence that ln(norm) is above its recent
               level by more than ln `ratio`, and the median of the last 8 has been above every
               earlier median after the warm-up, the first 5 to 10 % of the norms
    in a row = 3 or more norms in a row exceed `ratio` times the highest before the first of them
               and every norm of its window; the product of these factors is that of three norms at
               `single_ratio` times it; or, in a run with a loss and without reward and KL, 2 or
               more of the first 64 norms in a row, from the fifth on, exceed `witness_ratio` times
               all before the first of them
    extreme  = a single norm exceeds `extreme_ratio` times highest, and is three times any earlier
               norm that was out of its range
    together = a single norm exceeds `single_ratio` times highest, and in the same record a KL or
               the loss exceeds `witness_ratio` times its own third highest
    early    = in the first 16 norms, one exceeds `early_ratio` times all before, and in the same
               record the loss exceeds 100 times all before, and 10; it lasts as long as norms
               exceed `witness_ratio` times all before
    Finding  = shifted, in a row, extreme, together or early
    info     = a single norm exceeds `single_ratio` times highest, and while that is open, the
               largest norm is shown; or, in a run without a reward, where the model learns:
               shifted or in a row, and the loss has not risen since, and has fallen by 5 % and two
               standard errors since the norm began to rise, or is memorised; or extreme, and the
               loss is memorised; or, of two networks trained against each other, shifted or in a
               row, and the median of the last 3 is at most `extreme_ratio` times `single_ratio`
               times its level before
    memorised = the mean of the last 16 losses is below a fifth of that of the first 8

Units
    The unit of `grad_norm` is irrelevant; `ratio`, `single_ratio`, `extreme_ratio`, `witness_ratio`
    and `early_ratio` are plain factors. The norm is that before clipping, so clipping does not
    lower it. A KL below 0.01 nats is no witness.

Source
    Evidence: sentinel.stats.baseline. Norms of policy training have two modes, of steps with and
    without a spread of rewards, so a single norm is compared with the highest few of its window
    instead of a median and a spread. Most incidents of KL and gradient in real logs recover by
    themselves. A fresh head, with weights near 0, has a small gradient that grows as it learns.

Defaults
    On 200 healthy synthetic runs (237,000 points, norms up to 20 times their level) there is no
    warning; on 200 whose norms have two modes (55,000 points) there are 2, of norms 160 and 300
    times the third highest. A norm that rises 20-fold in 60 steps, 100-fold in 20 or 1000-fold in 5
    is found in 89, 100 and 100 of 100 runs, after a median of 38, 12 and 4 points; a single norm
    100 to 600 times the 90 % quantile among two modes in 198 of 200. `ratio` 3 is more than
    schedules and changes of data cause. `single_ratio` 10 is a common definition of an explosion.
    Log-normal norms with a standard deviation of up to 1.8 exceed `extreme_ratio` 50 once in 50,000
    points. On 616 other healthy runs, of SFT and RL (574,000 points), there is no warning; on 308
    of a fresh reward head (89,000 points) there are 4. `witness_ratio` 5 is seldom exceeded by a KL
    alone, and hardly ever together with the norm. The norm of a recurrent network whose gradient
    grows by 1.4 at each of 60 positions rises from 1e5 to 2e11 in its first step, and its loss from
    150 to 1e9, before both are NaN. `early_ratio` 1000 is far below; in 121 public logs no norm
    among the first 16 exceeds 38 times all before. Of 342 public logs,
    3 have 2 of the first 64 norms in a row, from the fifth on, that are `witness_ratio` times all
    before; all 3 exploded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf, log
from statistics import median

from sentinel.model.finding import Clear, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.loss_kind import has_no_advantage, is_adversarial
from sentinel.stats.baseline import level_baseline
from sentinel.stats.loss_at_rise import LossAtRise, RiseLosses
from sentinel.stats.new_extreme import NewExtreme
from sentinel.stats.rolling_highest import RollingHighest

MIN_SIGMA, LEAST_NORM = 0.1, 1e-300
"""Least noise of ln(norm), and least norm."""

MIN_NORMS, LAG_NORMS = 5, 8
"""Norms before a high one, and the newest of them, which a gradual rise has raised already."""

TRANSIENT_SHARE = 0.1
"""Share of the norms, from the first one on, whose levels are those of a warm-up."""

MIN_IN_A_ROW = 3
"""Consecutive high norms at which a rise may be found."""

YOUNG_NORMS, MIN_BEFORE_YOUNG, MIN_YOUNG_IN_A_ROW = 64, 4, 2
"""First norms, of which so few in a row explode, and the least number of norms before them."""

MAX_IN_A_ROW = 64
"""Consecutive high norms after which the level before them is too old for a comparison."""

NEW_OUTLIER_FACTOR = 3.0
"""Factor on an earlier outlier that had no consequences; below it the next is no news."""

EPISODE_RECORDS = 48
"""Records in which single norms are shown as one: an incident is over after 16 and 32 more."""

MIN_KNOWN_VALUES = 16
"""Values before an extreme norm, and before a KL or loss that is a witness; all move fast in the
beginning."""

EARLY_NORMS = 16
"""First norms, before which few others are known."""

EARLY_LOSS_FACTOR, MIN_EARLY_LOSS = 100.0, 10.0
"""Factor on all losses before, and a bound, beyond which a loss explodes with the norm."""

WITNESS_VALUES = 64
"""Values before a witness whose third highest it is compared with."""

MIN_KL_WITNESS = 0.01
"""KL in nats below which the policy is that of the reference."""


@dataclass
class _Row:
    """Norms in a row above a bound that was known before the first of them."""

    count: int = 0
    step: int = 0
    """Step of the first of them."""
    level: float = 0.0
    """What was usual before it."""
    evidence: float = 0.0
    """Sum of ln(norm / level)."""
    _bound: float = 0.0

    def update(self, norm: float, level: float, bound: float, step: int) -> None:
        """Add a norm; the level and the bound, 0 for none, are used if it is the first."""
        if not self.count:
            self.step, self.level, self._bound = step, level, bound
        is_high = 0.0 < self._bound < norm and self.count < MAX_IN_A_ROW
        self.count = self.count + 1 if is_high else 0
        self.evidence = self.evidence + log(norm / self.level) if is_high else 0.0


@dataclass
class GradExplosion(DetectorDefaults):
    """Evaluates `grad_norm` against its recent level and the highest few of its window."""

    ratio: float = 3.0
    single_ratio: float = 10.0
    extreme_ratio: float = 50.0
    witness_ratio: float = 5.0
    early_ratio: float = 1e3

    needs = frozenset({"grad_norm"})
    signal = "grad_norm"
    remedy = (
        "Inspect the batch of the onset; in reinforcement learning also compare sampling and "
        "training engine. If the loss does not recover, resume from the last checkpoint before "
        "the onset. Lower {learning rate} or {gradient clipping}."
    )

    def __post_init__(self) -> None:
        self._baseline = level_baseline(1, log(self.ratio), MIN_SIGMA, least=LEAST_NORM)
        self._extremes = NewExtreme(transient_share=TRANSIENT_SHARE)
        self._is_shifted = False
        self._shift_count = 1
        """Norms since there is evidence of a shift."""
        self._shift_losses: RiseLosses | None = None
        self._highest = RollingHighest(min_values=MIN_NORMS, lag=LAG_NORMS)
        self._recent: deque[float] = deque(maxlen=3)
        self._row, self._young_row = _Row(), _Row()
        self._norm_count = 0
        self._highest_norm = 0.0
        """The highest norm so far, without those of the young row."""
        self._is_early = False
        self._highest_outlier = 0.0
        self._episode_count = 0
        self._episode_records_left = 0
        self._episode_text = ""
        self._episode_evidence: dict[str, float] = {}
        self._recent_kls: deque[float] = deque(maxlen=WITNESS_VALUES + 1)
        self._recent_loss_sizes: deque[float] = deque(maxlen=WITNESS_VALUES + 1)
        self._highest_loss = 0.0
        self._has_reward = False
        self._loss: float | None = None
        self._history = LossAtRise()

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one norm."""
        norm, step = record.values["grad_norm"], record.step
        if not 0.0 <= norm < inf:
            return None
        highest_loss, level = self._highest_loss, self._highest.level
        self._update_witnesses(record)
        self._episode_records_left -= 1
        if norm > 0.0 and not has_no_advantage(record):
            self._update_row(norm, level, step)
            self._norm_count += 1
            if self._young_row.count or self._norm_count <= YOUNG_NORMS:
                self._update_young_row(norm, highest_loss, step)
            self._highest.add(norm)
            if self._loss is not None and not self._has_reward:
                self._history.add(log(norm), self._loss)
            self._recent.append(norm)
            self._update_shift(norm, step)
            if self._is_shifted or self._is_high_in_a_row() or self._is_young_explosion():
                return self._rise_finding(norm, is_adversarial=is_adversarial(record.values))
        else:
            self._highest.add(0.0)
        if level is not None and 0.0 < self.single_ratio * level < norm:
            return self._single_finding(norm, level, record)
        if level is None or norm == 0.0:
            return None
        return Clear(self.single_ratio * level)

    def _update_shift(self, norm: float, step: int) -> None:
        rise = self._baseline.rise
        if rise.cusum.evidence:
            self._shift_count += 1
        else:
            self._shift_count, self._shift_losses = 1, None
        self._extremes.add(log(norm))
        self._baseline.update(norm, self._norm_count, step)
        # After a while the new level is no new extreme any more, but still shifted.
        self._is_shifted = rise.is_alarmed and (self._is_shifted or self._extremes.is_new)

    def _update_row(self, norm: float, level: float | None, step: int) -> None:
        """Count the norms in a row above the highest few before the first of them."""
        bound = 0.0
        if not self._row.count and level and norm > self.ratio * level:
            highest = self._extremes.previous_maximum
            highest_level = 0.0 if highest is None else exp(highest)
            bound = max(self.ratio * level, self._highest.maximum, highest_level)
        if self._row.count or bound:
            self._row.update(norm, level or 0.0, bound, step)

    def _is_high_in_a_row(self) -> bool:
        least = MIN_IN_A_ROW * log(self.single_ratio)
        return self._row.count >= MIN_IN_A_ROW and self._row.evidence > least

    def _update_young_row(self, norm: float, highest_loss: float, step: int) -> None:
        """Count the norms in a row far above all before, at the beginning of the run."""
        highest, loss = self._highest_norm, abs(self._loss or 0.0)
        is_supervised = self._loss is not None and not self._has_reward and not self._recent_kls
        self._is_early |= (
            self._norm_count <= EARLY_NORMS
            and not self._has_reward
            and norm > self.early_ratio * highest > 0.0
            and max(MIN_EARLY_LOSS, EARLY_LOSS_FACTOR * highest_loss) < loss
        )
        may_begin = self._is_early or (is_supervised and self._norm_count > MIN_BEFORE_YOUNG)
        self._young_row.update(norm, highest, may_begin * self.witness_ratio * highest, step)
        if not self._young_row.count:
            self._is_early, self._highest_norm = False, max(highest, norm)

    def _is_young_explosion(self) -> bool:
        return self._is_early or self._young_row.count >= MIN_YOUNG_IN_A_ROW

    def _update_witnesses(self, record: Record) -> None:
        """Add KL and loss."""
        values = record.values
        self._has_reward = self._has_reward or "reward" in values
        kl = values.get("kl_ref", values.get("kl_old"))
        if kl is not None and kl - kl == 0.0:
            self._recent_kls.append(kl)
        loss = values.get("loss")
        if loss is not None and loss - loss == 0.0:
            size = abs(loss)
            self._highest_loss = max(self._highest_loss, size)
            self._recent_loss_sizes.append(size)
            self._loss = loss

    def _witness(self, values: Mapping[str, float]) -> str:
        """Which of KL and loss is out of its range in the record just added, as text."""
        loss = values.get("loss")
        if loss is not None and loss - loss == 0.0:
            size, usual = abs(loss), _third_highest_before(self._recent_loss_sizes)
            if usual is not None and size > self.witness_ratio * usual > 0.0:
                return f"the loss is {loss:.3g}, and its third highest before was {usual:.3g}"
        kl = values.get("kl_ref", values.get("kl_old"))
        if kl is not None and kl - kl == 0.0:
            usual = _third_highest_before(self._recent_kls)
            if usual is not None and kl > max(MIN_KL_WITNESS, self.witness_ratio * usual):
                return f"the KL is {kl:.3g} nats, and its third highest before was {usual:.3g}"
        return ""

    def _is_learning(self) -> bool:
        """Whether the norm rises because the model learns, by the loss."""
        if self._has_reward or self._loss is None:
            return False
        is_row = self._is_high_in_a_row() or self._is_young_explosion()
        rows = max(self._row.count, self._young_row.count)
        if is_row:
            return self._history.is_learning(self._history.losses(rows), rows)
        # A shift may last for longer than the history.
        self._shift_losses = self._shift_losses or self._history.losses(self._shift_count)
        return self._history.is_learning(self._shift_losses, self._shift_count)

    def _rise_finding(self, norm: float, *, is_adversarial: bool) -> Finding:
        if self._is_young_explosion():
            usual, onset = self._young_row.level, self._young_row.step
            before = f"no norm before was above {usual:.3g}"
        elif self._is_high_in_a_row():
            usual, onset = self._row.level, self._row.step
            before = f"all but two norms before were below {usual:.3g}"
        else:
            rise = self._baseline.rise
            usual, onset = self._baseline.expected(rise) or 0.0, rise.onset
            before = f"its level was {usual:.3g}"
        level = median(self._recent)
        # The gradient of a generator is the slope of a discriminator, which is near 0 at first.
        highest_usual = self.extreme_ratio * self.single_ratio * usual
        is_usual = self._is_learning() or (is_adversarial and level <= highest_usual)
        verb = "rose and is back at" if level <= usual else "rose to"
        now = f"{norm:.3g}" if self._is_early else f"{level:.3g} (median of the last 3)"
        return Finding(
            summary=f"Gradient norm {verb} {now}; {before}.",
            evidence={
                "grad_norm": norm,
                "grad_norm_median_of_3": level,
                "usual_grad_norm_before": usual,
            },
            severity=Severity.INFO if is_usual else None,
            onset_step=onset,
        )

    def _single_finding(self, norm: float, level: float, record: Record) -> Finding:
        step, witness = record.step, self._witness(record.values)
        is_new = norm > NEW_OUTLIER_FACTOR * self._highest_outlier
        is_known = len(self._highest) > MIN_KNOWN_VALUES
        is_extreme = is_new and is_known and norm > self.extreme_ratio * level
        if is_extreme and not self._has_reward:
            is_extreme = not self._history.is_memorised()
        if self._episode_records_left <= 0:
            self._episode_count, self._episode_evidence = 0, {}
        self._episode_records_left = EPISODE_RECORDS
        self._episode_count += 1
        self._highest_outlier = max(self._highest_outlier, norm)
        if norm > self._episode_evidence.get("grad_norm", 0.0):
            self._episode_text = (
                f"{norm:.3g} at step {step}; the third highest of the norms before was {level:.3g}"
            )
            if witness:
                self._episode_text += f". In the same record {witness}"
            self._episode_evidence = {"grad_norm": norm, "third_highest_grad_norm_before": level}
        count = self._episode_count
        subject = (
            "A single gradient norm was"
            if count == 1
            else f"The highest of {count} single gradient norms was"
        )
        return Finding(
            summary=f"{subject} {self._episode_text}.",
            evidence=dict(self._episode_evidence),
            severity=None if is_extreme or witness else Severity.INFO,
            onset_step=step,
        )


def _third_highest_before(recent: Iterable[float]) -> float | None:
    """The third highest of the values before the newest; None if there are too few."""
    *before, _ = recent
    return sorted(before)[-3] if len(before) >= MIN_KNOWN_VALUES else None
