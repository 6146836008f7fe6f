"""Importance of settings on functions whose answer is known, beside other methods; and its time.

    python benchmarks/importance.py [--part truth|coverage|scale] [--sets 100] [--sizes 20,60,200]
                                     [--functions NAME ...]

Three parts:

    truth      How often a setting that matters ranks above one that does not (AUC: 1 is always, 0.5
               chance), for sentinel, for the method that W&B documents for its parameter
               importance (impurity importance of one random forest on all runs, and linear
               correlation), and for Optuna's fANOVA if optuna is installed. On pure noise: the
               importance of the first setting, and in how many sets something is said to matter.
    coverage   In how many sets the 95 % intervals of sentinel contain the truth. The importance
               and R2 of a forest that is fitted on so many runs are estimated from 60 further sets,
               each judged on 2,000 new runs; the rank correlation from 200,000 runs. `exact` is the
               total-effect index of Sobol, which a forest that has learnt everything would reach.
    scale      Time of sentinel and of the W&B method for 20 to 2,000 runs of 30 settings.

Settings are drawn as in a random search: a learning rate over three decades, numbers, choices and
flags. Data sets differ in their seeds; all methods see the same ones.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import RandomForestRegressor

from sentinel.insight.importance import bootstrap_forest
from sentinel.insight.importance.importance import importance

OTHER_SETS, NEW_RUNS, MANY_RUNS = 60, 2000, 200_000
Run = dict[str, float | bool | str]


@dataclass(frozen=True)
class Function:
    """An outcome of settings; `matters` names those that it depends on."""

    name: str
    matters: tuple[str, ...]
    outcome: Callable[[Run], float]
    noise: float = 0.3


def log10_rate(run: Run) -> float:
    return float(np.log10(run["lr"]))


FUNCTIONS = (
    Function("additive", ("a", "b", "c"), lambda r: 2 * r["a"] + r["b"] + 0.5 * r["c"]),
    Function(
        "valley", ("lr", "optimizer"),
        lambda r: (log10_rate(r) + 3.5) ** 2 + 0.8 * (r["optimizer"] == "sgd"),
    ),
    Function("interaction", ("a", "b"), lambda r: 6 * (r["a"] - 0.5) * (r["b"] - 0.5)),
    Function("noise", (), lambda _: 0.0, 1.0),
)  # fmt: skip


def draw_runs(function: Function, count: int, seed: int, extra: int = 0) -> list[Run]:
    """Runs with settings and their `outcome`; `extra` adds numbers that do not matter."""
    source = Random(f"{function.name} {count} {seed}")
    runs = []
    for _ in range(count):
        run: Run = {
            "lr": 10 ** source.uniform(-5, -2),
            "optimizer": source.choice(["adamw", "sgd", "lion"]),
            "packing": source.random() < 0.5,
            **{name: source.random() for name in "abcde"},
            **{f"x{number}": source.random() for number in range(extra)},
        }
        run["outcome"] = function.outcome(run) + function.noise * source.gauss(0, 1)
        runs.append(run)
    return runs


def settings_of(runs: Sequence[Run]) -> list[str]:
    return [name for name in runs[0] if name != "outcome"]


def ours(runs: Sequence[Run], seed: int = 0):
    return importance(
        [
            {"settings": {name: run[name] for name in settings_of(runs)}, "outcome": run["outcome"]}
            for run in runs
        ],
        seed=seed,
    )


def matrix_of(runs: Sequence[Run]) -> tuple[np.ndarray, list[str]]:
    """The settings with choices as columns of 0 and 1, and the setting of each column."""
    columns, names = [], []
    for name in settings_of(runs):
        values = [run[name] for run in runs]
        levels = sorted({*values}) if isinstance(values[0], str) else None
        for level in levels or [None]:
            chosen = values if level is None else [value == level for value in values]
            columns.append(np.array(chosen, dtype=float))
            names.append(name)
    return np.array(columns).T, names


def documented_by_wandb(runs: Sequence[Run]) -> dict[str, float]:
    """Impurity importance of a forest on all runs, summed over the columns of a choice."""
    x, names = matrix_of(runs)
    forest = RandomForestRegressor(100, random_state=0)
    forest.fit(x, [run["outcome"] for run in runs])
    found = dict.fromkeys(names, 0.0)
    for name, value in zip(names, forest.feature_importances_, strict=True):
        found[name] += float(value)
    return found


def fanova(runs: Sequence[Run]) -> dict[str, float]:
    """Optuna's fANOVA (Hutter et al. 2014) of a study with these runs as trials."""
    import optuna

    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kinds = {
        name: optuna.distributions.CategoricalDistribution(sorted({run[name] for run in runs}))
        if isinstance(runs[0][name], str | bool)
        else optuna.distributions.FloatDistribution(1e-6, 1.0, log=name == "lr")
        for name in settings_of(runs)
    }
    study = optuna.create_study()
    for run in runs:
        study.add_trial(
            optuna.trial.create_trial(
                params={name: run[name] for name in kinds},
                distributions=kinds,
                value=run["outcome"],
            )
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def our_values(runs: Sequence[Run]) -> dict[str, float]:
    return {row["name"]: row["importance"] for row in ours(runs).settings}


def auc(found: dict[str, float], matters: Sequence[str]) -> float:
    others = [value for name, value in found.items() if name not in matters]
    pairs = [(found[name], other) for name in matters for other in others]
    return statistics.fmean((a > b) + 0.5 * (a == b) for a, b in pairs)


def measure_truth(functions: Sequence[Function], sets: int, sizes: Sequence[int]) -> None:
    methods = {"sentinel": our_values, "W&B": documented_by_wandb, "fANOVA": fanova}
    try:
        import optuna  # noqa: F401
    except ImportError:
        print("optuna is not installed: no fANOVA (pip install optuna)")
        del methods["fANOVA"]
    for function in functions:
        for size in sizes:
            line = f"{function.name:12} {size:5} runs "
            for name, method in methods.items():
                found = [method(draw_runs(function, size, seed)) for seed in range(sets)]
                if function.matters:
                    value = statistics.fmean(auc(each, function.matters) for each in found)
                    line += f"  {name} AUC {value:.3f}"
                else:
                    value = statistics.fmean(max(each.values()) for each in found)
                    line += f"  {name} first {value:.3f}"
            if not function.matters:
                results = [ours(draw_runs(function, size, seed)) for seed in range(sets)]
                said = sum(result.score["low"] > 0 for result in results)
                rows = [row["low"] > 0 for result in results for row in result.settings]
                line += f"  sentinel: R2 above 0 in {said} of {sets} sets, "
                line += f"{sum(rows)} of {len(rows)} settings above 0"
            print(line, flush=True)


def truth_at(function: Function, size: int) -> tuple[dict[str, float], float]:
    """Importance of each setting, and R2, of a forest that is fitted on so many runs."""
    new = draw_runs(function, NEW_RUNS, 10**6)
    x_new, names = matrix_of(new)
    y_new = np.array([run["outcome"] for run in new])
    sums, scores = dict.fromkeys(names, 0.0), []
    order = np.random.default_rng(0).permutation(NEW_RUNS)
    for seed in range(OTHER_SETS):
        runs = draw_runs(function, size, 10**5 + seed)
        x, _ = matrix_of(runs)
        forest = RandomForestRegressor(
            bootstrap_forest.TREES,
            min_samples_leaf=bootstrap_forest.MIN_LEAF_RUNS,
            random_state=seed,
        ).fit(x, [run["outcome"] for run in runs])
        errors = (y_new - forest.predict(x_new)) ** 2
        scores.append(1 - errors.mean() / y_new.var())
        for name in sums:
            moved = x_new.copy()
            of_name = [place for place, each in enumerate(names) if each == name]
            moved[:, of_name] = x_new[order][:, of_name]
            added = (y_new - forest.predict(moved)) ** 2 - errors
            sums[name] += float(added.mean()) / float(y_new.var()) / 2 / OTHER_SETS
    return sums, statistics.fmean(scores)


def correlations_of(function: Function) -> dict[str, float]:
    runs = draw_runs(function, MANY_RUNS, 10**7)
    ranks = rankdata([run["outcome"] for run in runs])
    return {
        name: float(np.corrcoef(rankdata([float(run[name]) for run in runs]), ranks)[0, 1])
        for name in settings_of(runs)
        if not isinstance(runs[0][name], str)
    }


def measure_coverage(functions: Sequence[Function], sets: int, sizes: Sequence[int]) -> None:
    for function in filter(lambda each: each.matters, functions):
        correlations = correlations_of(function)
        for size in sizes:
            truths, score = truth_at(function, size)
            results = [ours(draw_runs(function, size, seed), seed) for seed in range(sets)]

            def covered(
                truth: dict[str, float],
                names: Sequence[str],
                low: str,
                high: str,
                results=results,
            ) -> str:
                hits = [
                    row[low] <= truth[row["name"]] <= row[high]
                    for result in results
                    for row in result.settings
                    if row["name"] in names
                ]
                return f"{statistics.fmean(hits):.2f}"

            rest = [name for name in truths if name not in function.matters]
            shown = [
                f"{name} {truths[name]:.3f}: "
                f"{covered(truths, [name], 'low', 'high')} "
                f"(mean {mean_of(results, name):.3f})"
                for name in function.matters
            ]
            above = statistics.fmean(
                row["low"] > 0
                for result in results
                for row in result.settings
                if row["name"] in rest
            )
            inside = statistics.fmean(
                result.score["low"] <= score <= result.score["high"] for result in results
            )
            known = [*correlations]
            print(
                f"{function.name:12} {size:5} runs  importance {', '.join(shown)}; "
                f"others {covered(truths, rest, 'low', 'high')}, above 0 {above:.3f}; "
                f"R2 {score:.2f}: {inside:.2f}; correlation "
                f"{covered(correlations, known, 'correlation_low', 'correlation_high')}",
                flush=True,
            )


def mean_of(results, name: str) -> float:
    rows = [row for result in results for row in result.settings if row["name"] == name]
    return statistics.fmean(row["importance"] for row in rows)


def measure_scale() -> None:
    for size in (20, 200, 500, 1000, 2000):
        runs = draw_runs(FUNCTIONS[0], size, 0, extra=22)
        times = []
        for method in (ours, documented_by_wandb):
            start, cpu = time.perf_counter(), time.process_time()
            method(runs)
            times += [time.perf_counter() - start, time.process_time() - cpu]
        print(
            f"{size:5} runs, 30 settings: sentinel {times[0]:.1f} s ({times[1]:.1f} s of CPU), "
            f"W&B method {times[2]:.1f} s ({times[3]:.1f} s)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=("truth", "coverage", "scale"))
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument(
        "--sizes", type=lambda text: [*map(int, text.split(","))], default=[20, 60, 200]
    )
    names = [function.name for function in FUNCTIONS]
    parser.add_argument("--functions", nargs="+", choices=names, default=names, metavar="NAME")
    args = parser.parse_args()
    functions = [function for function in FUNCTIONS if function.name in args.functions]
    if args.part in (None, "truth"):
        measure_truth(functions, args.sets, args.sizes)
    if args.part in (None, "coverage"):
        measure_coverage(functions, args.sets, args.sizes)
    if args.part in (None, "scale"):
        measure_scale()


if __name__ == "__main__":
    main()
