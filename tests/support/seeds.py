"""Seeds of synthetic runs: 8 in tests, as many as the variable SEEDED_RUNS in `make bench-all`."""

import os

SEEDS = range(int(os.environ.get("SEEDED_RUNS", "8")))
