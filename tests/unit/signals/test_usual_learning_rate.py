"""The highest usual learning rate depends on the kind of training."""

import pytest

from sentinel.signals.usual_learning_rate import usual_learning_rate


@pytest.mark.parametrize(
    ("metadata", "highest"),
    [
        ({"framework": "transformers"}, 1e-3),
        ({"framework": "transformers", "peft_type": "LORA"}, 1e-3),
        ({"framework": "trl", "algorithm": "sft", "lora_r": 16.0}, 1e-3),
        ({"framework": "trl", "algorithm": "dpo"}, 1e-5),
        ({"framework": "trl", "algorithm": "sft", "peft": "0.21.2"}, 1e-4),
        ({"framework": "verl", "algorithm": "grpo", "use_lora": "false"}, 1e-5),
        ({"framework": "trl", "algorithm": "grpo", "peft_type": "LORA"}, 1e-4),
        ({"framework": "trl", "algorithm": "sft", "peft_type": "PROMPT_TUNING"}, 0.3),
        ({"framework": "trl", "algorithm": "sft", "optim": "paged_adamw_8bit"}, 1e-4),
        ({"framework": "trl", "algorithm": "sft", "optim": "lion_32bit"}, 1e-4),
        ({"framework": "transformers", "optim": "adafactor"}, 1e-3),
    ],
)
def test_the_highest_usual_rate(metadata, highest):
    usual = usual_learning_rate(metadata)

    assert usual is not None
    assert usual.highest == pytest.approx(highest)


def test_an_unknown_kind_of_training_has_no_usual_rate():
    assert usual_learning_rate({"framework": "lightning"}) is None
    assert usual_learning_rate({}) is None
    assert usual_learning_rate({"framework": "trl", "peft_type": "FOURIERFT"}) is None


@pytest.mark.parametrize("name", ["SGD", "Prodigy", "DAdaptAdam", "MuonWithAuxAdam", "Shampoo"])
def test_the_optimizer_in_use_may_have_rates_of_its_own(name):
    """Whatever the settings name: a trainer can be given an optimizer."""
    metadata = {"framework": "trl", "algorithm": "sft", "optim": "adamw_torch_fused"}

    assert usual_learning_rate(metadata | {"optimizers": "AdamW"}) is not None
    assert usual_learning_rate(metadata | {"optimizers": name}) is None
