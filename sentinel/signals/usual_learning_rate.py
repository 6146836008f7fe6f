"""The highest learning rate that is usual for a kind of training.

Sources: defaults of transformers (5e-5), TRL (2e-5 for SFT, 1e-6 for DPO, GRPO and RLOO, 3e-6 for
PPO) and verl (1e-6); Devlin et al. 2019 (fine-tuning at 2e-5 to 5e-5); Rafailov et al. 2023 (DPO at
1e-6); Hu et al. 2021 (LoRA at 2e-4 to 2e-3) and Schulman et al. 2025, "LoRA Without Regret" (ten
times that of full fine-tuning). Pre-training uses 6e-5 to 6e-4 (Brown et al. 2020). Soft prompts
are trained at 0.3 (Lester et al. 2021).

All of them are rates of Adam and its relatives, whose step is about the rate in each weight. Others
have rates of their own: SGD 0.1 to 1, Muon 0.02, Prodigy and D-Adaptation 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

POLICY_ALGORITHMS = frozenset({"grpo", "rloo", "ppo", "gae", "online_dpo", "gkd"})
PREFERENCE_ALGORITHMS = frozenset({"dpo", "kto", "orpo", "cpo", "bco", "simpo"})

HIGHEST_ADAM_RATE, HIGHEST_SGD_RATE = 1e-2, 1.0
"""Highest usual rates of an optimizer, whatever it trains."""

ADAPTER_FACTOR = 10.0
"""Factor on learning rates for adapters."""

FINE_TUNING_FRAMEWORKS = frozenset({"trl", "verl", "openrlhf", "llama-factory"})
"""Frameworks that train language models from a checkpoint; transformers also trains new ones."""

ADAPTER_SETTINGS = ("peft_type", "lora_r", "lora_rank", "lora_alpha", "use_lora", "use_peft")
"""Settings of a training of adapters. The version of PEFT is none: TRL imports it in any case."""


LOW_RANK_TYPES = frozenset({"lora", "adalora", "loha", "lokr", "oft", "boft", "hra", "miss"})
"""Kinds of PEFT whose rates are those of LoRA; other kinds scale their weights in their own way."""

SOFT_PROMPT_TYPES = frozenset({
    "prompt_tuning", "multitask_prompt_tuning", "p_tuning", "prefix_tuning", "adaption_prompt",
})  # fmt: skip

SOFT_PROMPT_RATE = 0.3

OPTIMIZER_SETTINGS = ("optimizers", "optimizer", "optim")
"""Names of the optimizer in use, and of the one in the settings, which it may replace."""

UNEVEN_RATES = (
    "highest_group_learning_rate", "highest_group_number", "highest_group_weight_share",
    "main_group_learning_rate",
)  # fmt: skip
"""Metadata of an optimizer whose groups have rates that are far apart."""

OPTIONAL_METADATA = (*ADAPTER_SETTINGS, *OPTIMIZER_SETTINGS, *UNEVEN_RATES)
"""Metadata that a training may lack, so that those of the training before it would remain."""

ADAM_LIKE_NAMES = ("adam", "ademamix", "lion", "adafactor", "rmsprop")
"""Parts of the names of optimizers whose step is about the rate in each weight."""

OTHER_OPTIMIZER_NAMES = ("muon", "dadapt", "prodigy", "lomo", "sgd")
"""Parts of the names of others, which may contain one of the former, as `MuonWithAuxAdam`."""


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
    if not _is_adam_like(metadata):
        return None
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
    if not has_adapters(metadata):
        return UsualLearningRate(highest, kind)
    adapter = str(metadata.get("peft_type", "lora")).lower()
    if adapter in SOFT_PROMPT_TYPES:
        return UsualLearningRate(SOFT_PROMPT_RATE, f"{kind} with soft prompts")
    if adapter not in LOW_RANK_TYPES:
        return None
    return UsualLearningRate(ADAPTER_FACTOR * highest, f"{kind} with adapters")


def highest_learning_rate(metadata: Mapping[str, str | float]) -> UsualLearningRate | None:
    """The highest usual rate of the optimizer, whatever it trains; None if that is not known.

    >>> highest_learning_rate({"optimizers": "SGD"})
    UsualLearningRate(highest=1.0, kind='SGD')
    """
    name = _optimizer_name(metadata)
    if not _is_adam_like(metadata):
        return UsualLearningRate(HIGHEST_SGD_RATE, "SGD") if name == "sgd" else None
    if has_adapters(metadata):
        return UsualLearningRate(ADAPTER_FACTOR * HIGHEST_ADAM_RATE, "adapters with Adam")
    return UsualLearningRate(HIGHEST_ADAM_RATE, "Adam")


def states_optimizer(metadata: Mapping[str, str | float]) -> bool:
    """Whether the optimizer is known."""
    return any(metadata.get(name) for name in OPTIMIZER_SETTINGS)


def _optimizer_name(metadata: Mapping[str, str | float]) -> str:
    """The name of the optimizer, in lower case; Adam if none is stated."""
    stated = (metadata.get(name) for name in OPTIMIZER_SETTINGS)
    return str(next((each for each in stated if each), "adam")).lower()


def _is_adam_like(metadata: Mapping[str, str | float]) -> bool:
    """Whether the optimizer is Adam or a relative, as most are; also if it is not known."""
    name = _optimizer_name(metadata)
    is_other = any(part in name for part in OTHER_OPTIMIZER_NAMES)
    return not is_other and any(part in name for part in ADAM_LIKE_NAMES)


def has_adapters(metadata: Mapping[str, str | float]) -> bool:
    """Whether adapters are trained, as the settings state."""
    values = (metadata.get(name) for name in ADAPTER_SETTINGS)
    return any(value not in (None, "", 0.0, "false", "False") for value in values)
