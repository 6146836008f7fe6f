"""Tests that take a minute run in `make soak` only, which sets `CHAOS_KILLS`."""

import os

collect_ignore = [] if "CHAOS_KILLS" in os.environ else ["test_pauses.py"]
