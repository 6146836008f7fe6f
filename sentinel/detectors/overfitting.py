"""Overfitting: the loss on held-out data rises while the training loss falls or stagnates.

Formula
    level    = median of the last 3 evaluation losses; best = lowest level so far
    trained  = median training loss since the previous evaluation; its level is the median of 3
    Finding  = training; or level exceeds best by the fraction `rise` and by `noises` times the
               noise, or more after more than 10 evaluations, whose best is lower by chance; so did
               the previous level, and those of a tenth of all evaluations; the latest evaluation
               exceeds it by half as much; and since the best the training loss has fallen, or risen
               by less than `follows` of that rise
    info     = the accuracy on held-out data is at its best, and the level exceeds the best by less
               than `overconfident`; an accuracy of tokens must have risen clearly since the best:
               its complement has fallen by a tenth
    training = where nothing of held-out data is logged: after the first epoch the training loss has
               fallen to its lowest block mean by the fraction 4 * `rise`, and has risen from there
               by as much, significantly so and in both halves of at least 16 blocks since
    where the noise is estimated from the distance of an evaluation to the line between its
    neighbours, as the larger of all and of the latest 8. Where no loss on held-out data is logged,
    one minus the accuracy takes the place of ln(loss). A run with a reward is not evaluated, since
    its loss does not measure what the policy learned.

Units
    `rise`, `overconfident`: fraction of the loss, 0.05 is five per cent. `noises`: standard
    deviations. `follows`: fraction of 1; a loss that rises in training too is no overfitting.

Source
    The definition itself. A patience counter without a margin, as in early stopping, fires on most
    healthy runs; a gap between the two losses is usual from the first evaluation on.

Defaults
    On 200 healthy synthetic runs (7,700 evaluations) and on 105 public logs there is no false
    alarm; all four logs that are certainly overfitted are found. A rise of 8, 20 or 50 % over a
    third of the run is found in 85, 96 and 99 of 100 runs. Without the tenth of all evaluations it
    is 90, 97 and 99, and the loss of a detector of objects that improves for 1,244 evaluations has
    five false alarms in place of none. `rise` 0.05 is a common definition;
    `follows` 0 found 65, 73 and 74, since the training loss may stagnate. A classifier
    that grows overconfident raises its loss without losing accuracy; `overconfident` 0.2 is four
    times `rise`. The accuracy of tokens of a language model that memorises 24 texts rises from 2 to
    6 % while its perplexity doubles, and holds its best as a rule. Of 30 generated training losses
    each that rise by 35, 70 or 150 % over the latter half, 28, 28 and 29 are found without a
    held-out loss; of 30 that do not, none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import median

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import STEP, Record
from sentinel.signals.loss_kind import is_adversarial, is_policy_gradient
from sentinel.stats.block_means import BlockMeans, fall_bounds
from sentinel.stats.rolling_quantiles import RollingQuantiles, median_of_sorted

MEDIAN_WINDOW = 3
"""Evaluations in the median that counts as the level; one outlier does not change it."""

TRAIN_WINDOW = 64
"""Maximum number of training losses in the median that belongs to an evaluation."""

LATEST_CURVATURES = 8
"""Latest evaluations whose noise counts if it is larger than that of all."""

MIN_RISING, LASTING_SHARE = 2, 0.1
"""Evaluations in a row, at least and as a share of all, that show a rise: the held-out loss of a
long run that still improves is higher for some evaluations again and again."""

MAX_LOSS = 1e300
"""Upper bound of a valid loss, to avoid overflow."""

ACCURACIES = ("eval_accuracy", "eval_token_accuracy")

ACCURACY_TOLERANCE = 0.01
"""Distance from the best accuracy that still counts as best."""

CLEAR_TOKEN_GAIN = 0.1
"""Share of the tokens that were wrong at the best evaluation, and are right now."""

MEDIAN_ERROR = 0.67
"""Standard error of the median of 3, in standard deviations of normal noise."""

CONFIDENCE_Z = 2.2
"""Standard errors of a rise of the training loss: one false result in 70."""

MIN_RISING_BLOCKS = 16
"""Block means of the training loss since the lowest: a dip of the first values is over by then."""

TRAINING_RISES = 4.0
"""Factor on `rise` for a training loss, which harder data raises as well."""

CURVATURE_TO_SIGMA = 1.4826 / 1.5**0.5
"""Standard deviation over the median distance from the middle of two neighbours."""


@dataclass
class Overfitting(DetectorDefaults):
    """Evaluates `eval_loss` against its best, and `loss` against its level at that time."""

    rise: float = 0.05
    follows: float = 0.25
    noises: float = 4.0
    overconfident: float = 0.2

    reads = frozenset(ACCURACIES)
    signal = "eval_loss"
    remedy = (
        "Use the checkpoint of the best evaluation, and stop there. In the next run enable "
        "{loading of the best checkpoint} with early stopping. To train further, lower {number "
        "of epochs} or {learning rate}, or add data, {weight decay} or dropout."
    )

    def __post_init__(self) -> None:
        self._has_reward = False
        self._train_losses: deque[float] = deque(maxlen=TRAIN_WINDOW)
        self._train_losses_since_eval = 0
        self._train_blocks = BlockMeans()
        self._first_step: int = -1
        self._train_output: DetectorOutput = None
        self._has_eval_loss = False
        self._is_percentage = False
        self._is_of_tokens = False
        """Whether the accuracy is that of tokens."""
        self._errors: deque[float] = deque(maxlen=MEDIAN_WINDOW)
        self._lowest_error = inf
        self._eval_losses: deque[float] = deque(maxlen=MEDIAN_WINDOW)
        self._train_levels: deque[float] = deque(maxlen=MEDIAN_WINDOW)
        self._curvatures = RollingQuantiles(64)
        self._last_eval_step: int | None = None
        self._lowest = inf
        self._lowest_step = 0
        self._onset_step: int | None = None
        self._best_level = inf
        self._train_level_at_best = -inf
        self._error_at_best = 0.0
        self._rising_count = 0
        self._eval_count = 0

    def update(self, record: Record) -> DetectorOutput:
        """Add a training loss, or evaluate an evaluation."""
        values = record.values
        self._has_reward |= is_policy_gradient(record)
        if self._has_reward:
            return None
        loss = values.get("loss", 0.0)
        if record.event is STEP and 0.0 < loss < MAX_LOSS:
            self._train_losses.append(log(loss))
            self._first_step = record.step if self._first_step < 0 else self._first_step
            self._train_losses_since_eval = min(self._train_losses_since_eval + 1, TRAIN_WINDOW)
            is_first_epoch = values.get("epoch", 0.0) < 1.0
            if self._train_blocks.add(log(loss)) and not (is_first_epoch or is_adversarial(values)):
                self._test_training(record.step)
        # Some trainers log an evaluation twice.
        is_repeated = record.step == self._last_eval_step
        if is_repeated or not self._train_losses:
            return None
        error = self._held_out_error(values)
        if 0.0 < (held_out := values.get("eval_loss", 0.0)) < MAX_LOSS:
            if not self._has_eval_loss:
                self._has_eval_loss = True
                self._restart()
            size = log(held_out)
        elif error is not None and not self._has_eval_loss:
            size = error
        else:
            is_training = self._eval_count == 0 and not self._has_eval_loss
            return self._train_output if is_training and record.event is STEP else None
        if error is not None:
            self._errors.append(error)
            if len(self._errors) == MEDIAN_WINDOW:
                self._lowest_error = min(self._lowest_error, median(self._errors))
        self._last_eval_step = record.step
        self._append_eval(size, record.step)
        return self._evaluate()

    def _test_training(self, step: int) -> None:
        """Whether the training loss fell and slowly rises again; a jump rises in one half only."""
        means = self._train_blocks.means
        lowest = means.index(min(means))
        since, least = means[lowest:], log(1.0 + TRAINING_RISES * self.rise)
        half = len(since) // 2
        self._train_output = None if self._train_output is None else CLEAR
        if len(since) < MIN_RISING_BLOCKS or means[0] - means[lowest] < least:
            return
        if -fall_bounds(since, CONFIDENCE_Z)[1] < least or any(
            fall_bounds(part, CONFIDENCE_Z)[1] > 0.0 for part in (since[:half], since[-half:])
        ):
            return
        first, best, now = exp(means[0]), exp(means[lowest]), exp(means[-1])
        passed = step - self._first_step
        self._train_output = Finding(
            summary=f"The training loss fell from {first:.4g} to {best:.4g} and has slowly risen "
            f"to {now:.4g}; no held-out loss is logged.",
            evidence={
                "train_loss_at_start": first,
                "train_loss_lowest": best,
                "train_loss_now": now,
            },
            onset_step=self._first_step + round(passed * (lowest + 1) / len(means)),
        )

    def _restart(self) -> None:
        """Forget the evaluations so far, which were of another quantity."""
        self._eval_losses.clear()
        self._train_levels.clear()
        self._curvatures = RollingQuantiles(64)
        self._lowest = self._best_level = inf
        self._rising_count = self._eval_count = 0

    def _held_out_error(self, values: Mapping[str, float]) -> float | None:
        """One minus the accuracy on held-out data, which may be logged in per cent."""
        first, second = ACCURACIES
        accuracy = values.get(first, values.get(second, -1.0))
        if not 0.0 <= accuracy <= 100.0:
            return None
        self._is_of_tokens = first not in values
        if accuracy > 1.0 and not self._is_percentage:
            # Values up to 1 per cent before looked like fractions.
            self._is_percentage, self._lowest_error = True, inf
            self._errors.clear()
            if not self._has_eval_loss:
                self._restart()
        return 1.0 - accuracy / (100.0 if self._is_percentage else 1.0)

    def _append_eval(self, log_eval_loss: float, step: int) -> None:
        recent = list(self._train_losses)
        self._train_levels.append(median(recent[-max(1, self._train_losses_since_eval) :]))
        self._train_losses_since_eval = 0
        self._eval_losses.append(log_eval_loss)
        self._eval_count += 1
        if len(self._eval_losses) == MEDIAN_WINDOW:
            first, middle, last = self._eval_losses
            self._curvatures.add(abs(middle - (first + last) / 2))
        if log_eval_loss < self._lowest:
            self._lowest, self._lowest_step, self._onset_step = log_eval_loss, step, None
        elif self._onset_step is None:
            self._onset_step = step

    def _evaluate(self) -> DetectorOutput:
        if len(self._eval_losses) < MEDIAN_WINDOW:
            return None
        level, trained = median(self._eval_losses), median(self._train_levels)
        if level < self._best_level:
            self._best_level, self._train_level_at_best = level, trained
            self._error_at_best = median(self._errors) if self._errors else 0.0
        # The noise of ln(loss) may grow as the loss falls.
        latest = median_of_sorted(self._curvatures.sorted_latest(LATEST_CURVATURES))
        sigma = max(self._curvatures.median, latest) * CURVATURE_TO_SIGMA
        risen, fallen = level - self._best_level, self._train_level_at_best - trained
        # The best of many levels is lower than their mean by chance, and the highest is higher.
        best_of_many = MEDIAN_ERROR * sqrt(2.0 * log(self._eval_count))
        bound = max(log(1 + self.rise), max(self.noises, 1.0 + 2.0 * best_of_many) * sigma)
        # Of a rise that is over, most is gone from the latest evaluation first.
        has_risen = risen > bound and self._eval_losses[-1] - self._best_level > bound / 2
        is_overfitted = has_risen and -fallen < self.follows * risen
        self._rising_count = self._rising_count + 1 if is_overfitted else 0
        if self._rising_count < max(MIN_RISING, LASTING_SHARE * self._eval_count):
            return CLEAR
        return self._finding(level, trained)

    def _finding(self, level: float, trained: float) -> Finding:
        train_now, train_at_best = exp(trained), exp(self._train_level_at_best)
        training = (
            f"while the training loss changed from {train_at_best:.4g} to {train_now:.4g}; the "
            f"best evaluation was at step {self._lowest_step}."
        )
        evidence = {
            "best_step": float(self._lowest_step),
            "train_loss": train_now,
            "train_loss_at_best": train_at_best,
        }
        if not self._has_eval_loss:
            now, best = 1.0 - level, 1.0 - self._best_level
            return Finding(
                summary=f"Accuracy on held-out data fell from {best:.1%} to {now:.1%}, {training}",
                evidence={
                    "eval_accuracy_median_of_3": now,
                    "best_eval_accuracy": best,
                    **evidence,
                },
                onset_step=self._onset_step,
            )
        now, best, severity = exp(level), exp(self._best_level), None
        if self._is_accuracy_better() and now / best - 1 < self.overconfident:
            severity = Severity.INFO
            training = training.replace(
                ";", f", and the accuracy on held-out data is {1 - median(self._errors):.1%};", 1
            )
        return Finding(
            summary=f"Loss on held-out data rose from {best:.4g} to {now:.4g} "
            f"({now / best - 1:+.0%}), {training}",
            evidence={
                "eval_loss_median_of_3": now,
                "best_eval_loss": best,
                **evidence,
            },
            severity=severity,
            onset_step=self._onset_step,
        )

    def _is_accuracy_better(self) -> bool:
        """Whether the accuracy is at its best, or that of tokens clearly higher than before."""
        if len(self._errors) < MEDIAN_WINDOW:
            return False
        error = median(self._errors)
        if self._is_of_tokens and error > (1.0 - CLEAR_TOKEN_GAIN) * self._error_at_best:
            return False
        return error <= self._lowest_error + ACCURACY_TOLERANCE
