"""Answers of `sentinel mcp` about generated runs, beside the curves that a tracker would give.

    python benchmarks/verdicts.py [--seeds N] [--json FILE]

For each run with a fault whose cause is known, and for healthy ones: is it healthy, since when and
why, by one call of the tool `health`. The same values are stored with trackio, whose command
`trackio get metric --json` gives curves to agents. Tokens are counted as characters / 4.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from math import isfinite
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any
from unittest.mock import patch

import numpy as np
from detection_causes import RIGHT_CAUSES, right_causes
from detection_factories import kind_of, make_run
from detection_faults import FAULT_EFFECTS
from detection_run import FullRun
from page_tables import rows
from support.mcp_clients import call_tools

from sentinel.config.settings import load_replay_settings
from sentinel.mcp.server import make_server
from sentinel.web.home.run_list import RunQuery
from sentinel.web.logs.log_runs import LogRuns

CHARS_PER_TOKEN = 4
HEALTHY = ("healthy", "ended_well")
Row = dict[str, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="runs of each fault")
    # Those of single ranks and of step counts are no curves of a log.
    known = [fault for fault in RIGHT_CAUSES if fault in FAULT_EFFECTS]
    parser.add_argument("--faults", nargs="*", default=known)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "TRACKIO_DIR": f"{folder}/trackio"}
        results = measure(Path(folder), args.faults, args.seeds)
    if args.json:
        args.json.write_text(json.dumps(results))
    print(table(results))


def measure(folder: Path, faults: list[str], seeds: int) -> list[dict[str, Any]]:
    """One result for each run, the healthy ones last."""
    runs = {f"{fault}-{seed}": make(fault, seed) for fault in faults for seed in range(seeds)}
    healthy = [(kind, seed) for kind in ("rl", "sft") for seed in range(seeds)]
    runs |= {f"{kind}-{seed}": make_run(kind, seed) for kind, seed in healthy}
    logs = folder / "logs"
    logs.mkdir()
    for name, run in runs.items():
        lines = [json.dumps(row) + "\n" for row in make_rows(run)]
        (logs / f"{name}.jsonl").write_text("".join(lines))
    answers = ask(logs, [*runs])
    return [
        {"run": name, "fault": run.fault, **judged(run, answers[name]), **tracked(name, run)}
        for name, run in runs.items()
    ]


def make(fault: str, seed: int) -> FullRun:
    """A run with that fault in its middle size."""
    return make_run(kind_of(fault), seed, fault, "moderate")


def make_rows(run: FullRun) -> Iterator[Row]:
    """The values of each point, as a trainer logs them; missing ones are left out."""
    times = np.cumsum(run.series.get("step_time", np.ones(len(run)))) * run.every
    for at in range(run.ends):
        values = {name: float(series[at]) for name, series in run.series.items()}
        step = (at + 1) * run.every
        is_lost = run.fault == "nan_or_inf"
        yield {"step": step, "time": 1.76e9 + float(times[at])} | {
            name: value for name, value in values.items() if is_lost or isfinite(value)
        }


def ask(logs: Path, names: list[str]) -> dict[str, Any]:
    """The answer of `health` for each run."""
    source = LogRuns(logs, load_replay_settings((), {}))
    source.start()
    try:
        while any(each["state"] == "reading" for each in source.list_runs(RunQuery())["runs"]):
            sleep(0.5)
        server = make_server(source)
        answers = call_tools(server, *(("health", {"run": name}) for name in names))
        return dict(zip(names, answers, strict=True))
    finally:
        source.close()


def judged(run: FullRun, health: Any) -> dict[str, Any]:
    """Whether status and cause are right, and the tokens of the answer."""
    cause = health.data.get("cause") or ""
    return {
        "status_is_right": (health.data["status"] in HEALTHY) == (not run.fault),
        "cause": cause,
        "cause_is_right": cause in right_causes(run.fault) if cause else None,
        "tokens": len(health.text) // CHARS_PER_TOKEN,
    }


def tracked(name: str, run: FullRun) -> dict[str, int]:
    """Tokens of the curves of the run, as trackio gives them: of one on average, and of all."""
    from trackio import cli
    from trackio.sqlite_storage import SQLiteStorage

    points = [*make_rows(run)]
    steps = [int(point["step"]) for point in points]
    SQLiteStorage.bulk_log("runs", name, points, steps=steps)
    sizes = []
    for metric in run.series:
        words = ["trackio", "get", "metric", "--project", "runs", "--run", name]
        output = StringIO()
        with (
            patch("sys.argv", [*words, "--metric", metric, "--json"]),
            redirect_stdout(output),
            suppress(SystemExit),
        ):
            cli.main()
        sizes.append(len(output.getvalue()))
    return {
        "tokens_of_a_curve": sum(sizes) // len(sizes) // CHARS_PER_TOKEN,
        "tokens_of_all_curves": sum(sizes) // CHARS_PER_TOKEN,
    }


def table(results: list[dict[str, Any]]) -> str:
    """A row for the healthy runs, and one for those with a fault, as Markdown."""
    body = []
    for label, chosen in {
        "with a fault": [each for each in results if each["fault"]],
        "healthy": [each for each in results if not each["fault"]],
    }.items():
        tokens = [each["tokens"] for each in chosen]
        given = [each for each in chosen if each["cause"]]
        right = sum(bool(each["cause_is_right"]) for each in given)
        body.append(
            [
                f"{len(chosen)} {label}",
                f"{sum(each['status_is_right'] for each in chosen)}",
                f"{right} of {len(given)}" if given else "-",
                f"{median(tokens):.0f}, at most {max(tokens)}",
                f"{median(each['tokens_of_a_curve'] for each in chosen):,.0f}",
                f"{median(each['tokens_of_all_curves'] for each in chosen):,.0f}",
            ]
        )
    head = ["runs", "status right", "cause right of those given", "tokens of the answer"]
    return rows([*head, "one curve of the tracker", "all curves"], body)


if __name__ == "__main__":
    main()
