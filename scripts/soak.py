"""Run the tests that kill processes over and over, for so many minutes, and count what failed.

python scripts/soak.py 10
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
    """Go round until the time is over; a failing round is shown whole and the rounds go on."""
    deadline = time.monotonic() + 60 * float(sys.argv[1] if len(sys.argv) > 1 else 10)
    rounds = failed = 0
    while time.monotonic() < deadline:
        told = subprocess.run(ROUND, capture_output=True, text=True, check=False)
        rounds += 1
        if told.returncode != 0:
            failed += 1
            print(told.stdout + told.stderr)
        print(f"soak: {rounds} rounds, {failed} failed", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
