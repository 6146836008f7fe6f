"""Two ranks of a Trainer and of GRPO: each records its values, and rank 0 the logs."""

import json

import pytest
from requirements import need

from sentinel.model.record import Event

need("trl", "transformers", "datasets")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

RANKS = """
import gc, json, os, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import torch.distributed as dist
from datasets import Dataset
from transformers import Trainer, TrainingArguments
import sentinel, tiny_models as tiny, trl

tokens = tiny.tokenizer()
common = dict(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4,
    logging_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, seed=1, save_steps=4,
)
kept = []

def keeping(cls):
    class Truthful(cls):
        losses = ()
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            self.losses = (*self.losses, float(loss))
            return loss
    return Truthful

def short(completions, **_):
    return [float(len(c) % 7) / 7 for c in completions]

def hf():
    data = Dataset.from_list(tiny.rows(tokens))
    return keeping(Trainer)(tiny.llama(tokens), TrainingArguments(**common), train_dataset=data)

def grpo():
    config = trl.GRPOConfig(
        **common, bf16=False, gradient_checkpointing=False, num_generations=2, beta=0.05,
        max_completion_length=6,
    )
    data = Dataset.from_list([{"prompt": each} for each in tiny.PHRASES * 8])
    return keeping(trl.GRPOTrainer)(
        os.environ["MODEL"], args=config, train_dataset=data, processing_class=tokens,
        reward_funcs=[short],
    )

for name, build in (("hf", hf), ("grpo", grpo)):
    with sentinel.monitor(run=name, agent=False, strict=True):
        trainer = build()
        trainer.train()
        kept.append(trainer)
        words = [trainer.accelerator.process_index, name, trainer.losses, trainer.state.log_history]
        Path(f"truth-{name}-{words[0]}.json").write_text(json.dumps(words))
dist.barrier()
gc.collect()
dist.destroy_process_group()
"""


def test_every_rank_is_recorded_and_rank_0_records_the_logs(
    run_ranks, recorded, reported_metadata, tiny_path, tmp_path
):
    run_ranks(RANKS, frameworks=("transformers.trainer", "trl"), MODEL=tiny_path)
    expected_values = [json.loads(path.read_text()) for path in tmp_path.glob("truth-*.json")]
    assert len(expected_values) == 4

    for rank, name, losses, history in expected_values:
        records = [r for r in recorded()[rank] if r.run.startswith(name)]
        taken = [r.values for r in records if r.event is Event.STEP and "loss" in r.values]
        expected = [sum(losses[at : at + 2]) for at in range(0, 8, 2)]
        assert [each["loss"] for each in taken] == pytest.approx(expected, rel=1e-6, abs=1e-12)
        assert [each["global_step"] for each in taken] == [1.0, 2.0, 3.0, 4.0]
        norms = [each["grad_norm"] for each in history if "loss" in each]
        assert [each["grad_norm"] for each in taken][1::2] == pytest.approx(norms, rel=1e-6)
        logged = [r.values for r in records if "logged_loss" in r.values]
        assert [each["logged_loss"] for each in logged] == (
            [] if rank else [each["loss"] for each in history if "loss" in each]
        )
        assert [r.step for r in records if r.event is Event.SAVE] == [4]
        if name == "grpo":
            assert all(each["generation_time"] > 0 for each in taken)
            kls = [each["kl"] for each in history if "kl" in each]
            assert [each["kl"] for each in logged] == ([] if rank else kls)
    assert reported_metadata()[0]["algorithm"] == "grpo"
