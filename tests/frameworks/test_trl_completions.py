"""The files that TRL's `log_completions` writes, read as the agent reads them."""

from __future__ import annotations

import pytest
from requirements import need

from sentinel.readers.sample_rows import read_samples

need("torch", "trl", "datasets", "pandas", "pyarrow")

PROMPT = "hello world"
CONVERSATION = [{"role": "user", "content": PROMPT}]


@pytest.mark.parametrize("prompt", [PROMPT, CONVERSATION], ids=["text", "conversation"])
@pytest.mark.filterwarnings("ignore")
def test_prompts_completions_and_rewards_are_those_that_were_rewarded(tmp_path, prompt):
    """The reward functions get every completion, which gives the expected samples."""
    from datasets import Dataset
    from tiny_models import llama, tokenizer
    from trl import GRPOConfig, GRPOTrainer

    seen = []

    def longer(completions, **_):
        texts = [
            completion if isinstance(completion, str) else completion[0]["content"]
            for completion in completions
        ]
        seen.extend(texts)
        return [float(len(text)) for text in texts]

    def even(completions, **_):
        return [None if at % 2 else 1.0 for at in range(len(completions))]

    tokens = tokenizer()
    config = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        logging_steps=1,
        log_completions=True,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=llama(tokens),
        reward_funcs=[longer, even],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 8}),
        processing_class=tokens,
    ).train()

    found = list(read_samples(tmp_path / "completions" / "completions_00001.parquet", 32))

    assert [sample.step for sample in found] == [1] * 4
    assert [sample.content[1] for sample in found] == [
        {"prompt": PROMPT, "completion": text} for text in seen[:4]
    ]
    rewards = [sample.content[0] for sample in found]
    assert [values["reward/longer"] for values in rewards] == [float(len(t)) for t in seen[:4]]
    assert [values.get("reward/even") for values in rewards] == [1.0, None, 1.0, None]
    assert sum(values["advantage"] for values in rewards) == pytest.approx(0.0, abs=1e-4)
