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

from detection_judges import Judge, Judged

from sentinel.sources.recognised import recognised


def verdicts(path: Path, judges: dict[str, Judge]) -> dict[str, Judged]:
    """What each says of one log. Raises OSError and ValueError as the reader does."""
    records = list(recognised(path))
    return {name: judge(records) for name, judge in judges.items()}


def lines(judged: Judged) -> Iterator[str]:
    """The alarms as `sentinel replay --json` prints them."""
    for alarm in judged.alarms:
        severity = "info" if alarm.told is None else "warning"
        severity = severity if alarm.critical is None else "critical"
        opened = alarm.noted if alarm.told is None else alarm.told
        line = {"detector": alarm.name, "severity": severity, "opened_step": opened}
        yield json.dumps({"type": "incident", **line, "onset_step": alarm.began})


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
