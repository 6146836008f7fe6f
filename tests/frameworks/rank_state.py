"""A counter of collectives and the random state, for scripts of several ranks."""

import random
from collections import Counter

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

COLLECTIVES = {"c10d", "_c10d_functional", "_dtensor", "_c10d_functional_autograd"}


class CollectiveCounter(TorchDispatchMode):
    """Counts every collective of this thread, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            # DTensor dispatches to collectives that would otherwise not be counted.
            return NotImplemented
        if function.namespace in COLLECTIVES:
            self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def random_state():
    numpy_state = np.random.get_state()
    return hash((tuple(torch.get_rng_state().tolist()), random.getstate(), str(numpy_state)))
