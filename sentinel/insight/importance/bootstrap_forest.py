"""Random forests on bootstrap samples of the runs: permutation importance with its spread.

Each sample of the runs, drawn with replacement, gets a forest of its own (Breiman 2001). What the
forest explains and what a setting contributes is measured on the runs that the sample left out, so
no run is judged by a forest that has seen it. Runs with equal settings are drawn together:
otherwise a forest would know the outcome of a held-out run from its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.store.run_settings import MAX_LEVELS, OTHER, Setting

Array = npt.NDArray[np.float64]

TREES = 25
MIN_LEAF_RUNS = 2
MAX_TREE_RUNS = 1000
"""Runs that one tree is grown on; more make it slower and hardly better."""
MAX_CURVE_POINTS, MAX_CURVE_RUNS = 12, 50
MIN_PERMUTED_RUNS, MAX_PERMUTATIONS = 100, 8
"""Few held-out runs are permuted several times, until that many were predicted."""
MIN_HELD_OUT = 2

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class ForestResult:
    """What the forests found, one row per bootstrap sample.

    `importance` has a column per setting: half of the squared error that permuting the setting
    adds on held-out runs, as a share of the variance of the outcome. If the settings are
    independent and the forest is exact, this is the total-effect index of Sobol (Saltelli et al.
    2008): the share of the variance that goes when the setting is fixed. `explained` has the
    squared error of the forest and that of the mean of the runs it saw, both on held-out runs.
    `curves` has the partial dependence of each setting, with a column per value of `grids`.
    """

    importance: Array
    explained: Array
    grids: Sequence[Sequence[Any]]
    curves: Sequence[Array]


def fit_forests(  # noqa: PLR0913 - what the forests are made of
    settings: Sequence[Setting],
    outcome: Array,
    group: Sequence[int],
    *,
    samples: int,
    seed: int,
    progress: Progress = lambda _: None,
) -> ForestResult:
    """Fit `samples` forests. Raises ImportError without scikit-learn."""
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - of an extra

    rng = np.random.default_rng(seed)
    columns = [_Columns(setting) for setting in settings]
    matrix = np.hstack([each.encode(each.setting.values) for each in columns])
    ends = np.cumsum([each.width for each in columns])
    slices = [slice(end - each.width, end) for each, end in zip(columns, ends, strict=True)]
    members = [np.flatnonzero(np.asarray(group) == code) for code in sorted(set(group))]
    variance = outcome.var(ddof=1)
    shown = matrix[rng.permutation(len(outcome))[:MAX_CURVE_RUNS]]
    moved = [each.moved(shown, part) for each, part in zip(columns, slices, strict=True)]
    importance, explained = np.empty((samples, len(settings))), np.empty((samples, 2))
    curves = [np.empty((samples, len(each.grid))) for each in columns]
    for sample in range(samples):
        seen, held_out = _draw(members, rng)
        forest = RandomForestRegressor(
            TREES,
            min_samples_leaf=MIN_LEAF_RUNS,
            max_samples=min(1.0, MAX_TREE_RUNS / len(seen)),
            random_state=int(rng.integers(2**31)),
        ).fit(matrix[seen], outcome[seen])
        rows = [matrix[held_out], _permuted(matrix[held_out], slices, rng), *moved]
        predicted, permuted, *on_curves = _predict(forest, rows)
        errors = (outcome[held_out] - predicted) ** 2
        mean = outcome[seen].mean()
        explained[sample] = errors.mean(), ((outcome[held_out] - mean) ** 2).mean()
        added = (outcome[held_out] - permuted) ** 2 - errors
        importance[sample] = added.mean(axis=(1, 2)) / variance / 2
        for curve, values in zip(curves, on_curves, strict=True):
            curve[sample] = values.mean(axis=1)
        progress((sample + 1) / samples)
    return ForestResult(importance, explained, [each.grid for each in columns], curves)


def _draw(members: Sequence[Any], rng: np.random.Generator) -> tuple[Any, Any]:
    """The runs of a bootstrap sample, with repetitions, and those it left out."""
    while True:
        drawn = rng.integers(0, len(members), len(members))
        left = np.setdiff1d(np.arange(len(members)), drawn)
        seen = np.concatenate([members[code] for code in drawn])
        held_out = np.concatenate([members[code] for code in left]) if len(left) else left
        if len(left) >= MIN_HELD_OUT:
            return seen, held_out


def _permuted(rows: Array, slices: Sequence[slice], rng: np.random.Generator) -> Array:
    """The rows with one setting after the other permuted: setting, permutation, row, column.

    Each row gets the value of another one: a permutation with fixed points would make the
    importance of few runs too small.
    """
    count = len(rows)
    repeats = min(MAX_PERMUTATIONS, -(-MIN_PERMUTED_RUNS // count))
    permuted = np.broadcast_to(rows, (len(slices), repeats, *rows.shape)).copy()
    for place, part in enumerate(slices):
        for repeat in range(repeats):
            order = rng.permutation(count)
            source = np.empty(count, dtype=int)
            source[order] = np.roll(order, int(rng.integers(1, count)))
            permuted[place, repeat, :, part] = rows[source, part]
    return permuted


def _predict(forest: Any, groups: Sequence[Array]) -> list[Array]:
    """The predictions for the rows in arrays of any shape. One call, since each has its cost."""
    flat = forest.predict(np.concatenate([rows.reshape(-1, rows.shape[-1]) for rows in groups]))
    ends = np.cumsum([rows.size // rows.shape[-1] for rows in groups])
    parts = np.split(np.asarray(flat, dtype=np.float64), ends[:-1])
    return [part.reshape(rows.shape[:-1]) for part, rows in zip(parts, groups, strict=True)]


class _Columns:
    """The columns of the matrix for one setting, and the values at which its curve is drawn."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        present = [value for value in setting.values if value is not None]
        if setting.kind == "choice":
            self.levels = [*setting.levels[:MAX_LEVELS]]
            has_others = len(setting.levels) > MAX_LEVELS
            self.grid: list[Any] = [*self.levels, *([OTHER] if has_others else [])]
        else:
            # Trees see the order of numbers only, and these have any size.
            self.order = np.unique(np.array(present, dtype=float))
            self.grid = [False, True] if setting.kind == "flag" else _grid(present)
        if setting.has_missing:
            self.grid.append(None)
        self.width = self.encode(setting.values[:1]).shape[1]

    def encode(self, values: Sequence[Any]) -> Array:
        """The rank of a number, or a column for each level of a choice; whether it is not set."""
        if self.setting.kind == "choice":
            columns = [[float(value == level) for value in values] for level in self.levels]
            rare = [float(value is not None and value not in self.levels) for value in values]
            columns.append(rare)
        else:
            middle = (len(self.order) - 1) / 2
            numbers = [middle if value is None else self._rank(float(value)) for value in values]
            columns = [numbers]
        if self.setting.has_missing:
            columns.append([float(value is None) for value in values])
        return np.array(columns, dtype=np.float64).T

    def _rank(self, value: float) -> float:
        return float(np.searchsorted(self.order, value))

    def moved(self, rows: Array, part: slice) -> Array:
        """The rows with the setting at each value of the grid: value, row, column."""
        moved = np.broadcast_to(rows, (len(self.grid), *rows.shape)).copy()
        moved[:, :, part] = self.encode(self.grid)[:, np.newaxis, :]
        return moved


def _grid(numbers: Sequence[Any]) -> list[Any]:
    """All numbers if they are few, else those at even shares of the runs."""
    distinct = np.unique(np.array(numbers, dtype=float))
    if len(distinct) > MAX_CURVE_POINTS:
        shares = np.linspace(0, 1, MAX_CURVE_POINTS)
        distinct = np.unique(np.quantile(numbers, shares, method="nearest"))
    return [float(value) for value in distinct]
