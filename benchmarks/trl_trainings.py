"""Trainings of tiny models with TRL and transformers: builders of trainers, some with a fault.

A builder takes a folder, the tokenizer and the saved model, and returns what has `train()` and the
trainer's `state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

LETTERS = "abcdefgh"
Build = Callable[[str, Any, str], Any]


def alphabet_text(rng: Random, count: int) -> str:
    """Texts in which each letter is mostly followed by the next in the alphabet."""
    letters = [rng.choice(LETTERS)]
    while len(letters) < count:
        is_successor = rng.random() < 0.8
        letters.append(
            LETTERS[(LETTERS.index(letters[-1]) + 1) % 8] if is_successor else rng.choice(LETTERS)
        )
    return " ".join(letters)


def random_text(rng: Random, count: int) -> str:
    return " ".join(rng.choice(LETTERS) for _ in range(count))


def common_settings(folder: str, rate: float, count: int) -> dict[str, Any]:
    """Settings of every configuration."""
    return {
        "output_dir": f"{folder}/out",
        "learning_rate": rate,
        "max_steps": count,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 7,
    }


@dataclass(frozen=True)
class Grpo:
    """Rewarded for the share of the letter a, or by mistake for length.

    The reward is 0 from step `reward_ends_at` on. `rloo` selects TRL's other trainer.
    """

    rate: float = 2e-3
    beta: float = 0.04
    reward_ends_at: int = 10**9
    count: int = 150
    longest: int = 8
    pays_length: bool = False
    rloo: bool = False

    def __call__(self, folder: str, tokens: Any, model: str) -> Any:
        import trl
        from datasets import Dataset

        def pay(completions: list[str], **_: object) -> list[float]:
            if trainer.state.global_step >= self.reward_ends_at:
                return [0.0] * len(completions)
            texts = [completion.split() for completion in completions]
            if self.pays_length:
                return [len(letters) / self.longest for letters in texts]
            return [letters.count("a") / max(1, len(letters)) for letters in texts]

        config, trainer_class = trl.GRPOConfig, trl.GRPOTrainer
        if self.rloo:
            config, trainer_class = trl.RLOOConfig, trl.RLOOTrainer
        trainer = trainer_class(
            model=model,
            reward_funcs=pay,
            processing_class=tokens,
            train_dataset=Dataset.from_list([{"prompt": letter} for letter in LETTERS]),
            args=config(
                **common_settings(folder, self.rate, self.count), beta=self.beta,
                num_generations=8, per_device_train_batch_size=16,
                max_completion_length=self.longest,
            ),
        )  # fmt: skip
        return trainer


@dataclass(frozen=True)
class Sft:
    """Texts to continue.

    `frozen`: only one norm is trainable, by mistake. `masked`: no label counts, by mistake.
    """

    rate: float = 2e-3
    frozen: bool = False
    masked: bool = False
    lora: bool = False
    texts: int = 2048
    evaluate: int = 0
    count: int = 300
    save_every: int = 0

    def __call__(self, folder: str, tokens: Any, model: str) -> Any:
        from transformers import LlamaForCausalLM
        from trl import SFTConfig, SFTTrainer

        rng = Random(3)
        network = LlamaForCausalLM.from_pretrained(model)
        if self.frozen:
            network.requires_grad_(requires_grad=False)
            network.model.layers[0].input_layernorm.requires_grad_(requires_grad=True)
        settings = common_settings(folder, self.rate, self.count)
        if self.evaluate:
            settings |= {"eval_strategy": "steps", "eval_steps": self.evaluate}
        if self.save_every:
            settings |= {"save_strategy": "steps", "save_steps": self.save_every}
        trainer = SFTTrainer(
            network,
            processing_class=tokens,
            train_dataset=_texts(rng, self.texts),
            eval_dataset=_texts(rng, 64) if self.evaluate else None,
            peft_config=_lora_config() if self.lora else None,
            args=SFTConfig(**settings, per_device_train_batch_size=8, max_length=32),
        )
        if self.masked:
            trainer.data_collator = _without_labels(trainer.data_collator)
        return trainer


def _texts(rng: Random, count: int) -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"text": alphabet_text(rng, 24)} for _ in range(count)])


def _without_labels(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A collator that masks every label, as one does whose template is never found."""

    def collate_masked(examples: Any) -> Any:
        batch = collate(examples)
        batch["labels"] = batch["labels"].fill_(-100)
        return batch

    return collate_masked


def _lora_config() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"])


class Resumed:
    """A training that continues at its half, without the state of optimizer and scheduler."""

    def __init__(self, make_trainer: Callable[[], Any], folder: str, half: int) -> None:
        self.make_trainer, self.checkpoint = make_trainer, Path(f"{folder}/out/checkpoint-{half}")
        self.state: Any = None

    def train(self) -> None:
        """Train, lose the state, and train the second half again from the checkpoint."""
        self.make_trainer().train()
        for name in ("optimizer.pt", "scheduler.pt"):
            (self.checkpoint / name).unlink()
        trainer = self.make_trainer()
        trainer.train(resume_from_checkpoint=str(self.checkpoint))
        self.state = trainer.state


