"""Rank desync: values that must be equal on every rank differ.

Formula
    apart    = the highest rank's value differs from the lowest's; for a gradient norm that was not
               always bit-identical, by more than `tolerance` of itself
    proven   = the value was equal on all ranks in the first `proven` records from two or more
               ranks, and bit-identical in the first `exact`; for the norm, only records in which it
               changed count
    replicas = the norm is proven and was always bit-identical, and each rank has a loss
    Finding  = a proven value is apart in `in_a_row` consecutive records, or in `lasting` if a norm
               is apart by less than `tolerance`; or a setting (learning rate, entropy coefficient)
               of replicas has been apart since the first record
    culprit  = the ranks whose value is not that of the majority
    critical = the gradient norm is apart by more than `tolerance`

Units
    `tolerance`: fraction of the gradient norm; learning rate, loss scale, step number and number of
    optimizer steps must be equal. `proven`, `exact`, `in_a_row`, `lasting`: records with the value.

Source
    Replicas that average their gradients compute the same norm from the same numbers, to the last
    bit: a collective returns the same sum on every rank. Norms that differ belong to different
    weights, or to gradients that were not averaged. Ranks with parts of the gradient, pipeline
    stages and independently trained ranks were never equal, so they prove nothing and are not
    evaluated; nor is their loss scale, which each rank lowers on its own overflows. A norm logged
    after clipping is constant and proves nothing either.

    A node that starts with another configuration has another setting from the first step on. Its
    ranks are replicas all the same, since the averaged gradient is the same for all of them. A
    pipeline stage, whose parameter groups may differ, has no loss of its own. A setting that one
    rank reports one step later than the others is no difference.

Defaults
    `tolerance` 1e-3 is a thousand times the effect of the order of a float32 sum. `proven` 8 and
    `in_a_row` 3: a single record of a rank that logs one step late is no desync. `exact` 64 and
    `lasting` 16: GPUs of two kinds round some norms differently; replicas that have diverged never
    agree again. In 60 runs of 2,000 steps of 2 to 64 ranks each there was no finding for replicas
    that are equal, that differ by noise of 1e-6, or of which half round 0.2 to 50 % of norms
    differently, for norms logged after clipping, and for independent ranks. One rank off by 1 % was
    found and named in 60 of 60 runs at the third record, by 1e-7 at the sixteenth. For training
    that lets replicas diverge on purpose after a while, such as post-local SGD, raise `proven`
    beyond that number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sentinel.model.evidence_text import in_words
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.number_ranges import ranges_text
from sentinel.model.record import START, STEP, RankMismatch, Record, Spread, host_key

NORM, SCALE = "grad_norm", "loss_scale"
SETTINGS = ("learning_rate", "entropy_coef")
"""Signals that the configuration decides, and not the data of a rank."""
REPLICATED_SIGNALS = (NORM, SCALE, *SETTINGS, "global_step", "optimizer_steps")

MIN_SETTING_DIFFERENCE = 0.01
"""Fraction of a setting below which ranks that always differed may only round it differently."""

MIN_NORM_SHARE = 1e-6
"""Fraction of another norm below which a rank has no part of the trained parameters."""


@dataclass
class _SignalState:
    """Proof and deviation of one signal."""

    proven_count: int = 0
    last_value: float = 0.0
    is_always_exact: bool = True
    """Whether all ranks were always bit-identical."""
    is_excluded: bool = False
    """Whether the ranks differed before it was proven that they must not."""
    last_spread: Spread | None = None
    apart_count: int = 0
    """Consecutive records in which the ranks differ."""
    far_count: int = 0
    """Consecutive records in which they differ by more than the tolerance."""
    onset_step: int = 0


@dataclass
class RankDesync(DetectorDefaults):
    """Evaluates the spread of values that must be equal on every rank."""

    tolerance: float = 1e-3
    proven: int = 8
    exact: int = 64
    in_a_row: int = 3
    lasting: int = 16

    signal = "grad_norm"
    scope = Scope.TRAINING
    remedy = (
        "Resume all ranks from one checkpoint before the onset: the replicas are no longer one "
        "model. On the ranks that differ, look for weights, buffers or seeds set after the model "
        "was wrapped, for a backward pass under `no_sync`, and for a step that only some ranks "
        "skip."
    )

    def __post_init__(self) -> None:
        self._states = {name: _SignalState() for name in REPLICATED_SIGNALS}
        self._replica_count = 0
        """Ranks that are replicas of one model; 0 while that is not known."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the spread of one step."""
        if record.event is START:
            self.__post_init__()
        if record.event is not STEP or not record.spread:
            return None
        evaluated = [
            name
            for name in REPLICATED_SIGNALS
            if name in record.spread and self._update_signal(name, record)
        ]
        # A loop: this is evaluated at every step, and `any` calls its argument for each state.
        for state in self._states.values():
            if state.apart_count and self._is_apart(state):
                break
        else:
            return CLEAR if evaluated else None
        wrong = [name for name in evaluated if self._is_wrong(self._states[name])]
        return self._finding(wrong[0], record) if wrong else None

    def _update_signal(self, name: str, record: Record) -> bool:
        """Add one value; returns whether it can be evaluated."""
        spread, state = record.spread[name], self._states[name]
        if (
            spread.count < 2
            or state.is_excluded
            or (name == NORM and not _is_whole_gradient(spread, record.values[name]))
        ):
            return False
        same = spread.min == spread.max
        if same and state.proven_count >= self.proven and name not in (NORM, SCALE):
            state.apart_count = state.far_count = 0
            return True
        far = spread.max - spread.min > (self.tolerance * abs(spread.max) if name == NORM else 0.0)
        if state.proven_count < self.proven:
            if far and name in SETTINGS:
                return self._update_early_difference(state, record.step, spread)
            self._update_proof(name, state, spread, exclude=far)
            self._update_counts(state, record.step, is_apart=False, is_far=False)
            self._update_replicas(name, record)
            return False
        if name == NORM and state.proven_count < self.exact:
            self._update_proof(name, state, spread, exclude=False)
        self._update_replicas(name, record)
        if name == SCALE and self._states[NORM].is_excluded:
            state.apart_count = 0
            return False
        exactly = name != NORM or (state.is_always_exact and state.proven_count >= self.exact)
        self._update_counts(state, record.step, is_apart=not same if exactly else far, is_far=far)
        return True

    def _update_replicas(self, name: str, record: Record) -> None:
        """Count the ranks that are replicas: their norm is the same to the bit, record by record.

        The state of the norm is up to date; a pipeline stage without a loss is no replica.
        """
        if name != NORM:
            return
        state, losses = self._states[NORM], record.spread.get("loss")
        count = record.spread[NORM].count
        is_proven = state.proven_count >= self.proven and state.is_always_exact
        has_losses = losses is not None and losses.count + len(losses.bad_ranks) >= count
        self._replica_count = count if is_proven and has_losses else 0

    def _update_early_difference(self, state: _SignalState, step: int, spread: Spread) -> bool:
        """Add a setting that differs before it was proven; returns whether it can be evaluated."""
        previous, state.last_spread = state.last_spread, spread
        is_near = spread.max - spread.min <= MIN_SETTING_DIFFERENCE * abs(spread.max)
        # One rank reports now what another one reported in the record before.
        if is_near or (
            previous is not None and (spread.max == previous.min or spread.min == previous.max)
        ):
            state.is_excluded, state.apart_count = True, 0
            return False
        self._update_counts(state, step, is_apart=True, is_far=True)
        return spread.count <= self._replica_count

    def _is_apart(self, state: _SignalState) -> bool:
        """Whether a value that must be equal is not."""
        is_known = state.proven_count >= self.proven or self._replica_count > 0
        return state.apart_count > 0 and is_known

    def _update_proof(
        self, name: str, state: _SignalState, spread: Spread, *, exclude: bool
    ) -> None:
        state.is_excluded = state.is_excluded or exclude
        state.is_always_exact = state.is_always_exact and spread.min == spread.max
        # A norm logged after clipping is constant in any case.
        if name != NORM or spread.max != state.last_value:
            state.proven_count += 1
        state.last_value = spread.max

    def _update_counts(
        self, state: _SignalState, step: int, *, is_apart: bool, is_far: bool
    ) -> None:
        if is_apart and not state.apart_count:
            state.onset_step = step
        state.apart_count = (
            min(state.apart_count + 1, max(self.lasting, self.in_a_row)) if is_apart else 0
        )
        state.far_count = min(state.far_count + 1, self.in_a_row) if is_far else 0

    def _is_wrong(self, state: _SignalState) -> bool:
        return state.far_count >= self.in_a_row or state.apart_count >= self.lasting

    def _finding(self, name: str, record: Record) -> Finding:
        spread, state = record.spread[name], self._states[name]
        onset = min(state.onset_step, record.step)
        was_equal = state.proven_count >= self.proven
        evidence: dict[str, float | str] = {
            "signal": name,
            "lowest_value": spread.min,
            "lowest_rank": float(spread.min_rank),
            "highest_value": spread.max,
            "highest_rank": float(spread.max_rank),
            "ranks_compared": float(spread.count),
            "equal_before": "yes" if was_equal else "no",
        }
        mismatch = spread.mismatch
        if mismatch is not None:
            reference = "majority_value" if mismatch.has_majority else "value_of_other_half"
            evidence |= {
                reference: mismatch.majority_value,
                "differing_rank_count": float(mismatch.count),
                "differing_ranks": _format_ranks(mismatch),
            }
        is_critical = name == NORM and state.far_count >= self.in_a_row
        has_single_rank = mismatch is not None and mismatch.has_majority and mismatch.count == 1
        ranks = "Ranks that were equal before" if was_equal else "Replicas of one model"
        return Finding(
            summary=f"{ranks} differ in the {in_words(name)}: "
            f"{_describe_ranks(spread, record.attributes)}.",
            evidence=evidence,
            severity=Severity.CRITICAL if is_critical else None,
            onset_step=onset,
            onset_range=(onset, onset),
            rank=mismatch.differing_ranks[0][0] if mismatch and has_single_rank else None,
            signal=name,
        )


