"""Causes of labelled real logs: the share that is right, coverage, and whether confidences hold.

    python benchmarks/causes.py CORPUS... [--labels FILE] [--cases FILE] [--list]
    python benchmarks/causes.py --made

CORPUS is a folder of logs with an index.jsonl, whose lines have the `id` and `file` of a run. Each
log is replayed as in `sentinel replay`, and each case is compared with the labels of its incident.
A line of the labels (benchmarks/causes.jsonl by default) has `set` (the name of the folder), `run`,
`step`, `types` of the incident, and the causes that two readers of the log find `right`,
`plausible` and `wrong`. With --cases the cases are written to FILE, and read from it the next time.
--made uses three short logs of its own, to try the program.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detection_intervals import format_share
from page_tables import rows

from sentinel.config.settings import Settings
from sentinel.pipeline.pipeline import build
from sentinel.pipeline.replay import Replay
from sentinel.readers.format_detection import open_log

Row = dict[str, Any]

LABELS = Path(__file__).with_name("causes.jsonl")

ONE_EVENT = (
    {"loss_spike", "loss_divergence", "nan_or_inf"},
    {"loss_plateau", "loss_never_moved"},
    {"loss_zero", "nan_or_inf", "grad_vanishing"},
    {"grad_vanishing", "reward_zero_variance"},
    {"kl_blowup", "kl_drift", "kl_negative"},
    {"length_explosion", "truncation"},
    {"step_regression", "step_stride"},
)
"""Detectors that can find the same event."""

EARLY_POINTS = 8
"""Logged points before the labelled onset from which a case counts."""

BINS = (0.6, 0.7, 0.8, 0.9, 1.01)
"""Bounds of the confidences that are compared with the share that is right."""

VERDICTS = ("right", "plausible", "wrong", "unlabelled")


def main() -> None:
    """Replay, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="*")
    parser.add_argument("--labels", type=Path, default=LABELS)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--list", action="store_true", help="each case with its verdict")
    parser.add_argument("--made", action="store_true")
    args = parser.parse_args()
    if args.made:
        with TemporaryDirectory() as folder:
            args.corpus, args.labels = [Path(folder)], make_corpus(Path(folder))
            _compare(args)
        return
    if not args.corpus:
        parser.error("give the folders of the corpus, or --made")
    if missing := [str(path) for path in args.corpus if not (path / "index.jsonl").is_file()]:
        parser.error(f"{', '.join(missing)}: no index.jsonl; give folders of logs that have one")
    _compare(args)


def make_corpus(folder: Path) -> Path:
    """Write three logs with their index into the folder; returns the file of their labels.

    A NaN loss, a loss on held-out data that rises, and a loss that falls.
    """
    falling = [3.0 * 0.98**n + 0.5 + 0.01 * (n % 5) for n in range(120)]
    lost = [*falling[:60], *[nan] * 20]
    held_out = [(n, {"eval_loss": 2.0 + 0.05 * abs(n - 40)}) for n in range(0, 120, 10)]
    logs = {
        "nan": [{"step": n, "loss": loss} for n, loss in enumerate(lost)],
        "overfit": [
            *({"step": n, "loss": loss} for n, loss in enumerate(falling)),
            *({"step": n, **values} for n, values in held_out),
        ],
        "well": [{"step": n, "loss": loss} for n, loss in enumerate(falling)],
    }
    labels = [
        {"run": "nan", "step": 60, "types": ["nan_or_inf"], "right": ["numerical_breakdown"]},
        {"run": "overfit", "step": 40, "types": ["overfitting"], "right": ["overfit"]},
    ]
    for name, log in logs.items():
        log.sort(key=lambda row: row["step"])
        _write_rows(folder / f"{name}.jsonl", log)
    _write_rows(folder / "index.jsonl", [{"id": name, "file": f"{name}.jsonl"} for name in logs])
    whole = {"set": folder.resolve().name, "plausible": [], "wrong": []}
    _write_rows(folder / "labels.jsonl", [whole | label for label in labels])
    return folder / "labels.jsonl"


def _compare(args: argparse.Namespace) -> None:
    """Replay the logs, or read what a replay wrote, and print the verdicts."""
    if args.cases and args.cases.is_file():
        cases = _read_rows(args.cases)
    else:
        cases = [case for corpus in args.corpus for case in replay_corpus(corpus)]
        if args.cases:
            _write_rows(args.cases, cases)
    sets = {path.resolve().name for path in args.corpus}
    labels = [label for label in _read_rows(args.labels) if label["set"] in sets]
    judged = [judge(case, labels) for case in cases if case["set"] in sets]
    if args.list:
        for each in judged:
            print(json.dumps(each))
    print(_summary(judged))


