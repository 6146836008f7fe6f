"""Counts user instructions between markers of a script under valgrind's callgrind.

Counts do not depend on the load of the machine. A marker is a call of `os.getppid`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent


def start_counting() -> None:
    """Count from here on, in a script that `count_between_markers` runs with `is_late`."""
    command = ["callgrind_control", "--instr=on", str(os.getpid())]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def count_between_markers(script: str, *arguments: str, is_late: bool = False) -> list[int]:
    """Instructions between each marker of the script and the next.

    With `is_late` they are counted from `start_counting` on, before which the script is several
    times as fast.

    Raises AssertionError if the script has fewer than two markers, FileNotFoundError without
    valgrind.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--dump-before=getppid"]
        command += ["--instr-atstart=no"] if is_late else []
        command += [f"--callgrind-out-file={folder}/out", sys.executable, script, *arguments]
        environ = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(FOLDER.parent)}
        # Valgrind runs one thread at a time, and those of BLAS would wait for each other.
        environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        completed = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=3600, check=False
        )
        parts = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        totals = [re.search(r"^totals: (\d+)", part.read_text(), re.MULTILINE) for part in parts]
    # The first part is the start of the process.
    counts = [int(total[1]) for total in totals[1:] if total]
    assert counts, completed.stderr[-2000:]
    return counts
