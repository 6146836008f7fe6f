"""Generation: the time that sampling from the model takes, as `generation_time` of the step.

Patches `generate` and `generate_batch` of Transformers models.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from sentinel.client.capture.patcher import Patcher

FRAMEWORK = "transformers.generation.utils"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    utils = sys.modules[FRAMEWORK]
    patcher.replace(utils.GenerationMixin, "generate", timing_wrapper(patcher))
    batched = getattr(utils, "ContinuousMixin", None)
    if batched is not None:
        patcher.replace(batched, "generate_batch", timing_wrapper(patcher))


def timing_wrapper(patcher: Patcher, signal: str = "generation_time") -> Callable[[Any], Any]:
    """A wrapper factory that adds a call's seconds to `signal`; nested calls count once."""
    thread = threading.local()

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            if getattr(thread, "inside", False):
                return original(*args, **kwargs)
            thread.inside = True
            started = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                thread.inside = False
                patcher.call_safely(patcher.loop.add_seconds, signal, perf_counter() - started)

        return generate

    return make