def replay_corpus(corpus: Path) -> Iterator[Row]:
    """The cases of each run: their incidents, the cause of their last state, possible causes."""
    for run in _read_rows(corpus / "index.jsonl"):
        replay, steps = Replay(build(Settings())), set[int]()
        for entry in open_log(corpus / run["file"]):
            steps.add(entry.step)
            replay.process([entry])
        replay.end()
        result, grid = replay.result(), sorted(steps)
        for case in result.cases:
            incidents, diagnosis = result.incidents_in(case), case.diagnosis
            yield {
                "set": corpus.resolve().name,
                "run": run["id"],
                "severity": case.incident.severity.value,
                "detectors": sorted({each.key.detector for each in incidents}),
                "onset": min(each.onset_step for each in incidents),
                "opened": [each.opened_step for each in incidents],
                "early": EARLY_POINTS * max(1.0, (grid[-1] - grid[0]) / max(1, len(grid) - 1)),
                "cause": "" if diagnosis is None else diagnosis.cause,
                "confidence": 0.0 if diagnosis is None else diagnosis.confidence,
                "possible": [each.cause for each in case.possible_causes],
            }


def judge(case: Row, labels: Iterable[Row]) -> Row:
    """The case with its `verdict` ("" without a cause) and whether its label has a right cause."""
    label = find_label(case, labels)
    verdict = ""
    if case["cause"]:
        verdict = next(
            (name for name in VERDICTS[:3] if label and case["cause"] in label[name]), "unlabelled"
        )
    right = label["right"] if label else []
    return case | {"verdict": verdict, "has_label": label is not None, "right": right}


def find_label(case: Row, labels: Iterable[Row]) -> Row | None:
    """The label whose incident is nearest to an incident of the case, if one can be the same."""
    near = [
        (min(abs(step - label["step"]) for step in opened), label)
        for label in labels
        if (label["set"], label["run"]) == (case["set"], case["run"])
        and _is_related(label["types"], case["detectors"])
        and (opened := [n for n in case["opened"] if n >= label["step"] - case["early"]])
    ]
    return min(near, key=lambda each: each[0], default=(0, None))[1]


def _is_related(types: Iterable[str], detectors: Iterable[str]) -> bool:
    return any(
        kind == detector or any({kind, detector} <= event for event in ONE_EVENT)
        for kind in types
        for detector in detectors
    )


def _summary(judged: list[Row]) -> str:
    named = [case for case in judged if case["cause"]]
    counts = Counter(case["verdict"] for case in named)
    critical = sum(case["severity"] == "critical" and case["verdict"] == "wrong" for case in named)
    known = [case for case in judged if case["right"]]
    possible = sum(not {*case["possible"]}.isdisjoint(case["right"]) for case in known)
    covered = sum(bool(case["cause"]) for case in known)
    body = [[name, str(counts[name])] for name in VERDICTS]
    body += [
        ["wrong and critical", str(critical)],
        ["right of the labelled", format_share(counts["right"], len(named) - counts["unlabelled"])],
        ["right of all named", format_share(counts["right"], len(named))],
        ["coverage", format_share(covered, len(known))],
        ["a possible cause is right", format_share(possible, len(known) - covered)],
    ]
    return f"{rows(['causes given', str(len(named))], body)}\n\n{_reliability(named)}"


def _reliability(named: list[Row]) -> str:
    """By confidence: the causes whose label has one, and the share that is right."""
    labelled = [case for case in named if case["verdict"] != "unlabelled"]
    body = []
    for low, high in pairwise(BINS):
        inside = [case for case in labelled if low <= case["confidence"] < high]
        right = sum(case["verdict"] == "right" for case in inside)
        share = format_share(right, len(inside))
        body.append([f"{low:.1f} to {min(high, 1.0):.1f}", str(len(inside)), share])
    return rows(["confidence", "labelled", "right"], body)


def _write_rows(path: Path, objects: Iterable[Row]) -> None:
    """Write the objects, one a line."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in objects))


def _read_rows(path: Path) -> list[Row]:
    """The objects of a file, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


if __name__ == "__main__":
    main()
