"""TRL: the raw losses of its trainers and their logs are recorded."""

import math

import pytest
from requirements import need
from side_effects import patches, random_state, seed, weights
from support.training_loops import column, steps

import sentinel
from sentinel.model.record import Event

need("trl", "transformers", "datasets")
from recording_trainers import BETA, absent, logs, of_trl, short

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)


@pytest.fixture
def build(tokens, tiny_path, tmp_path):
    return lambda name, **settings: of_trl(name, tokens, tiny_path, tmp_path / "out", **settings)


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
"""Initial loss of an untrained model that is its own reference."""


@pytest.mark.parametrize("name", LOGGED)
def test_a_trl_trainer_is_recorded_step_by_step(build, recorded, reported_metadata, name):
    trainer = build(name)

    watched(trainer.train)()

    losses = [sum(trainer.losses[at : at + 2]) for at in (0, 2, 4)]
    assert column(recorded, "loss") == pytest.approx(losses, rel=1e-6, abs=1e-12)
    assert column(recorded, "loss")[0] == pytest.approx(FIRST.get(name, 0.0), abs=0.05)
    assert column(recorded, "grad_norm") == [each["grad_norm"] for each in logs(trainer)]
    assert column(recorded, "learning_rate") == [each["learning_rate"] for each in logs(trainer)]
    for key in LOGGED[name]:
        assert column(recorded, key) == [each[key] for each in logs(trainer)], key
    assert column(recorded, "logged_loss") == [each["loss"] for each in logs(trainer)]
    assert sorted({record.step for record in steps(recorded)}) == [1, 2, 3]
    known = reported_metadata()[0]
    assert (known["framework"], known["algorithm"]) == ("trl", name)
    assert known["framework_version"] == known["trl"]
    assert known.get("beta", BETA) == BETA
    assert known["model"] == ("llama" if name == "reward" else "tiny-llama")


@pytest.mark.parametrize("name", LOGGED)
def test_no_check_finds_a_problem(build, recorded, reported_metadata, name):
    watched(build(name, max_steps=24, gradient_checkpointing=True).train)()

    reports = [each.attributes for each in recorded()[0] if each.event is Event.CHECK]
    problems = {each["check"]: each["problem"] for each in reports}
    # The rows of the data are repeated.
    problems.pop("batches", None)
    assert problems.keys() >= {"weights", "weight_changes"}
    assert {*problems.values()} == {""}
    assert not any(key.startswith("patch/check_") for key in reported_metadata()[0])


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_sampling_step_has_its_generation_time(build, recorded, reported_metadata, name):
    trainer = build(name, max_steps=2)

    watched(trainer.train)()

    first, second = (r.values for r in steps(recorded) if "loss" in r.values)
    assert first["generation_time"] > 0
    assert 0 < second["generation_time"] < second["step_time"]
    assert reported_metadata()[0]["num_generations"] == 4.0
    assert column(recorded, "logged_step_time") == [each["step_time"] for each in logs(trainer)]


def test_a_missing_reward_is_omitted_and_not_counted_as_dropped(build, recorded, headers):
    trainer = build("grpo", rewards=(short, absent), max_steps=1)

    watched(trainer.train)()

    assert logs(trainer)[0]["rewards/absent/mean"] is None
    assert column(recorded, "rewards/absent/mean") == []
    assert column(recorded, "rewards/short/mean") == [logs(trainer)[0]["rewards/short/mean"]]
    assert not any(headers()[0].drop_counts)


def test_without_a_kl_penalty_there_is_no_kl(build, recorded, reported_metadata):
    watched(build("grpo", beta=0.0, max_steps=1).train)()

    assert column(recorded, "kl") == []
    assert reported_metadata()[0]["beta"] == 0.0


def test_the_kind_of_kl_is_recorded(build, reported_metadata):
    watched(build("grpo", max_steps=1).train)()

    assert reported_metadata()[0]["kl_estimator"] == "k3xratio"


def test_sampling_is_identical_with_and_without_monitoring(build):
    import trl.generation.vllm_generation  # noqa: F401

    modules = ("transformers.trainer", "transformers.trainer_callback", "accelerate.accelerator")
    modules += ("transformers.generation.utils", "trl.generation.vllm_generation")
    results, before = [], patches(*modules)
    for watch in (False, True):
        seed()
        trainer = build("grpo", max_steps=2)
        (watched(trainer.train) if watch else trainer.train)()
        texts = [*trainer._logs["completion"]]
        results.append((trainer.losses, texts, weights(trainer.model), random_state()))

    assert results[0] == results[1]
    assert patches(*modules) == before


def test_generation_by_vllm_is_part_of_the_step(recorded, monkeypatch):
    """The timing of TRL's call is tested without vLLM."""
    from support.training_loops import batch, loss_of, model
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

    (step,) = steps(recorded)
    assert step.values["generation_time"] > 0
    assert step.values["weight_sync_time"] > 0
