"""TRL SFT: the callback instead of the decorator, for a trainer that other code builds.

python examples/trl_sft.py
"""

from __future__ import annotations

import tempfile

from datasets import Dataset
from transformers import LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from trl_grpo import WORDS, model_of_letters

from sentinel.integrations.callbacks.transformers import TransformersCallback

STEPS = 30


def main() -> None:
    """Train on the letters in alphabetical order, from each letter on."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = model_of_letters(f"{folder}/letters")
        letters = WORDS[2:]
        texts = [" ".join(letters[n:] + letters[:n]) for n in range(len(letters))]
        trainer = SFTTrainer(
            LlamaForCausalLM.from_pretrained(f"{folder}/letters"),
            processing_class=tokens,
            train_dataset=Dataset.from_dict({"text": texts}),
            callbacks=[TransformersCallback(run="trl-sft")],
            args=SFTConfig(
                output_dir=f"{folder}/out",
                max_steps=STEPS,
                save_steps=10,
                logging_steps=1,
                learning_rate=2e-3,
                bf16=False,
                use_cpu=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    main()
