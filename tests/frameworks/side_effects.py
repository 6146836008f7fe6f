"""State that monitoring must not change: random numbers, weights and patched names."""

import random
import sys

import numpy as np
import torch

PATCHED = {
    "torch": ["Tensor.backward", "autograd.backward", "amp.GradScaler.scale"],
    "torch.nn.utils.clip_grad": ["_get_total_norm"],
    "transformers.trainer_callback": ["CallbackHandler.call_event"],
    "transformers.trainer": [
        "Trainer.log",
        "Trainer.evaluate",
        "Trainer.predict",
        "Trainer._save_checkpoint",
    ],
    "transformers.generation.utils": ["GenerationMixin.generate", "ContinuousMixin.generate_batch"],
    "trl.generation.vllm_generation": ["VLLMGeneration.generate", "VLLMGeneration.sync_weights"],
    "accelerate.accelerator": [
        "Accelerator.__init__",
        "Accelerator.backward",
        "Accelerator.log",
        "Accelerator.save_state",
    ],
}
"""Patched names by module, each in the class that defines it."""


def seed(number=0):
    """Seed all random number generators."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def random_state():
    """State of all random number generators."""
    _, key, *rest = np.random.get_state()
    return random.getstate(), key.tolist(), rest, torch.get_rng_state().tolist()


def weights(model):
    """A model's weights, for bit-exact comparison."""
    return {name: value.tolist() for name, value in model.state_dict().items()}


def patches(*modules):
    """Current values of the patched names in these modules."""
    found = {}
    for module in modules:
        for name in PATCHED[module]:
            *path, last = name.split(".")
            owner = sys.modules[module]
            for part in path:
                owner = getattr(owner, part)
            found[module, name] = vars(owner)[last]
    return found
