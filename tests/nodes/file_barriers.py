"""Barriers at which ranks of a training wait until the test releases them."""

import time


def wait_at_barrier(plan, folder, rank, step):
    """Sleep after a step; at a barrier, report the rank and wait until it is released."""
    if step in plan["barriers"]:
        (folder / f"{rank}-at-{step}").touch()
        while not (folder / f"release-{step}").exists():
            time.sleep(0.02)
    time.sleep(plan["step_seconds"])
