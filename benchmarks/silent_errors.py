"""Trainings with an error that no curve shows at once: which are named, by which reason, and when.

    python benchmarks/silent_errors.py [--only NAME,NAME] [--list] [--jobs 2] [--json FILE] [--docs]

Each error of `silent_trainings` is trained three times for a few seconds of a CPU, each time in a
process of its own for each rank: with the error, with the error and `monitor(checks=False)`, and
without the error. What the run recorded goes through the detectors as in an agent. An error is
named if a message of at least a warning is sent, with the right reason if that is one which the
error states beforehand. Prints Markdown; `--docs` writes it into docs/checks.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from page_tables import rows, write_table
from silent_trainings import (
    data,
    frameworks,
    further,
    modes,
    published,
    several_ranks,
    starts,
    weights,
)
from silent_trainings.case import CASES, Case
from silent_trainings.healthy_frameworks import load
from silent_trainings.runs import (
    HEALTHY,
    KINDS,
    SICK,
    UNCHECKED,
    Job,
    Outcome,
    run,
    write_checkpoint_into,
)

MODULES = (published, weights, modes, data, several_ranks, starts, frameworks, further)
"""Those whose trainings are in `CASES`."""
MAX_STEPS = 20
"""Steps within which an error is to be named."""
PUBLISHED, COLLECTED, OWN, NONE = "published", "collected", "own", "-"
TRAINCHECK = "18 of 20 within one iteration"
PAGE = Path(__file__).parents[1] / "docs" / "checks.md"


Results = Mapping[str, Mapping[str, Outcome]]
"""The outcomes of each error by the kind of run."""


def named_at(case: Case, outcome: Outcome, *, is_right: bool) -> int | None:
    """The steps with the error until it was named, by a right reason or by any."""
    steps = [
        step
        for reason, step in outcome.reasons.items()
        if not is_right or reason in case.reasons or reason.partition("/")[0] in case.reasons
    ]
    return max(0, min(steps) - case.begins) if steps else None


def table(results: Results) -> str:
    """One row for each error."""
    head = ["error", "source", "sentinel", "right reason", "steps", "without the checks", "twin"]
    body = []
    for name, runs in results.items():
        case = CASES[name]
        step = named_at(case, runs[SICK], is_right=True)
        any_step = named_at(case, runs[SICK], is_right=False)
        source = f"[{case.published or label(case.source)}]({case.source})" if case.source else NONE
        is_right = NONE if any_step is None else "no" if step is None else "yes"
        steps = NONE if any_step is None else str(any_step if step is None else step)
        named, unchecked, twin = (text(runs[kind]) for kind in (SICK, UNCHECKED, HEALTHY))
        body.append([case.error, source, named, is_right, steps, unchecked, twin])
    return rows(head, body, texts=[*head[:4], *head[5:]])


def label(source: str) -> str:
    """A short name of an address: the repository and the number of a thread, else the host.

    >>> label("https://github.com/pytorch/pytorch/issues/7617")
    'pytorch#7617'
    """
    parts = source.split("/")
    return f"{parts[4]}#{parts[-1]}" if parts[-1].isdigit() else parts[2]


def text(outcome: Outcome) -> str:
    """The reasons that a run was given."""
    if outcome.failure or outcome.switched_off:
        return f"failed: {outcome.failure or outcome.switched_off}"
    return ", ".join(f"`{reason}`" for reason in outcome.reasons) or NONE


def summary(results: Results) -> str:
    """How many are named, of the published set and of the others."""
    head = ["errors", "number", "named", "right reason", f"within {MAX_STEPS} steps"]
    head += ["without the checks", "twins with a message", "TrainCheck, as published"]
    body = []
    for title, chosen in by_set(results).items():
        right = [named_at(CASES[name], runs[SICK], is_right=True) for name, runs in chosen.items()]
        named, unchecked, twins = (
            sum(bool(runs[kind].reasons) for runs in chosen.values()) for kind in KINDS
        )
        counts = [
            len(chosen),
            named,
            sum(step is not None for step in right),
            sum(step is not None and step <= MAX_STEPS for step in right),
            unchecked,
            twins,
        ]
        body.append([title, *map(str, counts), TRAINCHECK if title == PUBLISHED else NONE])
    return rows(head, body)


def by_set(results: Results) -> dict[str, Results]:
    """The results of the published errors and of the others, where there are any."""
    sets: dict[str, dict[str, dict[str, Outcome]]] = {}
    for name, runs in results.items():
        case = CASES[name]
        kind = PUBLISHED if case.published else COLLECTED if case.source else OWN
        sets.setdefault(kind, {})[name] = runs
    return {kind: sets[kind] for kind in (PUBLISHED, COLLECTED, OWN) if kind in sets}


def page(results: Results) -> str:
    """All tables."""
    parts = [summary(results)]
    for title, chosen in by_set(results).items():
        parts += [f"### {title.capitalize()} errors", table(chosen)]
    head = ["not reproduced", "source", "because"]
    why = [[e.error, f"[{n}]({e.source})", e.why] for n, e in published.NOT_REPRODUCED.items()]
    return "\n\n".join([*parts, rows(head, why, texts=head)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    if args.list:
        print(*(f"{name}: {case.error}" for name, case in CASES.items()), sep="\n")
        return
    load()
    names = [name for name in CASES if not args.only or name in args.only.split(",")]
    folder = Path(mkdtemp())
    write_checkpoint_into(folder)
    jobs = [
        Job(name, CASES[name], kind, folder / f"{name}-{kind}") for name in names for kind in KINDS
    ]
    results: dict[str, dict[str, Outcome]] = {name: {} for name in names}
    for job, outcome in run(jobs, args.jobs):
        results[job.name][job.kind] = outcome
        print(f"{job.name} {job.kind}: {text(outcome)} {outcome.message}", file=sys.stderr)
    print(page(results))
    if args.json:
        plain = {n: {kind: asdict(runs[kind]) for kind in runs} for n, runs in results.items()}
        args.json.write_text(json.dumps(plain, indent=1) + "\n")
    if args.docs:
        write_table(PAGE, "silent-errors", page(results))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
