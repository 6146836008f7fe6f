"""Run the tests that kill processes repeatedly for a number of minutes; count the failures.

python scripts/soak.py 10

A round that has begun is finished. `CHAOS_KILLS` is how often a test kills in one round.
"""

from __future__ import annotations

import subprocess
import sys
import time

ROUND = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-m",
    "chaos",
    "--no-header",
    "-p",
    "no:cacheprovider",
]


def main() -> None:
    """Run rounds until the time is over. The output of a failed round is printed."""
    deadline = time.monotonic() + 60 * float(sys.argv[1] if len(sys.argv) > 1 else 10)
    rounds = failed = 0
    while time.monotonic() < deadline:
        began = time.monotonic()
        result = subprocess.run(ROUND, capture_output=True, text=True, check=False)
        rounds += 1
        if result.returncode != 0:
            failed += 1
            print(result.stdout + result.stderr)
        seconds = time.monotonic() - began
        print(f"soak: round {rounds} took {seconds:.0f} s, {failed} failed so far", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
