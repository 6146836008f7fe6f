"""Real trainings of tiny models, healthy and with a fault, with their logs.

    python benchmarks/failing_runs.py FOLDER [--only NAME,NAME]

Each writes the log that its trainer writes, FOLDER/NAME/trainer_state.json or log.jsonl, for
`python benchmarks/detection.py --runs 0 --logs FOLDER`. No download, no GPU, each under a minute
on one core; a training whose log exists is left out. The LoRA ones need peft. Faults begin at the
first step unless `onset` is set.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import trl_trainings as trl

Build = Callable[[str, Any, str], Any]


@dataclass(frozen=True)
class Training:
    """How a training is made, its fault, the detectors that find it and the causes that are right.

    A fault without causes has none that its log shows.
    """

    build: Build
    fault: str = ""
    expected_detectors: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()
    onset: int = 0


PLAIN = ("ppo", "gan", "vision")
"""Prefixes of the trainings with plain PyTorch."""


def _faulty(build: Build, fault: str, detectors: str, causes: str = "", onset: int = 0) -> Training:
    return Training(build, fault, frozenset(detectors.split()), frozenset(causes.split()), onset)


def plain(kind: str, **settings: Any) -> Build:
    """The training of `torch_trainings` of that name; torch is imported when it is built."""

    def build(*_: object) -> Any:
        import torch_trainings

        return getattr(torch_trainings, kind)(**settings)

    return build


LOST = (
    "reward_collapse entropy_collapse reward_zero_variance reward_stalled kl_blowup kl_drift "
    "grad_vanishing grad_explosion entropy_explosion loss_zero nan_or_inf length_collapse "
    "length_explosion truncation learning_rate_anomaly learning_rate_high clip_saturation"
)
DIVERGED = (
    "loss_divergence loss_spike grad_explosion nan_or_inf loss_never_moved loss_plateau "
    "oscillation learning_rate_anomaly learning_rate_high loss_zero"
)
NOT_LEARNING = "loss_never_moved loss_plateau grad_vanishing"
TOO_HIGH = "learning_rate_too_high numerical_breakdown"

TRAININGS = {
    "grpo-well": Training(trl.Grpo()),
    "grpo-fast": _faulty(
        trl.Grpo(0.6, 0.0), "beta 0 and 300 times the learning rate", LOST,
        "learning_rate_too_high exploration_lost weak_kl_term policy_collapse",
    ),
    "grpo-reward-breaks": _faulty(
        trl.Grpo(reward_ends_at=90), "the reward function returns 0 from step 90 on",
        "reward_collapse reward_zero_variance", "reward_function_broken", 90,
    ),
    "grpo-length": _faulty(
        trl.Grpo(5e-3, 0.0, longest=24, pays_length=True), "paid for length, beta 0",
        "length_explosion truncation reward_hacking kl_blowup reward_zero_variance "
        "entropy_collapse", "reward_hacked weak_kl_term exploration_lost no_contrast",
    ),
    "grpo-rate-zero": _faulty(
        trl.Grpo(1e-12), "the learning rate is 1e-12", "reward_stalled learning_rate_anomaly",
        "frozen_parameters schedule_spent",
    ),
    "rloo-well": Training(trl.Grpo(rloo=True, count=120)),
    "rloo-reward-breaks": _faulty(
        trl.Grpo(rloo=True, count=120, reward_ends_at=70),
        "the reward function returns 0 from step 70 on", "reward_collapse reward_zero_variance",
        "reward_function_broken", 70,
    ),
    "sft-well": Training(trl.Sft()),
    "sft-fast": _faulty(trl.Sft(2.0), "1,000 times the learning rate", DIVERGED, TOO_HIGH),
    "sft-frozen": _faulty(
        trl.Sft(frozen=True), "all but one norm is frozen", NOT_LEARNING,
        "frozen_parameters data_not_learnable",
    ),
    "sft-few-texts": _faulty(
        trl.Sft(5e-3, texts=16, evaluate=10), "16 texts for all epochs", "overfitting", "overfit"
    ),
    "sft-masked": _faulty(
        trl.Sft(masked=True), "a template that is never found masks all labels",
        "nan_or_inf loss_zero loss_never_moved grad_vanishing", "labels_masked",
    ),
    "sft-resumed": _faulty(
        trl.resumed_sft(), "resumed at step 150 without optimizer and scheduler",
        "learning_rate_anomaly loss_spike grad_explosion loss_divergence",
        "resume_lost_state learning_rate_too_high", 150,
    ),
    "lora-well": Training(trl.Sft(5e-3, lora=True)),
    "lora-fast": _faulty(
        trl.Sft(5.0, lora=True), "1,000 times the learning rate", DIVERGED, TOO_HIGH
    ),
    "dpo-well": Training(trl.dpo()),
    "dpo-fast": _faulty(
        trl.dpo(0.15, 1.0), "300 times the learning rate, beta 1", DIVERGED, TOO_HIGH
    ),
    "kto-well": Training(trl.kto()),
    "kto-fast": _faulty(trl.kto(0.15), "300 times the learning rate", DIVERGED, TOO_HIGH),
    "reward-well": Training(trl.reward()),
    "reward-shuffled": _faulty(
        trl.reward(shuffled=True), "random preferences", NOT_LEARNING, "data_not_learnable"
    ),
    "reward-fast": _faulty(trl.reward(1.0), "1,000 times the learning rate", DIVERGED, TOO_HIGH),
    "seq2seq-well": Training(trl.seq2seq()),
    "seq2seq-fast": _faulty(trl.seq2seq(1.5), "300 times the learning rate", DIVERGED, TOO_HIGH),
    "ppo-well": Training(plain("ppo")),
    "ppo-reward-breaks": _faulty(
        plain("ppo", reward_ends_at=120), "the reward is 0 from step 120 on", LOST,
        "reward_function_broken", 120,
    ),
    "ppo-fast": _faulty(
        plain("ppo", rate=0.5, epochs=20), "500 times the learning rate, 20 epochs", LOST,
        "learning_rate_too_high too_many_updates exploration_lost policy_collapse",
    ),
    "gan-well": Training(plain("gan")),
    "gan-lost": _faulty(
        plain("gan", rate=1e-5, discriminator_rate=5e-2),
        "the discriminator learns 5,000 times faster",
        f"{DIVERGED} grad_vanishing", TOO_HIGH,
    ),
    "vision-well": Training(plain("vision")),
    "vision-shuffled": _faulty(
        plain("vision", shuffled=True), "labels of other images", NOT_LEARNING + " overfitting",
        "data_not_learnable overfit",
    ),
    "vision-few-images": _faulty(
        plain("vision", images=48), "48 images for all epochs", "overfitting", "overfit"
    ),
    "vision-overflow": _faulty(
        plain("vision", overflows=True), "a loss scale that doubles without a check", "nan_or_inf",
        "numerical_breakdown",
    ),
    "vision-frozen": _faulty(
        plain("vision", frozen=True), "no weight is given to the optimizer", NOT_LEARNING,
        "frozen_parameters data_not_learnable",
    ),
}  # fmt: skip


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
        if name.startswith(PLAIN):
            lines = "".join(f"{json.dumps(line)}\n" for line in trainer.state.lines)
            (folder / name / "log.jsonl").write_text(lines)
        else:
            trainer.state.save_to_json(str(folder / name / "trainer_state.json"))


def find_log(folder: Path, name: str) -> Path | None:
    """The log of a training in the folder, if there is one."""
    candidates = (folder / name / file for file in ("trainer_state.json", "log.jsonl"))
    return next((path for path in candidates if path.is_file()), None)


def main() -> None:
    """Run all trainings without a log, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="folder for the logs")
    parser.add_argument("--only", default=",".join(TRAININGS))
    args = parser.parse_args()
    if args.folder is None:
        print("Give a FOLDER for the logs.")
        return
    for name in args.only.split(","):
        if find_log(args.folder, name):
            continue
        if name.startswith("lora") and find_spec("peft") is None:
            print(f"{name}: left out, it needs peft", flush=True)
            continue
        began = time.monotonic()
        train(name, args.folder)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