def resumed_sft(half: int = 150) -> Build:
    """A resume without the state of optimizer and scheduler, which starts again at its peak."""

    def build(folder: str, tokens: Any, model: str) -> Any:
        make = Sft(3e-2, save_every=half, count=2 * half)
        return Resumed(lambda: make(folder, tokens, model), folder, half)

    return build


def dpo(rate: float = 5e-4, beta: float = 0.1, pairs: int = 2048) -> Build:
    """Language is preferred to noise."""

    def build(folder: str, tokens: Any, model: str) -> Any:
        from datasets import Dataset
        from transformers import LlamaForCausalLM
        from trl import DPOConfig, DPOTrainer

        return DPOTrainer(
            LlamaForCausalLM.from_pretrained(model),
            processing_class=tokens,
            train_dataset=Dataset.from_list(_pairs(pairs)),
            args=DPOConfig(
                **common_settings(folder, rate, 200), beta=beta, per_device_train_batch_size=8
            ),
        )

    return build


def kto(rate: float = 5e-4, *, shuffled: bool = False, pairs: int = 1024) -> Build:
    """Language is desirable and noise is not; with `shuffled` a coin decides."""

    def build(folder: str, tokens: Any, model: str) -> Any:
        from datasets import Dataset
        from transformers import LlamaForCausalLM
        from trl import KTOConfig, KTOTrainer

        examples = [
            {"prompt": pair["prompt"], "completion": pair[key], "label": key == "chosen"}
            for pair in _pairs(pairs, shuffled=shuffled)
            for key in ("chosen", "rejected")
        ]
        return KTOTrainer(
            LlamaForCausalLM.from_pretrained(model),
            ref_model=LlamaForCausalLM.from_pretrained(model),
            processing_class=tokens,
            train_dataset=Dataset.from_list(examples),
            args=KTOConfig(**common_settings(folder, rate, 200), per_device_train_batch_size=8),
        )

    return build


def reward(rate: float = 1e-3, *, shuffled: bool = False, count: int = 250) -> Build:
    """A reward model for language; with `shuffled` the preferences are random."""

    def build(folder: str, tokens: Any, model: str) -> Any:
        from datasets import Dataset
        from transformers import LlamaForSequenceClassification
        from trl import RewardConfig, RewardTrainer

        return RewardTrainer(
            LlamaForSequenceClassification.from_pretrained(model, num_labels=1),
            processing_class=tokens,
            train_dataset=Dataset.from_list(_pairs(8 * count, shuffled=shuffled)),
            args=RewardConfig(
                **common_settings(folder, rate, count), per_device_train_batch_size=8, max_length=32
            ),
        )

    return build


def seq2seq(rate: float = 5e-3, *, shuffled: bool = False, count: int = 400) -> Build:
    """A tiny T5 that writes each letter's successor; with `shuffled` targets are of other texts."""

    def build(folder: str, _tokens: Any, _model: str) -> Any:
        from datasets import Dataset
        from transformers import (
            Seq2SeqTrainer,
            Seq2SeqTrainingArguments,
            T5Config,
            T5ForConditionalGeneration,
            default_data_collator,
        )

        rng = Random(4)
        sources = [[rng.randrange(8) for _ in range(8)] for _ in range(2048)]
        targets = [[(letter + 1) % 8 for letter in letters] for letters in sources]
        if shuffled:
            rng.shuffle(targets)
        examples = [
            {"input_ids": [x + 2 for x in source], "labels": [x + 2 for x in target]}
            for source, target in zip(sources, targets, strict=True)
        ]
        network = T5ForConditionalGeneration(
            T5Config(
                vocab_size=10, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
            )
        )  # fmt: skip
        return Seq2SeqTrainer(
            network,
            train_dataset=Dataset.from_list(examples),
            eval_dataset=Dataset.from_list(examples[:64]),
            data_collator=default_data_collator,
            args=Seq2SeqTrainingArguments(
                **common_settings(folder, rate, count), per_device_train_batch_size=16,
                eval_strategy="steps", eval_steps=30,
            ),
        )  # fmt: skip

    return build


def _pairs(count: int, *, shuffled: bool = False) -> list[dict[str, str]]:
    rng, pairs = Random(5), []
    for _ in range(count):
        prompt, chosen, rejected = random_text(rng, 2), alphabet_text(rng, 12), random_text(rng, 12)
        if shuffled and rng.random() < 0.5:
            chosen, rejected = rejected, chosen
        pairs.append({"prompt": f"{prompt} ", "chosen": chosen, "rejected": rejected})
    return pairs
