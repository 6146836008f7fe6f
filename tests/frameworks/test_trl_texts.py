"""Texts that a TRL trainer generated are recorded only if the run requests them."""

import pytest
from requirements import need

import sentinel
from sentinel.model.record import Event

need("trl", "transformers", "datasets")
import tiny_models
from recording_trainers import absent, of_trl, short

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def build(tokens, tiny_path, tmp_path):
    return lambda name, **settings: of_trl(name, tokens, tiny_path, tmp_path / "out", **settings)


def samples(read_records):
    return [record for record in read_records()[0] if record.event is Event.SAMPLE]


def test_texts_are_recorded_if_requested(build, recorded):
    trainer = build("grpo", rewards=(short, absent), max_steps=2)

    sentinel.monitor(run="test", agent=False, strict=True, samples=3)(trainer.train)()

    assert [record.step for record in samples(recorded)] == [1, 1, 1, 2, 2, 2]
    kept = dict(zip(trainer._logs["completion"], trainer._logs["rewards"]["short"], strict=True))
    last = samples(recorded)[3:]
    assert [kept[r.attributes["completion"]] for r in last] == [
        r.values["reward/short"] for r in last
    ]
    assert all(r.attributes["prompt"] in tiny_models.PHRASES for r in last)
    assert not any("reward/absent" in r.values for r in last)


def test_a_conversation_is_recorded_as_its_contents(build, recorded):
    data = [{"prompt": [{"role": "user", "content": "hello"}]}] * 8

    def flat(completions, **_):
        return [float(len(completion[0]["content"]) % 3) for completion in completions]

    trainer = build("grpo", rewards=(flat,), data=data, max_steps=1)
    sentinel.monitor(run="test", agent=False, strict=True, samples=1)(trainer.train)()

    (sample,) = samples(recorded)
    contents = [completion[0]["content"] for completion in trainer._logs["completion"]]
    assert sample.attributes["prompt"] == "hello"
    assert sample.attributes["completion"] in contents


def test_texts_are_not_recorded_unless_requested(build, recorded):
    sentinel.monitor(run="test", agent=False, strict=True)(build("grpo", max_steps=1).train)()

    assert samples(recorded) == []
