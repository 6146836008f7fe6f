"""Recall, delay and false alarms of fault detection: sentinel compared with other rules.

    python benchmarks/detection.py [--runs 50] [--corpus FOLDER] [--logs FOLDER] [--docs]
    python benchmarks/detection.py peer NAME FILE

All detectors, with defaults and through the engine, and the rules of peers, on (a) synthetic runs,
(b) a folder of labelled logs with its own score.py, (c) runs of real trainers that
`failing_runs.py` makes. The unit is the incident at warning or above. The default seeds are for
reporting; defaults of detectors are chosen with those of --tune. `peer` prints the alarms of one
evaluator on one log, a JSON object per line. Method: docs/detection.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from detection_intervals import format_rate, format_share
from detection_logs import corpus_scores, evaluate_log, incident_lines, training_tables
from detection_score import NONE, format_delays
from detection_suite import Outcome, Spec, evaluate_runs, select_evaluators, suite
from detection_tables import NEED_OURS, PAGE, SYNTHETIC, title
from page_tables import rows, write_table

REPORTING, TUNING = 9_500_000, 1_000_000
"""First seeds. No default was chosen with the reporting ones."""


def main() -> None:
    """Evaluate one log, or measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="*", help="peer NAME FILE")
    parser.add_argument("--runs", type=int, default=50, help="healthy runs of each kind")
    parser.add_argument("--seed", type=int, default=REPORTING)
    parser.add_argument("--tune", action="store_true", help="use the seeds for choosing defaults")
    parser.add_argument("--only", default="", help="evaluators, separated by commas")
    parser.add_argument("--kinds", default="", help="kinds of run or faults, separated by commas")
    parser.add_argument(
        "--list", action="store_true", help="every false alarm and missed fault, with its seed"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--corpus", type=Path, nargs="*", help="folders with index.jsonl, score.py above them"
    )
    parser.add_argument("--logs", type=Path, help="folder that failing_runs.py wrote")
    parser.add_argument(
        "--docs", action="store_true", help="write the tables into docs/detection.md"
    )
    parser.add_argument("--json", action="store_true", help="ignored; some scorers pass it")
    args = parser.parse_args()
    if args.command:
        sys.exit(_peer(args.command, parser))
    only, kinds = (tuple(filter(None, text.split(","))) for text in (args.only, args.kinds))
    _check_names(parser, "--only", only, select_evaluators())
    if kinds:
        known = set().union(*map(_kinds_of, _suite(args, args.seed)))
        _check_names(parser, "--kinds", kinds, sorted(known))
    tables = {}
    if args.runs:
        tables |= _synthetic(args, only, {*kinds})
    if args.corpus:
        tables["labelled-logs"] = _corpus(args.corpus, list(select_evaluators(only)), args.jobs)
    if args.logs:
        tables |= training_tables(args.logs, select_evaluators(only))
    for name, text in tables.items():
        print(f"\n## {name}\n\n{text}")
        if args.docs:
            write_table(PAGE, name, text)


def _check_names(
    parser: argparse.ArgumentParser, option: str, names: Iterable[str], known: Iterable[str]
) -> None:
    """End with an error that names the valid choices, unless all names are among them."""
    known = [*known]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{option} {', '.join(unknown)}: choose from {', '.join(known)}")


def _suite(args: argparse.Namespace, seed: int) -> Iterator[Spec]:
    return suite(seed, args.runs, max(2, args.runs // 5))


def _kinds_of(spec: Spec) -> set[str]:
    """The names by which --kinds selects that run."""
    return {spec.kind, spec.fault, spec.fault_name} if spec.fault else {spec.kind}


def _synthetic(args: argparse.Namespace, only: tuple[str, ...], kinds: set[str]) -> dict[str, str]:
    seed = TUNING if args.tune else args.seed
    specs = [spec for spec in _suite(args, seed) if not kinds or kinds & _kinds_of(spec)]
    began = time.process_time()
    outcomes = evaluate_runs(specs, only, args.jobs)
    cpu_seconds = time.process_time() - began
    print(f"{len(specs)} runs from seed {seed}, {cpu_seconds:.0f} s of CPU time in this process")
    if args.list:
        _print_list(outcomes)
    if kinds:
        return {}
    tables = {n: t for n, t in SYNTHETIC.items() if "ours" in outcomes or n not in NEED_OURS}
    return {name: table(outcomes) for name, table in tables.items()}


def _print_list(outcomes: dict[str, Outcome]) -> None:
    for evaluator, outcome in outcomes.items():
        print(f"\n# {title(evaluator)}: false alarms")
        for kind, each in outcome.false_alarms.items():
            print(f"{kind}: {each.warned} in {each.points:,} points, {each.critical} critical")
            print(*(f"    {line}" for line in each.where), sep="\n", end="\n" if each.where else "")
        print(f"\n# {title(evaluator)}: faults")
        for fault, grades in outcome.detections.items():
            for severity, detections in grades.items():
                text = f"{len(detections.warned)} of {detections.runs}"
                delays = format_delays(detections.warned)
                causes = ", ".join(f"{n or 'none'} {c}" for n, c in detections.causes.items())
                print(f"{fault} {severity}: {text}, delay {delays}, causes: {causes}")
                if detections.missed:
                    print(f"    missed: {', '.join(map(str, detections.missed))}")


def _corpus(folders: list[Path], names: list[str], jobs: int) -> str:
    """Of all folders together; the median delay by folder."""
    summaries = [corpus_scores(folder, names, jobs) for folder in folders]
    head = ["", "found of the sure", "false per 10,000 points", "doubtful", "critical of these"]
    body = []
    for name in names:
        found, rate, doubtful, critical, delay = _corpus_cells([each[name] for each in summaries])
        critical = critical if name == "ours" else NONE  # the others have one grade here
        body.append([title(name), found, rate, doubtful, critical, delay])
    return rows([*head, "median delay by set"], body)


def _corpus_cells(summaries: list[dict[str, Any]]) -> list[str]:
    high = [summary["recall_high"] for summary in summaries]
    critical = sum(each["false_critical"] + each["doubtful_critical"] for each in summaries)
    delays = (
        NONE if each["median_delay"] is None else f"{each['median_delay']:g}" for each in high
    )
    found, labels = sum(each["found"] for each in high), sum(each["labels"] for each in high)
    false, points = (sum(each[key] for each in summaries) for key in ("false", "points"))
    return [
        f"{found} of {labels}, {format_share(found, labels)}",
        format_rate(false, points),
        str(sum(each["doubtful"] for each in summaries)),
        str(critical),
        ", ".join(delays),
    ]


def _peer(arguments: list[str], parser: argparse.ArgumentParser) -> int:
    evaluators = select_evaluators()
    if len(arguments) != 3 or arguments[0] != "peer" or arguments[1] not in evaluators:
        parser.error(f"give: peer NAME FILE, with NAME one of {', '.join(evaluators)}")
    try:
        results = evaluate_log(Path(arguments[2]), {arguments[1]: evaluators[arguments[1]]})
    except (OSError, ValueError) as error:
        print(f"cannot read {arguments[2]}: {error}", file=sys.stderr)
        return 2
    print(*incident_lines(results[arguments[1]]), sep="\n")
    return 0


if __name__ == "__main__":
    main()
