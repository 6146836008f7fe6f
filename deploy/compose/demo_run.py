"""A run to try the alerts with: after a healthy start its KL blows up. It needs no torch."""

import random
import time

import sentinel

HEALTHY_STEPS, STEPS = 100, 12_000


@sentinel.monitor(run="demo")
def train() -> None:
    """Log steps for ten minutes, or until it is ended."""
    for step in range(1, STEPS + 1):
        time.sleep(0.05)
        noise = random.uniform(-0.05, 0.05)
        kl = 0.05 if step <= HEALTHY_STEPS else 20.0
        sentinel.log({"loss": 1.0 + noise, "reward": 0.5 + noise, "kl": kl + noise / 10}, step=step)


train()
