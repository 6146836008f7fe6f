"""Sample files as trainers write them, and a polled directory of them."""

from __future__ import annotations

import json

import pytest

from sentinel.model.counters import Counters
from sentinel.readers.sample_files import SCAN_INTERVAL_SECONDS, SampleFiles

UNREADABLE = ("sentinel_dropped_records_total", "samples_unreadable")


class FolderReader:
    """A directory read by SampleFiles, with a fake clock."""

    def __init__(self, folder, fingerprints=()):
        self.now, self.counters = 1000.0, Counters()
        self.files = SampleFiles("run", folder, self.counters, dict(fingerprints), lambda: self.now)
        self.poll()

    def poll(self, attempt=0):
        """Records of all complete files, after one scan interval."""
        self.now += SCAN_INTERVAL_SECONDS
        found = []
        while more := self.files.poll(attempt):
            found += more
        return found

    def settled(self):
        return [*self.poll(), *self.poll()]

    @property
    def unreadable(self):
        return self.counters.values[UNREADABLE]


def verl(folder, step, size=2, **more):
    """Writes a file as verl does with `trainer.rollout_data_dir`."""
    rows = [
        {"input": f"q{n}", "output": f"a{n}", "gts": 7, "score": n / 2, "step": step, **more}
        for n in range(size)
    ]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    (folder / f"{step}.jsonl").write_text(lines, encoding="utf-8")


def trl(folder, step, **columns):
    """Writes a file as TRL does with `log_completions=True`."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    size = len(next(iter(columns.values())))
    table = {"step": [step] * size, **columns}
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pandas.DataFrame(table).to_parquet(path)
    return path