def _is_whole_gradient(spread: Spread, value: float) -> bool:
    """Whether these are norms of the same gradient and not of its parts."""
    return value == spread.max and spread.min > MIN_NORM_SHARE * spread.max


def _describe_ranks(spread: Spread, attributes: Mapping[str, str]) -> str:
    """The differing values with their ranks, and with their hosts if known."""
    mismatch = spread.mismatch
    if mismatch is None:
        low, high = _format_distinct(spread.min, spread.max)
        lowest, highest = spread.min_rank, spread.max_rank
        return (
            f"{low} on rank {lowest}{_format_hosts([lowest], attributes)}, "
            f"{high} on rank {highest}{_format_hosts([highest], attributes)}"
        )
    ranks = [rank for rank, _ in mismatch.differing_ranks]
    hosts = _format_hosts(ranks, attributes)
    value, majority = _format_distinct(mismatch.differing_ranks[0][1], mismatch.majority_value)
    others = f", {majority} on the other {spread.count - mismatch.count}"
    if mismatch.count == 1:
        return f"{value} on rank {ranks[0]}{hosts}{others}"
    hidden = mismatch.count - len(ranks)
    more = f" and {hidden} more" if hidden > 0 else ""
    is_one_value = len({value for _, value in mismatch.differing_ranks}) == 1
    which = "ranks" if is_one_value else "the first of ranks"
    return f"{value} on {which} {_format_ranks(mismatch)}{more}{hosts}{others}"


def _format_ranks(mismatch: RankMismatch) -> str:
    return ranges_text(rank for rank, _ in mismatch.differing_ranks)


def _format_hosts(ranks: Sequence[int], attributes: Mapping[str, str]) -> str:
    """The known hosts of these ranks in brackets."""
    hosts = dict.fromkeys(attributes[host_key(r)] for r in ranks if host_key(r) in attributes)
    return f" ({', '.join(hosts)})" if hosts else ""


def _format_distinct(one: float, other: float) -> tuple[str, str]:
    """Two different numbers with the fewest digits that distinguish them."""
    texts = ((f"{one:.{n}g}", f"{other:.{n}g}") for n in (6, 9, 13))
    return next((pair for pair in texts if pair[0] != pair[1]), (repr(one), repr(other)))
