"""Accuracy and time of the estimate of an onset, and whether every place shows the same one.

`onsets.py [--series N] [--corpus FOLDER ...] [--smoke]`

The first table is on made series with a known onset, from which a detector's date is 0 to 12 points
late. After that the incidents of made runs, and of the labelled logs of each folder with an
`index.jsonl`, are compared in all places: see `onset_places.py`. No pass or fail.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from onset_places import compare_places, made_runs

from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.onset import estimate_onset
from sentinel.readers.format_detection import open_log

SHAPES = (
    "step up", "step down", "ramp", "ramp to a level", "fall to a level", "exponential growth",
    "bend of a trend", "step in a trend", "spikes before", "another change before",
    "heavy tails", "correlated noise", "short window",
)  # fmt: skip


def make_series(shape: str, rng: np.random.Generator) -> tuple[list[float], int, int]:
    """Values in units of their noise, the index of the onset, and that which a detector reports."""
    before, delay = int(rng.integers(40, 110)), int(rng.integers(0, 13))
    after, size = delay + int(rng.integers(4, 25)), float(rng.choice([3.0, 5.0, 10.0]))
    if shape == "short window":
        before, after, size = int(rng.integers(8, 16)), int(rng.integers(4, 12)), max(size, 5.0)
        delay = min(delay, after - 1)
    n, since = before + after, np.arange(1, after + 1)
    noise, base = rng.normal(0.0, 1.0, n), np.zeros(n)
    change = {
        "step down": np.full(after, -size),
        "ramp": size * since / 12,
        "ramp to a level": size * np.minimum(since / 8, 1.0),
        "fall to a level": -size * np.minimum(since / 10, 1.0),
        "bend of a trend": size * since / 16,
        "exponential growth": size * since / 6,
    }.get(shape, np.full(after, size))
    if shape in ("bend of a trend", "step in a trend"):
        base = -0.05 * np.arange(n)
    if shape == "heavy tails":
        noise = rng.standard_t(3, n)
    if shape == "correlated noise":
        for at in range(1, n):
            noise[at] = 0.5 * noise[at - 1] + 0.75**0.5 * noise[at]
    if shape == "another change before":
        base[: before - 30] -= 5.0 * rng.choice([-1.0, 1.0])
    if shape == "spikes before":
        noise[rng.choice(before - 2, 3, replace=False)] += 15.0 * rng.choice([-1.0, 1.0], 3)
    values = base + noise
    values[before:] += change
    if shape == "exponential growth":
        values = np.exp(0.1 * values)
    return values.tolist(), before, before + delay


def print_accuracy(count: int) -> None:
    """Errors of `count` series of each shape; without an estimate, the date of the detector."""
    print("| change | error of the detector | error | in the interval | width | found | ms |")
    print("|---|---|---|---|---|---|---|")
    rows: list[tuple[int, int, bool | None, int, float]] = []
    for shape in SHAPES:
        measured = [_measure(*make_series(shape, np.random.default_rng(n))) for n in range(count)]
        _print_row(shape, measured)
        rows += measured
    _print_row("all", rows)


def _measure(
    values: list[float], onset: int, suspected: int
) -> tuple[int, int, bool | None, int, float]:
    began = time.perf_counter()
    found = estimate_onset(list(enumerate(values)), suspected)
    seconds = time.perf_counter() - began
    if found is None:
        return suspected - onset, suspected - onset, None, 0, seconds
    is_covered = found.earliest <= onset <= found.latest
    width = found.latest - found.earliest
    return suspected - onset, abs(found.step - onset), is_covered, width, seconds


def _print_row(shape: str, rows: list[tuple[int, int, bool | None, int, float]]) -> None:
    before, errors, covered, widths, seconds = zip(*rows, strict=True)
    found = [each for each in covered if each is not None]
    print(
        f"| {shape} | {statistics.median(before):g}, mean {statistics.mean(before):.1f}"
        f" | {statistics.median(errors):g}, mean {statistics.mean(errors):.1f}"
        f" | {sum(found)} of {len(found)} | {statistics.median(widths):g}"
        f" | {len(found) / len(rows):.0%} | {1000 * statistics.median(seconds):.0f} |"
    )


def print_places(name: str, runs: dict[str, list]) -> None:
    """How many incidents and cases have one date in all places; the others in full."""
    counts, differing = [0, 0], []
    with tempfile.TemporaryDirectory() as folder:
        for run, records in runs.items():
            compared = compare_places(Path(folder) / f"{run}.db", records)
            counts[0] += compared.incidents
            counts[1] += compared.cases
            differing += [f"{run}: {text}" for text in compared.differing]
    print(f"{name}: {counts[0]} incidents, {counts[1]} cases; {len(differing)} differ")
    print(*differing, sep="\n")


def corpus_runs(folder: Path) -> dict[str, list]:
    """The records of the labelled logs of a folder."""
    found = {}
    for line in (folder / "index.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["label"].get("incidents"):
            records = [*open_log(folder / row["file"])]
            stop = replace(records[-1], event=Event.STOP, values={}, attributes={}, rank=WHOLE_RUN)
            found[row["id"]] = [*records, stop]
    return found


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100)
    parser.add_argument("--corpus", type=Path, nargs="*", default=[])
    parser.add_argument("--smoke", action="store_true", help="a few series and runs, in seconds")
    arguments = parser.parse_args()
    print_accuracy(2 if arguments.smoke else arguments.series)
    print_places("made runs", made_runs(3 if arguments.smoke else 50))
    for folder in arguments.corpus:
        print_places(str(folder), corpus_runs(folder))


if __name__ == "__main__":
    main()
