"""Real TRL trainings of a tiny model, some with a fault, with their logs.

    python benchmarks/failing_runs.py FOLDER [--only NAME,NAME]

Each writes FOLDER/NAME/trainer_state.json with the trainer's own code, for
`python benchmarks/detection.py --runs 0 --logs FOLDER`. No download, no GPU, some minutes. Faults
begin at the first step unless `onset` is set.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

LETTERS = "abcdefgh"
Build = Callable[[str, Any, str], Any]


@dataclass(frozen=True)
class Training:
    """How a training is made, its fault, and the detectors that should report it."""

    build: Build
    fault: str = ""
    expected_detectors: frozenset[str] = frozenset()
    onset: int = 0


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


def grpo(
    rate: float = 2e-3, beta: float = 0.04, reward_ends_at: int = 10**9, count: int = 150
) -> Build:
    """Rewarded for the share of the letter a; 0 from step `reward_ends_at` on."""

    def build(folder: str, tokens: Any, model: str) -> Any:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        def letter_share(completions: list[str], **_: object) -> list[float]:
            if trainer.state.global_step >= reward_ends_at:
                return [0.0] * len(completions)
            return [letters.count("a") / max(1, len(letters.split())) for letters in completions]

        trainer = GRPOTrainer(
            model=model,
            reward_funcs=letter_share,
            processing_class=tokens,
            train_dataset=Dataset.from_list([{"prompt": letter} for letter in LETTERS]),
            args=GRPOConfig(
                **common_settings(folder, rate, count), beta=beta, num_generations=8,
                per_device_train_batch_size=16, max_completion_length=8,
            ),
        )  # fmt: skip
        return trainer

    return build


def sft(rate: float = 2e-3, *, frozen: bool = False, texts: int = 2048, evaluate: int = 0) -> Build:
    """Texts to continue; with `frozen` only one norm is trainable, by mistake."""

    def build(folder: str, tokens: Any, model: str) -> Any:
        from datasets import Dataset
        from transformers import LlamaForCausalLM
        from trl import SFTConfig, SFTTrainer

        rng = Random(3)
        train_set, held_out = (
            Dataset.from_list([{"text": alphabet_text(rng, 24)} for _ in range(size)])
            for size in (texts, 64)
        )
        network = LlamaForCausalLM.from_pretrained(model)
        if frozen:
            network.requires_grad_(requires_grad=False)
            network.model.layers[0].input_layernorm.requires_grad_(requires_grad=True)
        evaluated = {"eval_strategy": "steps", "eval_steps": evaluate} if evaluate else {}
        return SFTTrainer(
            network,
            processing_class=tokens,
            train_dataset=train_set,
            eval_dataset=held_out if evaluate else None,
            args=SFTConfig(
                **common_settings(folder, rate, 300), **evaluated, per_device_train_batch_size=8,
                max_length=32,
            ),
        )  # fmt: skip

    return build


def dpo(rate: float = 5e-4, beta: float = 0.1) -> Build:
    """Language is preferred to noise."""

    def build(folder: str, tokens: Any, model: str) -> Any:
        from datasets import Dataset
        from transformers import LlamaForCausalLM
        from trl import DPOConfig, DPOTrainer

        return DPOTrainer(
            LlamaForCausalLM.from_pretrained(model),
            processing_class=tokens,
            train_dataset=Dataset.from_list(_pairs(2048)),
            args=DPOConfig(
                **common_settings(folder, rate, 200), beta=beta, per_device_train_batch_size=8
            ),
        )

    return build


def reward(*, shuffled: bool = False, count: int = 250) -> Build:
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
                **common_settings(folder, 1e-3, count), per_device_train_batch_size=8, max_length=32
            ),
        )

    return build


def _pairs(count: int, *, shuffled: bool = False) -> list[dict[str, str]]:
    rng, pairs = Random(5), []
    for _ in range(count):
        prompt, chosen, rejected = random_text(rng, 2), alphabet_text(rng, 12), random_text(rng, 12)
        if shuffled and rng.random() < 0.5:
            chosen, rejected = rejected, chosen
        pairs.append({"prompt": f"{prompt} ", "chosen": chosen, "rejected": rejected})
    return pairs


LOST = frozenset({
    "reward_collapse", "entropy_collapse", "reward_zero_variance", "reward_stalled", "kl_blowup",
    "grad_vanishing", "grad_explosion", "entropy_explosion", "loss_zero", "nan_or_inf",
    "length_collapse", "length_explosion", "truncation",
})  # fmt: skip
DIVERGED = frozenset({
    "loss_divergence", "loss_spike", "grad_explosion", "nan_or_inf", "loss_never_moved",
    "loss_plateau", "oscillation",
})  # fmt: skip
NOT_LEARNING = frozenset({"loss_never_moved", "loss_plateau", "grad_vanishing"})

TRAININGS = {
    "grpo-well": Training(grpo()),
    "grpo-fast": Training(grpo(0.6, 0.0), "beta 0 and 300 times the learning rate", LOST),
    "grpo-reward-breaks": Training(
        grpo(reward_ends_at=90), "the reward function returns 0 from step 90 on", LOST, 90
    ),
    "sft-well": Training(sft()),
    "sft-fast": Training(sft(2.0), "1,000 times the learning rate", DIVERGED),
    "sft-frozen": Training(sft(frozen=True), "all but one norm is frozen", NOT_LEARNING),
    "sft-few-texts": Training(
        sft(5e-3, texts=16, evaluate=10), "16 texts for all epochs", frozenset({"overfitting"})
    ),
    "dpo-well": Training(dpo()),
    "dpo-fast": Training(dpo(0.15, 1.0), "300 times the learning rate, beta 1", DIVERGED),
    "reward-well": Training(reward()),
    "reward-shuffled": Training(reward(shuffled=True), "random preferences", NOT_LEARNING),
}


def train(name: str, folder: Path) -> None:
    """Run one training and write its log."""
    import torch
    from transformers import set_seed
    from trl_grpo import model_of_letters

    torch.set_num_threads(1)  # of such small matrices two threads make twice the work
    set_seed(7)
    with TemporaryDirectory() as scratch:
        model = f"{scratch}/letters"
        trainer = TRAININGS[name].build(scratch, model_of_letters(model), model)
        trainer.train()
        (folder / name).mkdir(parents=True, exist_ok=True)
        trainer.state.save_to_json(str(folder / name / "trainer_state.json"))


def main() -> None:
    """Run all trainings one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="folder for the logs")
    parser.add_argument("--only", default=",".join(TRAININGS))
    args = parser.parse_args()
    if args.folder is None:
        print("Give a FOLDER for the logs.")
        return
    for name in args.only.split(","):
        print(name, flush=True)
        train(name, args.folder)


if __name__ == "__main__":
    main()
