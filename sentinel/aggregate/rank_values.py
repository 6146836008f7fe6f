"""Said: what ranks said of one step, in our own words: of each rank, or of many as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import fsum, hypot, inf, isfinite, nan
from operator import itemgetter

from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, Row
from sentinel.signals.catalogue import WEIGHT_KEY, CombineRule, eval_name, get_combine_rule
from sentinel.signals.key_map import KeyMap, select_key_map


def safe_sum(values: Sequence[float]) -> float:
    """The sum; infinite, or NaN, where the numbers are so large that there is none."""
    try:
        return fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


COMBINE_FUNCTIONS: Mapping[CombineRule, Callable[[Sequence[float]], float]] = {
    CombineRule.SUM: safe_sum,
    CombineRule.MAX: max,
    CombineRule.MIN: min,
    CombineRule.NORM: lambda values: hypot(*values),
    CombineRule.SAME: itemgetter(0),
}


@dataclass(frozen=True, slots=True)
class ResolvedKeys:
    """What the keys of a record mean: the `names` of their signals, in the same order.

    It is `plain` where each key is another signal and says it in our unit, so that the numbers can
    be taken as they stand. `logged_as` are the keys that are not our names.
    """

    names: tuple[str, ...]
    is_direct: bool
    logged_as: Mapping[str, str]


# What one rank says at one step, it says at each, and so do the others.
@lru_cache(maxsize=256)
def resolve_keys(keys: tuple[str, ...], is_evaluation: bool, key_map: KeyMap) -> ResolvedKeys:
    """What these keys mean in that dialect, of training, or `evaluated` on held-out data."""
    words = [key_map.mappings[key] for key in keys]
    names = [eval_name(word.name) if is_evaluation else word.name for word in words]
    told = {name: key for name, key in zip(names, keys, strict=True) if name != key}
    as_it_stands = all(word.factor == 1.0 and not word.zero_is_missing for word in words)
    return ResolvedKeys(tuple(names), as_it_stands and len({*names}) == len(names), told)


@dataclass(slots=True)
class RankValues:
    """All that one rank said about one step, several words on one signal folded by its rule.

    `last` is its last record: its step and facts are the rank's last word, its time the newest of
    all its words. `weights` are those that are not 1. `logged_as` holds the names that were not
    ours, since some tell a unit ("objective/kl" is a sum).
    """

    last_record: Record
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    logged_as: dict[str, str] = field(default_factory=dict)

    def add(self, record: Record, key_map: KeyMap | None = None) -> None:
        """Fold one more record of the same rank, step and event in, its keys in that dialect."""
        newest = max(self.last_record.time, record.time)
        self.last_record = record if record.time == newest else replace(record, time=newest)
        key_map = key_map or select_key_map({})
        weight = record.values.get(WEIGHT_KEY, 1.0)
        told = resolve_keys(tuple(record.values), record.event is Event.EVAL, key_map)
        if told.is_direct and weight == 1.0 and self.values.keys().isdisjoint(told.names):
            ours = zip(told.names, record.values.values(), strict=True)
            self.values.update(ours if told.logged_as else record.values)
            self.values.pop(WEIGHT_KEY, None)
            self.logged_as.update(told.logged_as)
            return
        for name, (key, value) in zip(told.names, record.values.items(), strict=True):
            measured = None if key == WEIGHT_KEY else key_map.mappings[key].convert(value)
            if measured is not None:
                self._merge_value(name, measured, weight)
                if name != key:
                    self.logged_as[name] = key

    def discard_signals(self, names: Iterable[str]) -> None:
        """Forget what was said of these signals."""
        for name in names:
            for book in (self.values, self.weights, self.logged_as):
                book.pop(name, None)

    def _merge_value(self, name: str, value: float, weight: float) -> None:
        before = self.values.get(name)
        if before is not None:
            known = self.weights.get(name, 1.0)
            value = combine_values(get_combine_rule(name), (before, value), (known, weight))
            weight += known
        self.values[name] = value
        if weight != 1.0 or name in self.weights:
            self.weights[name] = weight


@dataclass(slots=True)
class RankValuesBatch:
    """What ranks said about one step in the same words, each another signal and of weight 1.

    `last` is what their newest record has in common with that of the others; its time is the
    newest. There is a row for each rank, with a value for each of `names`.
    """

    names: tuple[str, ...]
    logged_as: Mapping[str, str]
    last_record: Record
    rows: dict[int, Row]

    def split_off(self, rank: int) -> RankValues:
        """Take that rank's row out: it goes on alone."""
        values = dict(zip(self.names, self.rows.pop(rank), strict=True))
        return RankValues(replace(self.last_record, rank=rank), values, {}, dict(self.logged_as))


def to_rank_values_batch(batch: RecordBatch, key_map: KeyMap) -> RankValuesBatch | None:
    """That sheet in our own words; None where its numbers cannot be taken as they stand."""
    told = resolve_keys(batch.names, False, key_map)
    if not told.is_direct or WEIGHT_KEY in batch.names:
        return None
    last = Record(
        run=batch.run,
        rank=batch.ranks[0],
        step=batch.step,
        time=max(batch.times),
        attempt=batch.attempt,
        step_index=batch.step_index,
    )
    rows = dict(zip(batch.ranks, batch.rows, strict=True))
    return RankValuesBatch(told.names, told.logged_as, last, rows)


def combine_values(rule: CombineRule, values: Sequence[float], weights: Sequence[float]) -> float:
    """Those values as one, by that rule; NaN as soon as one is not finite."""
    if not all(map(isfinite, values)):
        return nan
    return (
        weighted_mean(values, weights)
        if rule is CombineRule.MEAN
        else COMBINE_FUNCTIONS[rule](values)
    )


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean by weights; the plain one, where these come to nothing that can be divided by."""
    whole = safe_sum(weights)
    if not 0.0 < whole < inf:
        return safe_sum(values) / len(values)
    return safe_sum([v * w for v, w in zip(values, weights, strict=True)]) / whole
