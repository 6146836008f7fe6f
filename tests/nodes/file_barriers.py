"""Gates: where ranks of a training under test wait until the test lets them go on."""

import time


def wait_at(plan, folder, rank, step):
    """Say that this rank has taken that step; at a gate, wait until it is opened."""
    if step in plan["gates"]:
        (folder / f"{rank}-at-{step}").touch()
        while not (folder / f"open-{step}").exists():
            time.sleep(0.02)
    time.sleep(plan["every"])
