"""Steps that are lost or stored twice when trainers and agents are killed at random times.

    python benchmarks/kills.py [--trainers 200] [--agents 100]

Each trainer acknowledges a step through a pipe once its `log()` has returned. Afterwards every
acknowledged step must be in the history, once. Prints and writes results/kills.json.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trainers", type=int, default=200)
    parser.add_argument("--agents", type=int, default=100)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(FOLDER.parent)
    results = {}
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
    if any(result["lost"] or result["repeated"] for result in results.values()):
        raise SystemExit("Acknowledged steps were lost or repeated.")


if __name__ == "__main__":
    main()
