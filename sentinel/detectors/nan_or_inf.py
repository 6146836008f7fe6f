"""NaN or infinity: a value is not finite that was, or that training depends on.

Formula
    vital    = the loss, eval loss, gradient norm, reward, KL and entropy, but no reward before one
               is finite, within `proven` records: until an episode ends none is known; every value
               in training whose name contains loss; and every other value whose name contains
               such a word and that was finite in the first `proven` records, counted separately for
               steps and evaluations
    other    = any other value that was finite before and in the first `proven` records; each is
               reported `several` times at most, since it may be undefined by design
    lost     = vital and other values of a record that are NaN or infinite, in total or on a rank;
               and a loss of exactly 0 with a lost gradient norm, which is how some trainers log a
               NaN loss
    Finding  = a record has a lost value
    Clear    = a record has none, and every vital value that was lost has been finite since; if the
               loss was lost, the loss alone decides
    warning  = the loss or an eval loss is lost, another vital value is lost twice in a row, the
               gradient norm is lost at a loss of 100 times the first and over 10, or `several`
               vital values were lost within the last `window` records
    critical = the loss is lost twice in a row
    info     = any other lost value; and a lost gradient norm while the loss scale falls: the loss
               scaler skips that step
    culprit  = the ranks whose vital value was lost first; all ranks have lost it a step later,
               when they have averaged their gradients

Units
    `proven`, `window`: records. `several`: values; a value logged by the framework and the part of
    a single rank count as the same value.

Source
    A mixed-precision scaler skips an occasional step whose gradient overflows, and successful
    fine-tunings have single NaN gradient norms; a NaN loss is permanent. The standard deviation of
    a single sample is NaN by definition, so standard deviations are not evaluated; nor are best
    values so far, which begin at infinity.

Defaults
    Of 210 public logs five have such values: single lost gradient norms in two successful
    fine-tunings (info), lost rewards and an evaluation in a preference run, losses that are NaN
    from the first record (warnings), and metrics that never were numbers, which `proven` 8
    excludes. `several` 3 in `window` 16 is more than a loss scaler loses after it has found its
    scale.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter

from sentinel.model.evidence_text import in_words
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import EVAL, STEP, Record, Spread
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.key_words import is_training_loss
from sentinel.signals.precision import is_float16

CORE_SIGNALS = frozenset({
    "loss", "eval_loss", "grad_norm", "reward", "kl_ref", "kl_old", "entropy",
})  # fmt: skip
RELEVANT_PATTERN = re.compile(r"loss|grad_?norm|reward|logp|(^|[/_])kl([/_]|$)|entropy")
STD_PATTERN = re.compile(r"(^|[/_.])std($|[/_.])")

MAX_USUAL_FACTOR, MIN_UNUSUAL_LOSS = 100.0, 10.0
"""Factor on the first loss, and a bound, beyond which a lost norm is no step that is skipped."""

MAX_NAMES = 1024
"""Maximum number of names whose state is stored."""


FLOAT16_REMEDY = (
    " Train with {bfloat16 precision} instead of float16, whose largest value is 65504."
)


@dataclass
class NanOrInf(DetectorDefaults):
    """Evaluates every value of steps and evaluations, including values of single ranks."""

    proven: int = 8
    several: int = 3
    window: int = 16

    signal = "loss"
    severity = Severity.INFO
    scope = Scope.TRAINING
    remedy = (
        "Resume from the last checkpoint before the onset, and inspect the batch of that step. "
        "Lower {learning rate} or {gradient clipping}."
    )

    def __post_init__(self) -> None:
        self._record_counts = {STEP: 0, EVAL: 0}
        self._nan_by_design: set[str] = set()
        self._once_finite: set[str] = set()
        self._reports_of_others: dict[str, int] = {}
        self._consecutive: dict[str, int] = {}
        self._recent_counts: deque[int] = deque(maxlen=self.window)
        self._onset_step: int | None = None
        self._first_ranks: tuple[int, ...] = ()
        self._loss_scale: float | None = None
        self._first_loss: float | None = None
        self._is_float16 = False

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record."""
        if record.attributes or "loss_scale" in record.values:
            self._is_float16 |= is_float16(record.attributes, record.values)
        if record.event not in self._record_counts or not record.values:
            return None
        self._record_counts[record.event] += 1
        loss = record.values.get("loss")
        if self._first_loss is None and loss is not None and isfinite(loss):
            self._first_loss = abs(loss)
        others: list[str] = []
        lost = self._nonfinite_names(record, others)
        vital = [] if self._is_skipped_step(lost, record) else lost
        self._update_counts(vital, record)
        if not lost and not others:
            # A record without the values that were lost, such as an evaluation, is no evidence.
            return None if self._consecutive else CLEAR
        severity, onset_step = (
            self._severity(vital, record),
            self._onset_step if vital else record.step,
        )
        lost += others
        ranks = _nonfinite_ranks(lost, record.spread)
        first = self._first_ranks if vital else ranks
        names = ", ".join(map(_shown, lost[:4])) + (
            f" and {len(lost) - 4} more" if len(lost) > 4 else ""
        )
        where = f" on {_format_ranks(ranks)}" if ranks else ""
        if first and set(first) < set(ranks):
            is_everywhere = all(
                record.spread[name].count == 0 for name in lost if name in record.spread
            )
            later = " on all ranks" if is_everywhere else where
            where = f" on {_format_ranks(first)} from step {onset_step} on, then{later}"
        return Finding(
            summary=f"NaN or infinite{where}: {names}.",
            evidence={name: str(record.values.get(name)) for name in lost[:8]}
            | {
                "nan_or_infinite_values_lately": float(sum(self._recent_counts)),
                "ranks": ",".join(map(str, ranks)),
                "first_ranks": ",".join(map(str, first)),
            },
            severity=severity,
            onset_step=onset_step,
            rank=first[0] if len(first) == 1 else None,
            signal="" if "loss" in lost else lost[0],
            remedy=f"{self.remedy}{FLOAT16_REMEDY}" if self._is_float16 else None,
        )

    def _nonfinite_names(self, record: Record, others: list[str]) -> list[str]:
        """The names of lost vital values; those of other values are added to `others`."""
        values, lost = record.values, []
        if any(map(_BAD_RANKS, record.spread.values())):
            lost = [name for name, spread in record.spread.items() if spread.bad_ranks]
        # The sum is finite only if all values are.
        if not lost and isfinite(sum(values.values())):
            if not self._once_finite.issuperset(values) and len(self._once_finite) < MAX_NAMES:
                self._once_finite.update(values)
            return []
        lost += [name for name, x in values.items() if not isfinite(x) and name not in lost]
        seen = self._record_counts[record.event]
        others += [name for name in lost if self._is_reported_as_other(name, seen)]
        lost = [name for name in lost if self._is_vital(name, seen)]
        if "grad_norm" in lost and values.get("loss") == 0.0:
            lost.append("loss")
        return sorted(lost, key=lambda name: name not in CORE_SIGNALS)

    def _is_skipped_step(self, lost: list[str], record: Record) -> bool:
        """Whether a loss scaler, which lowers its scale, skipped a step whose gradient overflowed.

        Each of its steps that overflow lowers it, so that it ends by itself.
        """
        scale, before = record.values.get("loss_scale"), self._loss_scale
        self._loss_scale = before if scale is None else scale
        if not lost or scale is None or (before is not None and scale >= before):
            return False
        return {*map(_base_name, lost)} == {"grad_norm"} and record.values.get("loss") != 0.0

    def _is_reported_as_other(self, name: str, seen: int) -> bool:
        if (
            _is_vital_name(name)
            or name not in self._once_finite
            or seen <= self.proven
            or STD_PATTERN.search(name)
        ):
            return False
        reports = self._reports_of_others[name] = self._reports_of_others.get(name, 0) + 1
        return reports <= self.several

    def _is_vital(self, name: str, seen: int) -> bool:
        if name == "reward" and name not in self._once_finite and seen <= self.proven:
            return False
        if name in CORE_SIGNALS or is_training_loss(name):
            return True
        if name in self._nan_by_design or not _is_vital_name(name) or STD_PATTERN.search(name):
            return False
        if seen > self.proven or len(self._nan_by_design) >= MAX_NAMES:
            return True
        self._nan_by_design.add(name)
        return False

    def _update_counts(self, names: list[str], record: Record) -> None:
        if names and not any(self._recent_counts):
            self._onset_step = record.step
            self._first_ranks = _nonfinite_ranks(names, record.spread)
        self._recent_counts.append(len(set(map(_base_name, names))) if names else 0)
        finite = {n for n in self._consecutive if n in record.values and n not in names}
        if "loss" in finite:
            # The others may not be logged again, and a finite loss depends on finite weights.
            finite.update(self._consecutive.keys() - set(names))
        for name in finite:
            del self._consecutive[name]
        for name in names[:MAX_NAMES]:
            self._consecutive[name] = self._consecutive.get(name, 0) + 1

    def _severity(self, names: list[str], record: Record) -> Severity:
        if "loss" in names:
            return Severity.CRITICAL if self._consecutive["loss"] >= 2 else Severity.WARNING
        repeated = any(self._consecutive[name] >= 2 for name in names)
        if "grad_norm" in names and self._has_exploded(record.values.get("loss", 0.0)):
            return Severity.WARNING
        if "eval_loss" in names or repeated or sum(self._recent_counts) >= self.several:
            return Severity.WARNING
        return Severity.INFO

    def _has_exploded(self, loss: float) -> bool:
        bound = max(MIN_UNUSUAL_LOSS, MAX_USUAL_FACTOR * (self._first_loss or 0.0))
        return self._first_loss is not None and abs(loss) > bound


_BAD_RANKS = attrgetter("bad_ranks")


def _is_vital_name(name: str) -> bool:
    return bool(RELEVANT_PATTERN.search(name.lower()))


def _shown(name: str) -> str:
    """A signal in words; a logged key as it is."""
    return in_words(name) if name in SIGNALS else f"`{name}`"


def _base_name(name: str) -> str:
    """Name of the quantity: a norm logged under several names counts once."""
    return name.removeprefix("logged_").removesuffix("_local")


def _format_ranks(ranks: Sequence[int]) -> str:
    """The first ranks of a list: "rank 1", "ranks 0, 1"."""
    shown = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _nonfinite_ranks(names: list[str], spreads: Mapping[str, Spread]) -> tuple[int, ...]:
    """Ranks of the value that is lost on the fewest ranks; a reduction spreads a NaN to all."""
    candidates = [spreads[name].bad_ranks for name in names if name in spreads]
    return min((ranks for ranks in candidates if ranks), key=len, default=())
