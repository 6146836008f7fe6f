"""Generation by vLLM under TRL, in its process or by its server: a part of `generation_time`.

Taps: `VLLMGeneration.generate`, and `sync_weights`, which is as `weight_sync_time` of the step.
"""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Tap
from sentinel.integrations.generation import timed

FRAMEWORK = "trl.generation.vllm_generation"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    owner = sys.modules[FRAMEWORK].VLLMGeneration
    tap.replace(owner, "generate", timed(tap))
    tap.replace(owner, "sync_weights", timed(tap, "weight_sync_time"))
