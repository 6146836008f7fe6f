"""The highest learning rate that is usual for a kind of training.

Sources: defaults of transformers (5e-5), TRL (2e-5 for SFT, 1e-6 for DPO, GRPO and RLOO, 3e-6 for
PPO) and verl (1e-6); Devlin et al. 2019 (fine-tuning at 2e-5 to 5e-5); Rafailov et al. 2023 (DPO at
1e-6); Hu et al. 2021 (LoRA at 2e-4 to 2e-3) and Schulman et al. 2025, "LoRA Without Regret" (ten
times that of full fine-tuning). Pre-training uses 6e-5 to 6e-4 (Brown et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

POLICY_ALGORITHMS = frozenset({"grpo", "rloo", "ppo", "gae", "online_dpo", "gkd"})
PREFERENCE_ALGORITHMS = frozenset({"dpo", "kto", "orpo", "cpo", "bco", "simpo"})

ADAPTER_FACTOR = 10.0
"""Factor on learning rates for adapters."""

FINE_TUNING_FRAMEWORKS = frozenset({"trl", "verl", "openrlhf", "llama-factory"})
"""Frameworks that train language models from a checkpoint; transformers also trains new ones."""

ADAPTER_SETTINGS = ("peft_type", "lora_r", "lora_rank", "lora_alpha", "use_lora", "use_peft")
"""Settings of a training of adapters. The version of PEFT is none: TRL imports it in any case."""


@dataclass(frozen=True, slots=True)
class UsualLearningRate:
    """The highest usual rate, and the kind of training in words."""

    highest: float
    kind: str


def usual_learning_rate(metadata: Mapping[str, str | float]) -> UsualLearningRate | None:
    """The highest usual rate of a run with this metadata; None if its kind is not known.

    >>> usual_learning_rate({"framework": "trl", "algorithm": "sft", "peft_type": "LORA"})
    UsualLearningRate(highest=0.001, kind='fine-tuning with adapters')
    """
    algorithm = str(metadata.get("algorithm", "")).lower()
    if algorithm in POLICY_ALGORITHMS:
        highest, kind = 1e-5, "training by reward"
    elif algorithm in PREFERENCE_ALGORITHMS:
        highest, kind = 1e-5, "training by preferences"
    elif str(metadata.get("framework", "")).lower() in FINE_TUNING_FRAMEWORKS:
        highest, kind = 1e-4, "fine-tuning"
    elif str(metadata.get("framework", "")).lower() == "transformers":
        adapters = has_adapters(metadata)
        highest, kind = (1e-4, "fine-tuning") if adapters else (1e-3, "training a transformer")
    else:
        return None
    if has_adapters(metadata):
        highest, kind = ADAPTER_FACTOR * highest, f"{kind} with adapters"
    return UsualLearningRate(highest, kind)


def has_adapters(metadata: Mapping[str, str | float]) -> bool:
    """Whether adapters are trained, as the settings say."""
    values = (metadata.get(name) for name in ADAPTER_SETTINGS)
    return any(value not in (None, "", 0.0, "false", "False") for value in values)
