"""Real logs: read as in `sentinel replay`, evaluated by all, scored by the folder's own score.py.

A folder of labelled logs has a `score.py`, which runs a command for each log; results are written
beforehand, so that the command only prints them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detection_causes import Diagnoses
from detection_evaluators import Alarm, Evaluation, Evaluator
from detection_intervals import format_share
from detection_score import NONE
from detection_tables import title
from failing_runs import TRAININGS, Training, find_log
from page_tables import rows
from peers import evaluators as peer_evaluators

from sentinel.cli.main import app
from sentinel.readers.format_detection import open_log


def evaluate_log(path: Path, evaluators: dict[str, Evaluator]) -> dict[str, Evaluation]:
    """The result of each evaluator on one log. Raises OSError and ValueError as the reader does."""
    records = list(open_log(path))
    return {name: evaluator(records) for name, evaluator in evaluators.items()}


def incident_lines(evaluation: Evaluation) -> Iterator[str]:
    """The alarms as `sentinel replay --json` prints them."""
    for alarm in evaluation.alarms:
        severity = "info" if alarm.warned is None else "warning"
        severity = severity if alarm.critical is None else "critical"
        opened = alarm.opened if alarm.warned is None else alarm.warned
        line = {"detector": alarm.name, "severity": severity, "opened_step": opened}
        yield json.dumps({"type": "incident", **line, "onset_step": alarm.began})


def training_tables(folder: Path, evaluators: dict[str, Evaluator]) -> dict[str, str]:
    """Every training of `failing_runs.py` in the folder as sentinel sees it; and all evaluators."""
    results = {
        name: evaluate_log(path, evaluators)
        for name in TRAININGS
        if (path := find_log(folder, name)) is not None
    }
    if not results:
        raise ValueError(f"{folder} holds no training: make them with failing_runs.py {folder}")
    tables = {"driven-runs-by-tool": _by_tool(results)}
    if "ours" in evaluators:
        tables["driven-runs"] = _driven_runs({name: each["ours"] for name, each in results.items()})
    return tables


def _driven_runs(evaluations: dict[str, Evaluation]) -> str:
    """What is wrong, when it is found, other alarms before it, and the cause."""
    body, total = [], Diagnoses()
    for name, evaluation in evaluations.items():
        training, diagnoses = TRAININGS[name], Diagnoses()
        diagnoses.add(evaluation.cases, set(training.causes))
        total.merge(diagnoses)
        steps = _found_steps(training, evaluation.warned)
        others = evaluation.warned
        if training.fault:
            others = [alarm for alarm in others if (alarm.warned or 0) < training.onset]
        critical = sum(alarm.critical is not None for alarm in others)
        false = f"{len(others)}, {critical} critical" if critical else str(len(others))
        found = f"step {steps[0]}" if steps else "missed" if training.fault else NONE
        body.append([name, training.fault or "well", found, false, _causes(training, evaluation)])
    trainings = [TRAININGS[name] for name in evaluations]
    found = sum(bool(_found_steps(TRAININGS[n], e.warned)) for n, e in evaluations.items())
    shares = [
        format_share(found, sum(bool(training.fault) for training in trainings)),
        str(sum(int(row[3].split(",")[0]) for row in body)),
        f"{format_share(total.right, total.given)} right, {total.wrong_critical} wrong critical",
    ]
    body.append(["**all**", "", *shares])
    return rows(["training", "what is wrong", "found", "false alarms", "cause"], body)


def _causes(training: Training, evaluation: Evaluation) -> str:
    named = [case.cause for case in evaluation.cases if case.cause]
    marks = [cause if cause in training.causes else f"{cause} (wrong)" for cause in named]
    return ", ".join(dict.fromkeys(marks)) or NONE


def _found_steps(training: Training, warned: list[Alarm]) -> list[int]:
    """The steps of the alarms that find the fault, in order."""
    steps = [a.warned or 0 for a in warned if a.name in training.expected_detectors]
    return sorted(step for step in steps if step >= training.onset)


def _by_tool(results: dict[str, dict[str, Evaluation]]) -> str:
    """By evaluator: faulty trainings found, alarms in healthy ones."""
    body = []
    for evaluator in next(iter(results.values())):
        found = faulty = alarms = hit = healthy = 0
        for name, evaluations in results.items():
            warned, training = evaluations[evaluator].warned, TRAININGS[name]
            if training.fault:
                faulty, found = faulty + 1, found + bool(_found_steps(training, warned))
            else:
                healthy, alarms, hit = healthy + 1, alarms + len(warned), hit + bool(warned)
        shares = [format_share(found, faulty), str(alarms), format_share(hit, healthy)]
        body.append([title(evaluator), *shares])
    head = ["", "faulty trainings found", "alarms in healthy ones", "healthy ones with an alarm"]
    return rows(head, body)


def corpus_scores(corpus: Path, names: Sequence[str], jobs: int = 1) -> dict[str, dict[str, Any]]:
    """The folder's summary of each evaluator. `corpus` holds index.jsonl; score.py is above it."""
    corpus = corpus.resolve()
    index = [json.loads(line) for line in (corpus / "index.jsonl").read_text().splitlines()]
    with TemporaryDirectory() as folder:
        tasks = [(Path(folder), corpus / run["file"], tuple(names)) for run in index]
        with ProcessPoolExecutor(jobs) as pool:
            list(pool.map(_write_results, tasks))
        return {name: _run_scorer(corpus, Path(folder) / name) for name in names}


def _write_results(task: tuple[Path, Path, tuple[str, ...]]) -> None:
    """Write what each evaluator says of one log; of sentinel the lines of `sentinel replay`."""
    folder, log, names = task
    peers = {name: evaluator for name, evaluator in peer_evaluators().items() if name in names}
    texts = {
        name: "".join(f"{line}\n" for line in incident_lines(evaluation))
        for name, evaluation in evaluate_log(log, peers).items()
    }
    if "ours" in names:
        texts["ours"] = _replay(log)
    for name, text in texts.items():
        path = Path(f"{folder}/{name}{log}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _replay(log: Path) -> str:
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()):
        app(["replay", str(log), "--json"], standalone_mode=False)
    return output.getvalue()


def _run_scorer(corpus: Path, results_folder: Path) -> dict[str, Any]:
    scorer = corpus.parent / "score.py"
    command = [sys.executable, str(scorer), str(corpus), "--jobs", "1"]
    results = subprocess.run(
        [*command, "--command", f"cat {results_folder}{{file}}", "--worst", "100"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *_, summary = results.stdout.splitlines()
    return dict(json.loads(summary))
