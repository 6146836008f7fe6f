"""TRL: its trainers' losses are seen raw, what they log beside, and the texts if asked for."""

import json
import math

import pytest
from loops import column, steps
from needed import need
from sameness import chance, patches, seed, weights

import sentinel
from sentinel.record import Event

need("trl", "transformers", "datasets")
import tiny

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)
BETA = 0.07


@pytest.fixture(scope="module")
def tokens():
    return tiny.tokenizer()


@pytest.fixture(scope="module")
def path(tokens, tmp_path_factory):
    return tiny.saved(tmp_path_factory.mktemp("model") / "tiny-llama", tokens)


def short(completions, **_):
    return [float(len(completion) % 7) / 7 for completion in completions]


def absent(completions, **_):
    """As a reward function that has no opinion on these prompts."""
    return [None] * len(completions)


@pytest.fixture
def build(tokens, path, tmp_path):
    """Builds one of TRL's trainers, which keeps the losses that its training steps return."""
    import trl
    from datasets import Dataset

    phrases = [*tiny.PHRASES] * 8
    prompts = [{"prompt": each} for each in phrases]
    sampled = {"num_generations": 4, "max_completion_length": 8, "beta": BETA}
    known = {
        "sft": (trl.SFTTrainer, trl.SFTConfig, [{"text": f"{p} jumps"} for p in phrases], {}),
        "dpo": (
            trl.DPOTrainer,
            trl.DPOConfig,
            [{"prompt": p, "chosen": " fox jumps", "rejected": " dog"} for p in phrases],
            {"beta": BETA},
        ),
        "kto": (
            trl.KTOTrainer,
            trl.KTOConfig,
            [
                {"prompt": p, "completion": " fox" if at % 2 else " dog", "label": bool(at % 2)}
                for at, p in enumerate(phrases)
            ],
            {"beta": BETA},
        ),
        "reward": (
            trl.RewardTrainer,
            trl.RewardConfig,
            [{"chosen": f"{p} fox jumps", "rejected": f"{p} dog"} for p in phrases],
            {},
        ),
        "grpo": (trl.GRPOTrainer, trl.GRPOConfig, prompts, sampled),
        "rloo": (trl.RLOOTrainer, trl.RLOOConfig, prompts, sampled),
    }

    def trainer(name, rewards=(short,), data=None, **settings):
        cls, config, rows, own = known[name]

        class Truthful(cls):
            def training_step(self, *args, **kwargs):
                loss = super().training_step(*args, **kwargs)
                self.losses = [*getattr(self, "losses", []), float(loss)]
                return loss

        common = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "max_steps": 3,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": [],
            "disable_tqdm": True,
            "seed": 1,
        }
        more = {"reward_funcs": list(rewards)} if name in {"grpo", "rloo"} else {}
        return Truthful(
            tiny.llama(tokens, scores=True) if name == "reward" else path,
            args=config(**{**common, **own, **settings}),
            train_dataset=Dataset.from_list(data or rows),
            processing_class=tokens,
            **more,
        )

    return trainer


def logs(trainer):
    """What it logged of its steps, without the times it took."""
    return [each for each in trainer.state.log_history if "loss" in each]


LOGGED = {
    "sft": {"entropy", "mean_token_accuracy", "num_tokens"},
    "dpo": {"rewards/chosen", "rewards/margins", "rewards/accuracies", "logps/rejected", "entropy"},
    "kto": {"kl", "rewards/chosen", "rewards/rejected", "entropy"},
    "reward": {"mean_reward", "accuracy", "margin"},
    "grpo": {"kl", "reward", "reward_std", "rewards/short/mean", "entropy", "num_tokens"}
    | {"completions/mean_length", "completions/clipped_ratio", "frac_reward_zero_std"},
    "rloo": {"kl", "reward", "reward_std", "rewards/short/mean", "entropy", "num_tokens"}
    | {"completions/mean_length", "completions/clipped_ratio", "frac_reward_zero_std"},
}
FIRST = {"sft": math.log(300), "dpo": math.log(2), "kto": 0.5, "reward": math.log(2)}
"""What the loss of a model that knows nothing, and is its own reference, must begin with."""


