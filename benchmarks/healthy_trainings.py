"""Healthy trainings of many kinds: which of them get a message.

    python benchmarks/healthy_trainings.py [--only NAME,NAME] [--list] [--jobs 2] [--docs]

The healthy twins of `silent_errors.py`, the healthy trainings of the tests, and those of
`silent_trainings.healthy_*`: plain loops, frameworks, and several ranks. Each is trained in a
process of its own for each rank, and what it recorded goes through the detectors as in an agent.
A message of at least a warning is one too many. Prints Markdown; `--docs` writes it into
docs/checks.md. The exit status is 1 if a training has a message or fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from page_tables import rows, write_table
from silent_errors import CASES, NONE, PAGE, text
from silent_trainings import healthy_frameworks, healthy_loops, healthy_ranks
from silent_trainings.case import HEALTHY_TRAININGS, Case, healthy_case
from silent_trainings.runs import HEALTHY, Job, run, write_checkpoint_into
from support import checked_trainings

MODULES = {
    healthy_loops.__name__: "plain PyTorch",
    healthy_frameworks.__name__: "frameworks",
    healthy_ranks.__name__: "several ranks",
}
"""The kinds of the trainings in `HEALTHY_TRAININGS`, by the module that has them."""


def trainings() -> dict[str, tuple[str, Case]]:
    """The kind of each training, and the training, by a name of its own."""
    found = {f"twin_{name}": ("twins of errors", case) for name, case in CASES.items()}
    for train in checked_trainings.HEALTHY:
        found[f"test_{train.__name__}"] = "trainings of the tests", healthy_case(train)
    for name, case in HEALTHY_TRAININGS.items():
        found[name] = MODULES[case.source], case
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    chosen = trainings()
    if args.only:
        chosen = {name: chosen[name] for name in args.only.split(",")}
    if args.list:
        print(*chosen, sep="\n")
        return
    folder = Path(mkdtemp())
    write_checkpoint_into(folder)
    healthy_frameworks.load()
    jobs = [Job(name, case, HEALTHY, folder / name) for name, (_, case) in chosen.items()]
    number, wrong, messages = Counter[str](), Counter[str](), []
    for job, outcome in run(jobs, args.jobs):
        kind, found = chosen[job.name][0], text(outcome)
        number[kind] += 1
        print(f"{job.name}: {found} {outcome.message}", file=sys.stderr, flush=True)
        if found != NONE:
            wrong[kind] += 1
            messages.append(f"{job.name}: {found}")
    body = [[kind, str(count), str(wrong[kind])] for kind, count in number.items()]
    body.append(["all", str(number.total()), str(wrong.total())])
    table = rows(["healthy trainings", "number", "with a message"], body)
    print("\n\n".join([table, *messages]))
    if args.docs:
        write_table(PAGE, "healthy-trainings", table)
    shutil.rmtree(folder)
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
