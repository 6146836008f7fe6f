"""TRL GRPO: a tiny model learns to write "a", monitored by one decorator; no download, no GPU.

python examples/trl_grpo.py
"""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

import sentinel

WORDS = ["<pad>", "</s>", *"abcdefgh"]
STEPS = 30


def reward_a(completions: list[str], **_: object) -> list[float]:
    """The share of the letter a in each completion."""
    return [completion.count("a") / max(1, len(completion.split())) for completion in completions]


def model_of_letters(folder: str) -> PreTrainedTokenizerFast:
    """Save a two-layer Llama for eight letters; returns its tokenizer."""
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, WORDS[0]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=WORDS[0], eos_token=WORDS[1], unk_token=WORDS[0]
    )
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=len(WORDS), num_attention_heads=4, pad_token_id=0, eos_token_id=1, **shape
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return tokens


@sentinel.monitor(run="trl-grpo", samples=4)
def train() -> None:
    """TRL provides everything else: KL, reward, entropy, lengths, and four texts per step."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = model_of_letters(f"{folder}/letters")
        trainer = GRPOTrainer(
            model=f"{folder}/letters",
            reward_funcs=reward_a,
            processing_class=tokens,
            train_dataset=Dataset.from_list([{"prompt": letter} for letter in WORDS[2:]]),
            args=GRPOConfig(
                output_dir=f"{folder}/out",
                max_steps=STEPS,
                save_steps=10,
                logging_steps=1,
                learning_rate=2e-3,
                beta=0.04,
                num_generations=8,
                per_device_train_batch_size=16,
                max_completion_length=8,
                bf16=False,
                use_cpu=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    train()