@pytest.mark.parametrize("name", LOGGED)
def test_a_trainer_of_trl_is_seen_step_by_step(build, told, facts, name):
    trainer = build(name)

    watched(trainer.train)()

    losses = [sum(trainer.losses[at : at + 2]) for at in (0, 2, 4)]
    assert column(told, "loss") == pytest.approx(losses, rel=1e-6, abs=1e-12)
    assert column(told, "loss")[0] == pytest.approx(FIRST.get(name, 0.0), abs=0.05)
    assert column(told, "grad_norm") == [each["grad_norm"] for each in logs(trainer)]
    assert column(told, "learning_rate") == [each["learning_rate"] for each in logs(trainer)]
    for key in LOGGED[name]:
        assert column(told, key) == [each[key] for each in logs(trainer)], key
    assert column(told, "logged_loss") == [each["loss"] for each in logs(trainer)]
    assert sorted({record.step for record in steps(told)}) == [1, 2, 3]
    known = facts()[0]
    assert (known["framework"], known["algorithm"]) == ("trl", name)
    assert known["framework_version"] == known["trl"]
    assert known.get("beta", BETA) == BETA
    assert known["model"] == ("llama" if name == "reward" else "tiny-llama")


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_step_that_samples_says_how_long_that_took(build, told, facts, name):
    trainer = build(name, max_steps=2)

    watched(trainer.train)()

    first, second = (r.values for r in steps(told) if "loss" in r.values)
    assert first["generation_time"] > 0
    assert 0 < second["generation_time"] < second["step_time"]
    assert facts()[0]["num_generations"] == 4.0
    assert column(told, "logged_step_time") == [each["step_time"] for each in logs(trainer)]


def test_a_reward_that_nobody_gave_is_left_out_and_counted_against_nobody(build, told, headers):
    trainer = build("grpo", rewards=(short, absent), max_steps=1)

    watched(trainer.train)()

    assert logs(trainer)[0]["rewards/absent/mean"] is None
    assert column(told, "rewards/absent/mean") == []
    assert column(told, "rewards/short/mean") == [logs(trainer)[0]["rewards/short/mean"]]
    assert not any(headers()[0].drops)


def test_without_a_penalty_there_is_no_divergence_and_the_facts_say_so(build, told, facts):
    watched(build("grpo", beta=0.0, max_steps=1).train)()

    assert column(told, "kl") == []
    assert facts()[0]["beta"] == 0.0


def test_what_kind_of_divergence_it_is_is_told(build, facts):
    watched(build("grpo", max_steps=1).train)()

    assert facts()[0]["kl_estimator"] == "k3xratio"


def samples(told):
    return [record for record in told()[0] if record.event is Event.SAMPLE]


def test_texts_are_shown_where_they_are_asked_for(build, told):
    trainer = build("grpo", rewards=(short, absent), max_steps=2)

    sentinel.monitor(run="test", agent=False, strict=True, samples=3)(trainer.train)()

    assert [record.step for record in samples(told)] == [1, 1, 1, 2, 2, 2]
    kept = dict(zip(trainer._logs["completion"], trainer._logs["rewards"]["short"], strict=True))
    last = samples(told)[3:]
    assert [kept[r.facts["completion"]] for r in last] == [r.values["reward/short"] for r in last]
    assert all(r.facts["prompt"] in tiny.PHRASES for r in last)
    assert not any("reward/absent" in r.values for r in last)


