"""Which settings explain an outcome over many runs: permutation importance and correlation.

A random forest predicts the outcome from the settings. A setting matters as far as the forest
errs more on held-out runs once the setting is permuted (Breiman 2001); intervals come from
bootstrap samples of the runs, see `bootstrap_forest`. The rank correlation (Spearman) shows in
which direction. The engine is scikit-learn, of the extra `insight`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import rankdata, spearmanr

from sentinel.insight.importance.bootstrap_forest import Array, ForestResult, fit_forests
from sentinel.insight.importance.run_collection import Statistic, collect_runs
from sentinel.insight.result import Result
from sentinel.model.json_safe import JsonObject
from sentinel.signals.catalogue import better_value
from sentinel.store.run_settings import Setting, SettingTable, flat_settings, tabulate

Failed = Literal["drop", "worst"]
MIN_RUNS = 10
"""With fewer runs of different settings, no forest is fitted."""
MIN_CORRELATED_RUNS = 5
MIN_SAMPLES, MAX_SAMPLES = 40, 100
"""Bootstrap samples with a forest each: fewer for many runs, which spread less."""
CORRELATION_SAMPLES = 1000
FEW_RUNS_PER_SETTING = 3
CLIP_SPREADS, FAR_SPREADS = 1.5, 3.0
"""Interquartile ranges outside the quartiles (Tukey's fences): outcomes beyond the first count as
if they were there, and the note names those beyond the second."""
TIED = 0.9
"""Rank correlation from which two settings cannot be distinguished reliably."""
MAX_OUTCOME = 1e100
"""A larger outcome counts as infinite: its square would be."""
_QUANTILES = (0.025, 0.975)
_MAX_NAMES = 5
MAX_TABLE_RUNS, MAX_TABLE_SETTINGS = 2000, 40


@dataclass(frozen=True, slots=True)
class Importance(Result):
    """Which settings explain `outcome`.

    `settings`, the most important first, have name, kind (number, flag or choice), scale (linear or
    log), importance with low and high (share of the variance of the outcome, see
    `bootstrap_forest.ForestResult`), correlation with correlation_low and correlation_high (None
    for choices of several values), partial_dependence (x, y, low, high, in the unit of the outcome;
    an x of None is "not set"), values_seen, missing (runs without it) and same_as (settings that
    change in exactly the same runs). All intervals are at 95 %. `score` is the share of the
    variance on held-out runs that the forest explains: r2, low, high. Importance, score and curves
    are None or empty with fewer than `MIN_RUNS` different runs. `constant` are settings that are
    equal in all runs. `table` has the columns (run, settings, outcome) and rows of the runs. `note`
    states in sentences what limits the result.
    """

    outcome: str
    better: str
    runs: int
    settings: list[JsonObject]
    table: JsonObject
    score: JsonObject | None
    constant: list[JsonObject] = field(default_factory=list)
    note: list[str] = field(default_factory=list)
    kind: str = "importance"


def importance(  # noqa: PLR0913 - each is a choice of the caller
    runs: Sequence[Mapping[str, Any]] | Sequence[str | Path] | str | Path = (),
    outcome: str = "",
    *,
    statistic: Statistic = "last",
    better: str = "",
    failed: Failed = "drop",
    exclude: Sequence[str] = (),
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> Importance:
    """Which settings of the runs explain their outcome.

    `runs` are mappings with name, settings (nested ones are joined with a dot) and outcome, a
    number, or what `run_collection.collect_runs` reads: run ids, logs, tables and folders; without
    any, all runs of the home directory. `statistic` is what of a signal is the outcome: last, best,
    or mean (of the last tenth of the steps). A run failed if its outcome is NaN or infinite, or
    `failed` is true. Such runs are left out, or count as the worst one seen (`failed="worst"`),
    which needs `better`: "lower" or "higher", by default known from the name of the outcome.
    Settings that match a pattern of `exclude`, as in a shell, are left out. The result is the same
    for the same `seed`. Raises ValueError if no setting or no outcome can be used, OSError if a
    folder cannot be read, and ImportError without scikit-learn.
    """
    _require_scikit_learn()
    if better not in {"", "lower", "higher"}:
        raise ValueError(f'better must be "lower" or "higher", not {better!r}.')
    if failed not in {"drop", "worst"}:
        raise ValueError(f'failed must be "drop" or "worst", not {failed!r}.')
    listed = [runs] if isinstance(runs, str | Path) else [*runs]
    notes: list[str] = []
    if not listed or isinstance(listed[0], str | Path):
        found = collect_runs(
            [each for each in listed if isinstance(each, str | Path)],
            outcome,
            statistic=statistic,
            better=better,
        )
        outcome, notes = found.outcome, found.notes
        collected: list[Mapping[str, Any]] = [*found.runs]
    else:
        collected = [each for each in listed if isinstance(each, Mapping)]
    outcome = outcome or "outcome"
    better = better or better_value(outcome)
    kept, outcomes = _usable_runs(collected, outcome, better, failed, notes)
    settings = tabulate(
        [
            {
                name: value
                for name, value in flat_settings(run.get("settings") or {}).items()
                if not any(fnmatchcase(name, pattern) for pattern in exclude)
            }
            for run in kept
        ]
    )
    if not settings.varying:
        raise ValueError(
            f"no setting differs between the {len(kept)} runs, so nothing can explain {outcome}. "
            "Settings are stored with @sentinel.monitor(metadata={...})."
        )
    values = np.array(outcomes)
    clipped = _clipped(values, outcome, notes)
    forest = _fit(settings, clipped, seed, progress, notes)
    rows = _setting_rows(settings, values, forest, seed)
    notes += [*_repeated_runs(settings.group, values), *_inseparable(settings.varying)]
    notes += _left_out(settings)
    return Importance(
        outcome,
        better,
        len(kept),
        rows,
        _table(settings.varying, [row["name"] for row in rows], kept, outcomes, outcome),
        None if forest is None else _score(forest),
        [{"name": name, "value": value} for name, value in settings.constant.items()],
        notes,
    )


def _require_scikit_learn() -> None:
    from importlib.util import find_spec  # noqa: PLC0415

    if find_spec("sklearn") is None:
        raise ImportError(
            "importance needs scikit-learn: pip install 'train-sentinel[insight]'", name="sklearn"
        )


def _usable_runs(
    runs: Sequence[Mapping[str, Any]], outcome: str, better: str, failed: Failed, notes: list[str]
) -> tuple[list[Mapping[str, Any]], list[float]]:
    """The runs that count, and their outcomes."""
    known = [run for run in runs if run.get("outcome") is not None or run.get("failed")]
    if len(known) < len(runs):
        count = len(runs) - len(known)
        notes.append(f"{_count(count, 'run')} of {len(runs)} without {outcome}: left out.")
    good = [float(run["outcome"]) for run in known if _is_good(run)]
    if len(good) < MIN_CORRELATED_RUNS:
        raise ValueError(
            f"only {len(good)} of {len(runs)} runs have a finite {outcome}"
            f"{_beyond(known)}: "
            f"at least {MIN_CORRELATED_RUNS} are needed."
        )
    if min(good) == max(good):
        raise ValueError(f"{outcome} is {good[0]:g} in every run: there is nothing to explain.")
    bad = len(known) - len(good)
    if not bad:
        return known, good
    if failed == "drop":
        notes.append(
            f"{_count(bad, 'run')} of {len(runs)} failed or ended with NaN: left out. To count "
            'them as the worst run, use failed="worst" (--failed worst).'
        )
        return [run for run in known if _is_good(run)], good
    if better not in {"lower", "higher"}:
        raise ValueError(
            f"whether a lower or a higher {outcome} is better is not known, so a failed run has no "
            'outcome: state better="lower" or better="higher" (--better).'
        )
    worst = max(good) if better == "lower" else min(good)
    notes.append(
        f"{_count(bad, 'run')} of {len(runs)} failed or ended with NaN and count as the worst, "
        f"{worst:.4g}."
    )
    return known, [float(run["outcome"]) if _is_good(run) else worst for run in known]


def _beyond(runs: Sequence[Mapping[str, Any]]) -> str:
    """That outcomes are too large for sums of squares, if some are."""
    found = [run["outcome"] for run in runs if run.get("outcome") is not None]
    is_beyond = any(isfinite(each) and abs(each) > MAX_OUTCOME for each in found)
    return f" of at most {MAX_OUTCOME:g}" if is_beyond else ""


def _is_good(run: Mapping[str, Any]) -> bool:
    value = run.get("outcome")
    return value is not None and abs(value) <= MAX_OUTCOME and not run.get("failed")


def _clipped(values: Array, outcome: str, notes: list[str]) -> Array:
    """The outcomes without extremes, which alone would decide a mean of squares."""
    low, high = np.quantile(values, (0.25, 0.75))
    if low == high:
        return values
    clip, far = CLIP_SPREADS * (high - low), FAR_SPREADS * (high - low)
    count = int(((values < low - far) | (values > high + far)).sum())
    if count:
        notes.append(
            f"{_count(count, 'run')} with {outcome} far from the others: below {low - clip:.4g} a "
            f"value counts as {low - clip:.4g}, above {high + clip:.4g} as {high + clip:.4g}."
        )
    return np.clip(values, low - clip, high + clip)


def _fit(
    settings: SettingTable,
    outcome: Array,
    seed: int,
    progress: Callable[[float], None],
    notes: list[str],
) -> ForestResult | None:
    """The forests, and what limits them; None if there are too few different runs."""
    count, width = len(set(settings.group)), len(settings.varying)
    if count < MIN_RUNS:
        notes.insert(
            0,
            f"{_count(count, 'run')} with different settings are too few to show which setting "
            f"matters: at least {MIN_RUNS} are needed. Only rank correlations of "
            "settings with numbers are shown.",
        )
        return None
    samples = min(MAX_SAMPLES, max(MIN_SAMPLES, 20_000 // len(outcome)))
    forest = fit_forests(
        settings.varying, outcome, settings.group, samples=samples, seed=seed, progress=progress
    )
    score = _score(forest)
    interval = f"R2 {score['r2']:.2f}, 95 % interval {score['low']:.2f} to {score['high']:.2f}"
    if score["low"] <= 0:
        verdict = (
            "The settings do not explain the outcome: on held-out runs the forest is no better "
            f"than the mean ({interval})."
            if score["r2"] <= 0
            else f"{_count(count, 'run')} are too few to show that the settings explain the "
            f"outcome ({interval} on held-out runs)."
        )
        notes.insert(0, f"{verdict} The importances below may be chance.")
    elif count < FEW_RUNS_PER_SETTING * width:
        notes.insert(
            0,
            f"{count} different runs are few for {width} settings: a setting whose interval "
            "reaches 0 may still matter.",
        )
    return forest


def _score(forest: ForestResult) -> JsonObject:
    """R2 on held-out runs, over all samples, and its interval over the samples."""
    error, spread = forest.explained.sum(axis=0)
    low, high = _interval(1 - forest.explained[:, 0] / forest.explained[:, 1])
    return {"r2": 1 - float(error / spread), "low": low, "high": high}


def _interval(samples: Array) -> tuple[float, float]:
    low, high = np.nanquantile(samples, _QUANTILES)
    return float(low), float(high)


def _setting_rows(
    settings: SettingTable, outcome: Array, forest: ForestResult | None, seed: int
) -> list[JsonObject]:
    rows: list[JsonObject] = []
    for place, setting in enumerate(settings.varying):
        row: JsonObject = {
            "name": setting.name,
            "kind": setting.kind,
            "scale": "log" if setting.is_log else "linear",
            **_correlation(setting, outcome, settings.group, seed),
            "importance": None,
            "low": None,
            "high": None,
            "partial_dependence": None,
            "values_seen": len(set(setting.values) - {None}),
            "missing": sum(value is None for value in setting.values),
            "same_as": [*setting.same_as],
        }
        if forest is not None:
            low, high = _interval(forest.importance[:, place])
            row |= {
                "importance": float(forest.importance[:, place].mean()),
                "low": low,
                "high": high,
                "partial_dependence": _curve(forest.grids[place], forest.curves[place]),
            }
        rows.append(row)
    by = "correlation" if forest is None else "importance"
    return sorted(rows, key=lambda row: -abs(row[by] or 0.0) if forest is None else -row[by])


def _curve(grid: Sequence[Any], curves: Array) -> JsonObject:
    bands = [_interval(column) for column in curves.T]
    return {
        "x": [*grid],
        "y": [float(value) for value in curves.mean(axis=0)],
        "low": [low for low, _ in bands],
        "high": [high for _, high in bands],
    }


def _correlation(
    setting: Setting, outcome: Array, group: Sequence[int], seed: int
) -> dict[str, float | None]:
    """Spearman's rank correlation over the runs with the setting, with a bootstrap interval.

    The bootstrap draws the runs with equal settings together, and keeps the ranks of all runs.
    """
    keys = ("correlation", "correlation_low", "correlation_high")
    numbers = _numbers(setting)
    if numbers is None:
        return dict.fromkeys(keys)
    has = np.isfinite(numbers)
    if has.sum() < MIN_CORRELATED_RUNS or not (_varies(numbers[has]) and _varies(outcome[has])):
        return dict.fromkeys(keys)
    _, codes = np.unique(np.asarray(group)[has], return_inverse=True)
    count = int(codes.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(
        count, np.full(count, 1 / count), CORRELATION_SAMPLES
    )
    weights = np.vstack([np.ones(count), drawn])[:, codes]
    x, y = rankdata(numbers[has]), rankdata(outcome[has])
    weights = weights / weights.sum(axis=1, keepdims=True)
    mean_x, mean_y = weights @ x, weights @ y
    covariance = weights @ (x * y) - mean_x * mean_y
    spread = (weights @ x**2 - mean_x**2) * (weights @ y**2 - mean_y**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = covariance / np.sqrt(np.where(spread > 1e-9, spread, np.nan))
    return dict(zip(keys, (float(found[0]), *_interval(found[1:])), strict=True))


def _varies(values: Array) -> bool:
    return bool(values.min() < values.max())


def _numbers(setting: Setting) -> Array | None:
    """The values as numbers, NaN where not set; None for a choice of more than two values."""
    if len(setting.levels) > 2:
        return None
    order = sorted(setting.levels)
    values = [order.index(str(v)) if order and v is not None else v for v in setting.values]
    return np.array([np.nan if value is None else float(value) for value in values])


def _repeated_runs(group: Sequence[int], outcome: Array) -> Iterator[str]:
    """How much runs with equal settings differ: no setting explains that."""
    codes = np.asarray(group)
    repeated = [outcome[codes == code] for code in np.flatnonzero(np.bincount(codes) > 1)]
    if repeated:
        freedom = sum(len(each) - 1 for each in repeated)
        squares = sum(float(((each - each.mean()) ** 2).sum()) for each in repeated)
        variance = squares / freedom
        share = min(1.0, variance / float(outcome.var(ddof=1)))
        yield (
            f"{sum(map(len, repeated))} runs repeat the settings of another. Such runs differ by "
            f"{variance**0.5:.3g} (standard deviation), {share:.0%} of the variance: no setting "
            "explains that part."
        )


def _inseparable(settings: Sequence[Setting]) -> Iterator[str]:
    """Settings that change together."""
    for setting in settings:
        if setting.same_as:
            names = ", ".join([setting.name, *setting.same_as])
            yield f"{names} always change together: their importances cannot be separated."
    numbers = [(setting.name, _numbers(setting)) for setting in settings]
    known = [(name, each) for name, each in numbers if each is not None]
    for place, (name, first) in enumerate(known):
        for other, second in known[place + 1 :]:
            has = np.isfinite(first) & np.isfinite(second)
            if has.sum() < MIN_CORRELATED_RUNS:
                continue
            if not (_varies(first[has]) and _varies(second[has])):
                continue
            found = float(spearmanr(first[has], second[has]).statistic)
            if abs(found) >= TIED:
                yield (
                    f"{name} and {other} mostly change together (rank correlation {found:.2f}): "
                    "how they share their importance is uncertain."
                )


def _left_out(settings: SettingTable) -> Iterator[str]:
    if settings.identifiers:
        names = _names(settings.identifiers)
        yield f"Left out, since they name the run (a text that differs in nearly each): {names}."
    if settings.seeds:
        yield f"Left out as seeds: {_names(settings.seeds)}."


def _names(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _table(
    settings: Sequence[Setting],
    order: Sequence[str],
    runs: Sequence[Mapping[str, Any]],
    outcomes: Sequence[float],
    outcome: str,
) -> JsonObject:
    """The runs with their settings, the most important first, and their outcomes."""
    by_name = {setting.name: setting for setting in settings}
    columns = [by_name[name].values for name in order[:MAX_TABLE_SETTINGS]]
    names = [str(run.get("name", place)) for place, run in enumerate(runs)]
    rows = [[*row] for row in zip(names, *columns, outcomes, strict=True)]
    return {
        "columns": ["run", *order[:MAX_TABLE_SETTINGS], outcome],
        "rows": rows[:MAX_TABLE_RUNS],
    }
