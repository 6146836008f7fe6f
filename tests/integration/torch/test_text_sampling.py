"""Which texts of a batch are written to the ring, whatever the batch contains."""

from collections import deque
from math import isnan, nan

import numpy as np
import pytest
import torch
from support.recorders import Hostile, HostileFloat, RecordedRank

import sentinel
from sentinel.client.capture.text_sampling import DEFAULT_SAMPLES_PER_CALL, GeneratedBatch
from sentinel.client.guard import ErrorGuard
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event
from sentinel.model.sample_text import HEAD_CHARS, PROMPT_CHARS, TAIL_CHARS
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingReader, RingWriter


class Str(str):
    __slots__ = ()
    __len__ = __getitem__ = __str__ = Hostile._raise
    __hash__ = str.__hash__


class List(list):
    __len__ = __getitem__ = __iter__ = Hostile._raise


@pytest.fixture
def rank(tmp_path):
    return RecordedRank(tmp_path / "0-0.ring")


def batch(size, **given):
    texts = {
        "prompts": [f"p{n}" for n in range(size)],
        "completions": [f"c{n}" for n in range(size)],
    }
    return GeneratedBatch(**texts | given)


def completions(rank):
    return [record.attributes["completion"] for record in rank.records()]


def test_texts_are_read_back_as_they_were_recorded(rank):
    rank.recorder.record_samples(
        GeneratedBatch(
            ["q1", "q2"], ["a1", "a2"], {"right": [1.0, 0.0], "short": [0.5, 2]}, [True, False]
        ),
        step=70,
    )

    first, second = rank.records()
    assert (first.event, first.step, first.rank) == (Event.SAMPLE, 70, 0)
    assert first.attributes == {"prompt": "q1", "completion": "a1"}
    assert second.values == {
        "index": 1.0,
        "prompt_length": 2.0,
        "length": 2.0,
        "finished": 0.0,
        "reward/right": 0.0,
        "reward/short": 2.0,
    }
    assert rank.drops() == {}


def test_a_text_without_a_step_belongs_to_the_current_step(rank):
    rank.take_step(loss=1.0)
    rank.recorder.log({"kl": 0.1}, step=41)
    rank.recorder.record_samples(batch(1))

    (sample,) = (record for record in rank.records() if record.event is Event.SAMPLE)
    assert (sample.step, sample.step_index) == (41, 1)


def test_few_of_many_texts_are_sent_including_the_best_and_the_worst(rank):
    rewards = [0.0] * 300
    rewards[123], rewards[45] = 9.0, -9.0
    rank.recorder.record_samples(batch(300, rewards=rewards))

    sent = completions(rank)
    assert {"c0", "c299", "c123", "c45"} <= set(sent)
    assert len(sent) <= DEFAULT_SAMPLES_PER_CALL


@pytest.mark.parametrize(
    "row", [tuple, deque, np.array, torch.tensor, lambda r: np.array(r, dtype=np.float32)]
)
def test_rewards_may_be_any_plain_sequence(rank, row):
    rank.recorder.record_samples(batch(2, rewards=row([0.5, -1.0])))

    assert [record.values["reward"] for record in rank.records()] == [0.5, -1.0]
    assert rank.drops() == {}


def test_single_rewards_may_be_scalars_of_numpy_and_torch(rank):
    rewards = [np.float32(0.5), torch.tensor(2.0), None, nan]
    rank.recorder.record_samples(batch(4, rewards=rewards))

    rewards = [record.values.get("reward") for record in rank.records()]
    assert rewards[:3] == [0.5, 2.0, None]
    assert isnan(rewards[3])
    assert rank.drops() == {}


NOT_SEQUENCES = {
    "nothing": None,
    "a number": 7,
    "a text": "ab",
    "bytes": b"ab",
    "a hostile object": Hostile(),
    "a class": Hostile,
    "a list subclass": List(["x"]),
    "a mapping": {"a": 1},
    "a table": np.array([["x"]]),
    "an iterator": iter("ab"),
}
NOT_TEXTS = {
    "a hostile object": Hostile(),
    "a str subclass": Str("x"),
    "a number": 7,
    "nothing": None,
    "bytes": b"x",
    "texts": ["x"],
    "a float subclass": HostileFloat(1.0),
}
NOT_NUMBERS = {
    "a hostile object": Hostile(),
    "a float subclass": HostileFloat(1.0),
    "a text": "1",
    "numbers": [1.0],
    "a row": torch.zeros(2),
}


@pytest.mark.parametrize("given", NOT_SEQUENCES)
def test_completions_that_are_not_a_sequence_are_dropped_and_counted(rank, given):
    rank.recorder.record_samples(GeneratedBatch(["p"], NOT_SEQUENCES[given]))

    assert rank.records() == []
    assert rank.drops() in ({"type": 1, "shape": 1}, {"shape": 1})


@pytest.mark.fault("I3")
@pytest.mark.parametrize("invalid", NOT_TEXTS)
def test_an_invalid_text_loses_only_itself(rank, invalid):
    invalid = NOT_TEXTS[invalid]
    rank.recorder.record_samples(GeneratedBatch(["p", "p", invalid], ["a", invalid, "c"]))

    assert [(r.attributes["prompt"], r.attributes["completion"]) for r in rank.records()] == [
        ("p", "a"),
        ("", "c"),
    ]
    assert rank.drops() == {"type": 2}