def test_a_conversation_is_shown_as_what_was_said_in_it(build, told):
    data = [{"prompt": [{"role": "user", "content": "hello"}]}] * 8

    def flat(completions, **_):
        return [float(len(completion[0]["content"]) % 3) for completion in completions]

    trainer = build("grpo", rewards=(flat,), data=data, max_steps=1)
    sentinel.monitor(run="test", agent=False, strict=True, samples=1)(trainer.train)()

    (sample,) = samples(told)
    said = [completion[0]["content"] for completion in trainer._logs["completion"]]
    assert sample.facts["prompt"] == "hello"
    assert sample.facts["completion"] in said


def test_texts_are_nobodys_business_where_they_are_not_asked_for(build, told):
    watched(build("grpo", max_steps=1).train)()

    assert samples(told) == []


def test_sampling_is_the_same_watched_or_not(build):
    import trl.generation.vllm_generation  # noqa: F401

    modules = ("transformers.trainer", "transformers.trainer_callback", "accelerate.accelerator")
    modules += ("transformers.generation.utils", "trl.generation.vllm_generation")
    results, before = [], patches(*modules)
    for watch in (False, True):
        seed()
        trainer = build("grpo", max_steps=2)
        (watched(trainer.train) if watch else trainer.train)()
        texts = [*trainer._logs["completion"]]
        results.append((trainer.losses, texts, weights(trainer.model), chance()))

    assert results[0] == results[1]
    assert patches(*modules) == before


def test_sampling_by_vllm_is_a_part_of_the_step_too(told, monkeypatch):
    """VLLM itself is not needed to see that TRL's call of it is timed."""
    from loops import batch, loss_of, model
    from torch import optim
    from trl.generation.vllm_generation import VLLMGeneration

    monkeypatch.setattr(VLLMGeneration, "generate", lambda self: "texts")
    monkeypatch.setattr(VLLMGeneration, "sync_weights", lambda self: None)
    engine = object.__new__(VLLMGeneration)

    @watched
    def train():
        net = model()
        engine.sync_weights()
        assert engine.generate() == "texts"
        loss_of(net, batch(0)).backward()
        optim.SGD(net.parameters(), lr=0.1).step()

    train()

    (step,) = steps(told)
    assert step.values["generation_time"] > 0
    assert step.values["weight_sync_time"] > 0


RANKS = """
import gc, json, os, warnings
warnings.filterwarnings("ignore")
import torch.distributed as dist
from datasets import Dataset
from transformers import Trainer, TrainingArguments
import sentinel, tiny, trl

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
        print("truth " + json.dumps(words), flush=True)
dist.barrier()
gc.collect()
dist.destroy_process_group()
"""


def test_every_rank_is_seen_and_the_first_tells_what_is_logged(torchrun, told, facts, path):
    printed = torchrun(RANKS, MODEL=path)
    lines = [line for line in printed.splitlines() if line.startswith("truth ")]
    assert len(lines) == 4

    for rank, name, losses, history in (json.loads(line[6:]) for line in lines):
        said = [r for r in told()[rank] if r.run.startswith(name)]
        taken = [r.values for r in said if r.event is Event.STEP and "loss" in r.values]
        truth = [sum(losses[at : at + 2]) for at in range(0, 8, 2)]
        assert [each["loss"] for each in taken] == pytest.approx(truth, rel=1e-6, abs=1e-12)
        assert [each["global_step"] for each in taken] == [1.0, 2.0, 3.0, 4.0]
        norms = [each["grad_norm"] for each in history if "loss" in each]
        assert [each["grad_norm"] for each in taken][1::2] == pytest.approx(norms, rel=1e-6)
        logged = [r.values for r in said if "logged_loss" in r.values]
        assert [each["logged_loss"] for each in logged] == (
            [] if rank else [each["loss"] for each in history if "loss" in each]
        )
        assert [r.step for r in said if r.event is Event.SAVE] == [4]
        if name == "grpo":
            assert all(each["generation_time"] > 0 for each in taken)
            kls = [each["kl"] for each in history if "kl" in each]
            assert [each["kl"] for each in logged] == ([] if rank else kls)
    assert facts()[0]["algorithm"] == "grpo"
