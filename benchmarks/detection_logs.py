"""Real logs: read once as `sentinel replay` reads them, judged by everybody, scored by a folder.

The folder of labelled logs brings its own `score.py`, which runs a command for each log; the
verdicts are written beforehand, so that the command need only print them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detection_judges import Alarm, Judge, Judged
from detection_score import NONE
from failing_runs import TRAININGS, Training

from sentinel.readers.format_detection import open_log


def verdicts(path: Path, judges: dict[str, Judge]) -> dict[str, Judged]:
    """What each says of one log. Raises OSError and ValueError as the reader does."""
    records = list(open_log(path))
    return {name: judge(records) for name, judge in judges.items()}


def lines(judged: Judged) -> Iterator[str]:
    """The alarms as `sentinel replay --json` prints them."""
    for alarm in judged.alarms:
        severity = "info" if alarm.told is None else "warning"
        severity = severity if alarm.critical is None else "critical"
        opened = alarm.noted if alarm.told is None else alarm.told
        line = {"detector": alarm.name, "severity": severity, "opened_step": opened}
        yield json.dumps({"type": "incident", **line, "onset_step": alarm.began})


def driven(folder: Path, judges: dict[str, Judge]) -> list[list[str]]:
    """One row for each training of `failing_runs.py` that is in the folder, a cell for each judge.

    Of what fails, the step of the first alarm that answers for it, and how many other incidents; of
    what is well, how many alarms.
    """
    here = {name: training for name, training in TRAININGS.items() if (folder / name).is_dir()}
    if not here:
        raise ValueError(f"{folder} holds no training: make them with failing_runs.py {folder}")
    body = []
    for name, training in here.items():
        said = verdicts(folder / name / "trainer_state.json", judges)
        cells = [_answered(training, judged.told) for judged in said.values()]
        body.append([name, training.wrong or "well", *cells, _cause(said)])
    return body


def _answered(training: Training, told: list[Alarm]) -> str:
    before = sum((alarm.told or 0) < training.onset for alarm in told)
    if not training.wrong:
        return f"{len(told)} false" if told else "calm"
    steps = [a.told or 0 for a in told if a.name in training.answers]
    right = [step for step in steps if step >= training.onset]
    answer = f"step {min(right)}" if right else "missed"
    return f"{answer}, {before} before" if before else answer


def _cause(said: dict[str, Judged]) -> str:
    cases = said["ours"].cases if "ours" in said else []
    return ", ".join(case.cause or "none" for case in cases) or NONE


def scored(corpus: Path, judges: dict[str, Judge]) -> dict[str, dict[str, Any]]:
    """The folder's own summary of each judge. `corpus` holds index.jsonl; score.py is above it."""
    corpus = corpus.resolve()
    index = [json.loads(line) for line in (corpus / "index.jsonl").read_text().splitlines()]
    with TemporaryDirectory() as folder:
        for run in index:
            _keep(Path(folder), corpus / run["file"], judges)
        return {name: _score(corpus, Path(folder) / name) for name in judges}


def _keep(folder: Path, log: Path, judges: dict[str, Judge]) -> None:
    for name, judged in verdicts(log, judges).items():
        place = Path(f"{folder}/{name}{log}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("".join(f"{line}\n" for line in lines(judged)))


def _score(corpus: Path, verdicts: Path) -> dict[str, Any]:
    scorer = corpus.parent / "score.py"
    command = [sys.executable, str(scorer), str(corpus), "--jobs", "1"]
    said = subprocess.run(
        [*command, "--command", f"cat {verdicts}{{file}}", "--worst", "100"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *_, summary = said.stdout.splitlines()
    return dict(json.loads(summary))
