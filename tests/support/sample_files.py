"""Files of samples as trainers write them, and a folder of them that is watched."""

from __future__ import annotations

import json

import pytest

from sentinel.model.counters import Counters
from sentinel.readers.sample_files import SCAN_INTERVAL_SECONDS, SampleFiles

UNREADABLE = ("sentinel_dropped_records_total", "samples_unreadable")


class Watch:
    """A watched folder, and the clock it is watched by."""

    def __init__(self, folder, known=()):
        self.now, self.tally = 1000.0, Counters()
        self.files = SampleFiles("run", folder, self.tally, dict(known), lambda: self.now)
        self.poll()

    def poll(self, attempt=0):
        """What a look at the folder brings, file by file until there is no other."""
        self.now += SCAN_INTERVAL_SECONDS
        found = []
        while more := self.files.poll(attempt):
            found += more
        return found

    def settled(self):
        return [*self.poll(), *self.poll()]

    @property
    def unreadable(self):
        return self.tally.values[UNREADABLE]


def verl(folder, step, size=2, **more):
    """A file as `trainer.rollout_data_dir` fills it."""
    rows = [
        {"input": f"q{n}", "output": f"a{n}", "gts": 7, "score": n / 2, "step": step, **more}
        for n in range(size)
    ]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    (folder / f"{step}.jsonl").write_text(lines, encoding="utf-8")


def trl(folder, step, **columns):
    """A file as `log_completions=True` writes it."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    size = len(next(iter(columns.values())))
    table = {"step": [step] * size, **columns}
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pandas.DataFrame(table).to_parquet(path)
    return path
