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
    ],
)
def test_the_highest_usual_rate(metadata, highest):
    usual = usual_learning_rate(metadata)

    assert usual is not None
    assert usual.highest == pytest.approx(highest)


def test_an_unknown_kind_of_training_has_no_usual_rate():
    assert usual_learning_rate({"framework": "lightning"}) is None
    assert usual_learning_rate({}) is None
