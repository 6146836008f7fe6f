"""Records that are lost, torn or stored twice when processes are killed at random times.

    python benchmarks/kills.py [--writers 120] [--trainers 200] [--agents 100]

Each writer of a ring acknowledges a record through a pipe once it is written: every acknowledged
record must be in the ring, whole. Each trainer acknowledges a step once its `log()` has returned:
every acknowledged step must be in the history, once. Prints and writes results/kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))

from support.acknowledged_runs import isolated, kill_agents, kill_trainers  # noqa: E402
from support.ring_writers import killed_writer  # noqa: E402


def kill_writers(number: int) -> dict[str, int]:
    """Raises AssertionError if a record is lost or torn."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        acknowledged = sum(killed_writer(Path(folder, f"{index}.ring")) for index in range(number))
    return {"kills": number, "acknowledged": acknowledged, "lost": 0, "torn": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--writers", type=int, default=120)
    parser.add_argument("--trainers", type=int, default=200)
    parser.add_argument("--agents", type=int, default=100)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(FOLDER.parent)
    results: dict[str, dict[str, float]] = {"writers": kill_writers(args.writers)}
    print("writers", results["writers"], flush=True)
    for name, kill, kills in (
        ("trainers", kill_trainers, args.trainers),
        ("agents", kill_agents, args.agents),
    ):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            os.environ |= isolated(Path(folder))
            began = time.monotonic()
            result = kill(name, kills, random.Random(kills))
            seconds = round(time.monotonic() - began)
            results[name] = {"kills": kills, **result, "seconds": seconds}
            print(name, results[name], flush=True)
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / "results" / "kills.json").write_text(json.dumps(results, indent=1) + "\n")
    if any(result["lost"] or result.get("repeated") for result in results.values()):
        raise SystemExit("Acknowledged steps were lost or repeated.")


if __name__ == "__main__":
    main()
