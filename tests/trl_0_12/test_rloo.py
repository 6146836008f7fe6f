"""TRL 0.12.1, in an environment of its own (make test-trl-0.12): RLOO counts each update twice."""

import os

import pytest

import sentinel

os.environ.update({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})

import tiny_models
from support.recorded_rings import read_rings
from support.rloo_0_12 import SAVE_STEPS, UPDATES, check_notifications, metadata_of, write_records

pytestmark = pytest.mark.filterwarnings("ignore")


def build(folder):
    """A trainer of a model of two layers whose rewards are another's."""
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    tokens = tiny_models.tokenizer()
    prompts = tokens(
        [*tiny_models.PHRASES] * 8, padding="max_length", max_length=4, truncation=True
    )
    data = Dataset.from_list([{"input_ids": ids} for ids in prompts["input_ids"]])
    config = RLOOConfig(
        output_dir=str(folder),
        total_episodes=4 * UPDATES,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_mini_batches=1,
        num_ppo_epochs=1,
        num_sample_generations=0,
        rloo_k=2,
        response_length=6,
        local_rollout_forward_batch_size=4,
        learning_rate=1e-4,
        logging_steps=1,
        save_steps=SAVE_STEPS,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )
    return RLOOTrainer(
        config=config,
        processing_class=tokens,
        policy=tiny_models.llama(tokens),
        ref_policy=tiny_models.llama(tokens),
        reward_model=tiny_models.llama(tokens, scores=True),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
    )


def test_its_counter_is_reported_before_the_first_save_that_is_too_many(tmp_path):
    trainer = build(tmp_path / "out")

    sentinel.monitor(run="rloo", agent=False, strict=True)(trainer.train)()

    (records,) = read_rings().values()
    if os.environ.get("UPDATE_RECORDS"):
        write_records(records)
    assert metadata_of(records)["trl"] == "0.12.1"
    check_notifications(records)
