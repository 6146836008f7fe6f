"""Whether watching changed anything: random numbers drawn, weights, and what was patched."""

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
"""By module; each name is looked up where it was set, so that inheritance hides nothing."""


def seed(number=0):
    """As every run here begins."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def chance():
    """The state of every generator of random numbers, to compare."""
    _, key, *rest = np.random.get_state()
    return random.getstate(), key.tolist(), rest, torch.get_rng_state().tolist()


def weights(model):
    """A model's weights, to compare bit by bit."""
    return {name: value.tolist() for name, value in model.state_dict().items()}


def patches(*modules):
    """What is there now under the names that we patch in these modules."""
    found = {}
    for module in modules:
        for name in PATCHED[module]:
            *path, last = name.split(".")
            owner = sys.modules[module]
            for part in path:
                owner = getattr(owner, part)
            found[module, name] = vars(owner)[last]
    return found
