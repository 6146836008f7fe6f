"""TRL DPO with insight: a healthy training beside two that are broken; no download, no GPU.

python examples/trl_dpo_insight.py                    # healthy
python examples/trl_dpo_insight.py learning-rate      # a learning rate that is far too high
python examples/trl_dpo_insight.py frozen             # a block that gets no gradient
sentinel serve                                        # the pages of the three runs, and compare
"""

from __future__ import annotations

import os
import random
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from datasets import Dataset
from torch import Tensor
from transformers import LlamaForCausalLM, set_seed
from trl import DPOConfig, DPOTrainer
from trl_grpo import WORDS, model_of_letters

import sentinel
from sentinel.insight.callbacks.transformers import (
    LossSurfaceCallback,
    SharpnessCallback,
    TrajectoryCallback,
)

STEPS = int(os.environ.get("STEPS", "120"))
EVALUATIONS = int(os.environ.get("EVALUATIONS", "500"))
LEARNING_RATES = {"healthy": 1e-3, "learning-rate": 0.3, "frozen": 1e-3}


def preferences(count: int = 256, mistakes: float = 0.2) -> Dataset:
    """Letters that go on in the alphabet are preferred to those that go back, mostly."""
    chance, letters, rows = random.Random(0), WORDS[2:], []
    for _ in range(count):
        start = chance.randrange(len(letters))
        at = [letters[(start + step) % len(letters)] for step in (0, 1)]
        on = [letters[(start + 2 + step) % len(letters)] for step in range(4)]
        back = [letters[(start - step) % len(letters)] for step in range(4)]
        if chance.random() < mistakes:
            on, back = back, on
        rows.append(
            {"prompt": f"{' '.join(at)} ", "chosen": " ".join(on), "rejected": " ".join(back)}
        )
    return Dataset.from_list(rows)


def detach_block(_: object, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """What a `torch.no_grad()` that was left in does: the block computes, and never learns."""
    return inputs[0] + (output - inputs[0]).detach()


def train(kind: str) -> None:
    """Train for a few seconds; the results of the callbacks are on the page of the run."""
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        tokens = model_of_letters(f"{folder}/letters")
        model = LlamaForCausalLM.from_pretrained(f"{folder}/letters")
        if kind == "frozen":
            model.model.layers[1].register_forward_hook(detach_block)
        trainer = DPOTrainer(
            model,
            processing_class=tokens,
            train_dataset=preferences(),
            callbacks=[
                LossSurfaceCallback(
                    directions="pca", snapshots=20, max_evaluations=EVALUATIONS, max_share=None
                ),
                SharpnessCallback(every=20, max_share=None),
                TrajectoryCallback(every=2),
            ],
            args=DPOConfig(
                output_dir=f"{folder}/out",
                max_steps=STEPS,
                learning_rate=LEARNING_RATES[kind],
                lr_scheduler_type="constant",
                per_device_train_batch_size=16,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                bf16=False,
                use_cpu=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "healthy"
    if name not in LEARNING_RATES:
        sys.exit(f"Give one of {', '.join(LEARNING_RATES)}.")
    with sentinel.monitor(run=f"dpo-{name}", insight="gradient_flow"):
        train(name)
