"""Generation by vLLM under TRL, in its process or by its server: a part of `generation_time`.

Taps: `VLLMGeneration.generate`, and `sync_weights`, which is as `weight_sync_time` of the step.
"""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Patcher
from sentinel.integrations.generation import timing_wrapper

FRAMEWORK = "trl.generation.vllm_generation"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    owner = sys.modules[FRAMEWORK].VLLMGeneration
    patcher.replace(owner, "generate", timing_wrapper(patcher))
    patcher.replace(owner, "sync_weights", timing_wrapper(patcher, "weight_sync_time"))
