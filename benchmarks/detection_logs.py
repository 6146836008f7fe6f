"""Real logs: read as in `sentinel replay`, evaluated by all, scored by the folder's own score.py.

A folder of labelled logs has a `score.py`, which runs a command for each log; results are written
beforehand, so that the command only prints them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detection_evaluators import Alarm, Evaluation, Evaluator
from detection_score import NONE
from failing_runs import TRAININGS, Training

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


def training_rows(folder: Path, evaluators: dict[str, Evaluator]) -> list[list[str]]:
    """One row for each training of `failing_runs.py` in the folder, a cell for each evaluator.

    For failing runs: the step of the first matching alarm, and the number of earlier alarms; for
    healthy runs: the number of alarms.
    """
    trainings = {name: training for name, training in TRAININGS.items() if (folder / name).is_dir()}
    if not trainings:
        raise ValueError(f"{folder} holds no training: make them with failing_runs.py {folder}")
    body = []
    for name, training in trainings.items():
        results = evaluate_log(folder / name / "trainer_state.json", evaluators)
        cells = [_format_detection(training, evaluation.warned) for evaluation in results.values()]
        body.append([name, training.fault or "well", *cells, _cause(results)])
    return body


def _format_detection(training: Training, warned: list[Alarm]) -> str:
    early_count = sum((alarm.warned or 0) < training.onset for alarm in warned)
    if not training.fault:
        return f"{len(warned)} false" if warned else "no alarm"
    steps = [a.warned or 0 for a in warned if a.name in training.expected_detectors]
    matching = [step for step in steps if step >= training.onset]
    text = f"step {min(matching)}" if matching else "missed"
    return f"{text}, {early_count} before" if early_count else text


def _cause(results: dict[str, Evaluation]) -> str:
    cases = results["ours"].cases if "ours" in results else []
    return ", ".join(case.cause or "none" for case in cases) or NONE


def corpus_scores(corpus: Path, evaluators: dict[str, Evaluator]) -> dict[str, dict[str, Any]]:
    """The folder's summary of each evaluator. `corpus` holds index.jsonl; score.py is above it."""
    corpus = corpus.resolve()
    index = [json.loads(line) for line in (corpus / "index.jsonl").read_text().splitlines()]
    with TemporaryDirectory() as folder:
        for run in index:
            _write_results(Path(folder), corpus / run["file"], evaluators)
        return {name: _run_scorer(corpus, Path(folder) / name) for name in evaluators}


def _write_results(folder: Path, log: Path, evaluators: dict[str, Evaluator]) -> None:
    for name, evaluation in evaluate_log(log, evaluators).items():
        path = Path(f"{folder}/{name}{log}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in incident_lines(evaluation)))


def _run_scorer(corpus: Path, results_folder: Path) -> dict[str, Any]:
    scorer = corpus.parent / "score.py"
    command = [sys.executable, str(scorer), str(corpus), "--jobs", "1"]
    results = subprocess.run(
        [*command, "--command", f"cat {results_folder}{{file}}", "--worst", "100"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *_, summary = results.stdout.splitlines()
    return dict(json.loads(summary))