@pytest.mark.parametrize("invalid", NOT_NUMBERS)
def test_an_invalid_reward_loses_only_itself(rank, invalid):
    rank.recorder.record_samples(
        batch(2, rewards={"good": [1.0, 2.0], "invalid": [NOT_NUMBERS[invalid], 3.0]})
    )

    first, second = (record.values for record in rank.records())
    assert "reward/invalid" not in first
    assert (first["reward/good"], second["reward/invalid"]) == (1.0, 3.0)
    assert rank.drops() == {"type": 1}


def test_reward_names_are_validated_like_value_names(rank):
    rewards = {7: [1.0], "": [1.0], "x" * 300: [1.0], "good": [1.0], "no row": Hostile()}
    rank.recorder.record_samples(batch(1, rewards=rewards))

    assert "reward/good" in rank.records()[0].values
    assert rank.drops() == {"key": 3, "type": 1}


def test_the_number_of_reward_names_is_limited(rank):
    rank.recorder.record_samples(batch(1, rewards={f"r{n}": [1.0] for n in range(40)}))

    assert sum(name.startswith("reward/") for name in rank.records()[0].values) == 32
    assert rank.drops() == {"too_many_names": 8}


def test_sequences_of_different_length_are_counted(rank):
    rank.recorder.record_samples(GeneratedBatch(["p"], ["a", "b"], [1.0, 2.0, 3.0]))

    assert completions(rank) == ["a", "b"]
    assert [record.attributes["prompt"] for record in rank.records()] == ["p", ""]
    assert rank.drops() == {"shape": 2}


def test_a_conversation_is_joined_to_a_text(rank):
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    rank.recorder.record_samples(
        GeneratedBatch([conversation], [[{"role": "assistant", "content": "So."}]])
    )

    assert rank.records()[0].attributes == {"prompt": "Be brief.\nWhy?", "completion": "So."}


@pytest.mark.fault("X16")
def test_long_texts_are_cut_and_their_length_is_recorded(rank):
    text = "x" * HEAD_CHARS + "\x1b" * 10_000_000 + "y" * TAIL_CHARS
    rank.recorder.record_samples(GeneratedBatch(["p" * 10_000_000], [text]))

    (record,) = rank.records()
    assert record.values["length"] == len(text)
    assert record.values["prompt_length"] == 10_000_000
    assert record.attributes["completion"].startswith("x" * HEAD_CHARS + " […10,000,000 characters")
    assert record.attributes["completion"].endswith("y" * TAIL_CHARS)
    assert len(record.attributes["prompt"]) < PROMPT_CHARS + 50


@pytest.mark.parametrize(
    "text",
    [
        "\ud83d",
        "\udc00\ud800",
        "nul \x00 nul",
        "\x1b]0;title\x07\x1b[2J",
        "\u202e\u2066",
        "\U0010ffff",
    ],
)
def test_unusual_characters_are_preserved(rank, text):
    rank.recorder.record_samples(GeneratedBatch([text], [text]))

    assert rank.records()[0].attributes == {"prompt": text, "completion": text}


@pytest.mark.parametrize("letter", ["x", "\x01", "好", "\U0001f600"])
@pytest.mark.parametrize("max_samples", [1, 8, 64])
def test_a_small_ring_stores_shorter_texts_and_loses_none(tmp_path, letter, max_samples):
    ring = RingWriter(tmp_path / "0-0.ring", Identity("run"), 64 << 10)
    recorder = Recorder(ring, ErrorGuard(ring.count_error), lambda: None)
    recorder.record_samples(
        GeneratedBatch([letter * 9000] * 64, [letter * 9000] * 64), 1, max_samples
    )

    batch = RingReader(tmp_path / "0-0.ring").read(RingCursor())
    decoder = RecordDecoder("run", 0, 0)
    assert (len(batch.payloads), batch.lost_frames, batch.corrupt_frames) == (max_samples, 0, 0)
    assert all(decoder.decode(payload).values["length"] == 9000 for payload in batch.payloads)


def test_log_samples_sends_at_most_samples_texts(recorded):
    texts = [f"t{n}" for n in range(100)]
    with sentinel.monitor(run="limited", agent=False, strict=True, samples=3):
        sentinel.log_samples(texts, texts, step=7)
    with sentinel.monitor(run="default", agent=False, strict=True):
        sentinel.log_samples(texts, texts, rewards=[1.0] * 100, finished=[True] * 100)

    samples = [record for record in recorded()[0] if record.event is Event.SAMPLE]
    assert [r.attributes["completion"] for r in samples if r.run.startswith("limited")] == [
        "t0",
        "t49",
        "t99",
    ]
    assert len([r for r in samples if r.run.startswith("default")]) == DEFAULT_SAMPLES_PER_CALL


@pytest.mark.fault("X16")
def test_no_text_is_sent_by_default(recorded):
    """Sampling must be enabled."""
    with sentinel.monitor(run="quiet", agent=False, strict=True):
        sentinel.log({"loss": 1.0}, step=1)

    assert Event.SAMPLE not in [record.event for record in recorded()[0]]


def test_outside_a_run_log_samples_does_nothing(recorded):
    sentinel.log_samples(["p"], ["c"])
    assert recorded() == {}


@pytest.mark.parametrize("value", [-1, 65, 1.0, "8", True, None])
def test_an_invalid_number_of_samples_is_rejected(value):
    with pytest.raises(sentinel.SettingsError, match="samples"):
        sentinel.monitor(samples=value)
