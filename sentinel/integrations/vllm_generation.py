"""Generation by vLLM under TRL, in-process or by a server, as part of `generation_time`.

Patches `VLLMGeneration.generate`, and `sync_weights`, whose time is the step's `weight_sync_time`.
"""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Patcher
from sentinel.integrations.generation import timing_wrapper

FRAMEWORK = "trl.generation.vllm_generation"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    owner = sys.modules[FRAMEWORK].VLLMGeneration
    patcher.replace(owner, "generate", timing_wrapper(patcher))
    patcher.replace(owner, "sync_weights", timing_wrapper(patcher, "weight_sync_time"))
