"""Prompts, completions and rewards in the files of TRL and verl."""

from __future__ import annotations

import json
import sys

import pytest
from support.sample_files import FolderReader, trl, verl

from sentinel.model.record import Event
from sentinel.model.sample_text import HEAD_CHARS, TAIL_CHARS
from sentinel.readers.sample_files import SAMPLES_PER_FILE
from sentinel.readers.sample_rows import SampleFileError, read_samples


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_files_of_verl_are_read(folder):
    folder_reader = FolderReader(folder)
    verl(folder, 12, acc=True, pred="so", extra=[1])

    first, second = folder_reader.settled()

    assert (first.event, first.step, first.rank) == (Event.SAMPLE, 12, 0)
    assert second.attributes == {"prompt": "q1", "completion": "a1"}
    assert second.values == {
        "prompt_length": 2.0,
        "length": 2.0,
        "reward": 0.5,
        "reward/acc": 1.0,
    }


def test_files_of_trl_are_read(folder):
    folder_reader = FolderReader(folder)
    trl(
        folder,
        7,
        prompt=["q0", "q1"],
        completion=["a0", "a1"],
        right=[1.0, None],
        advantage=[0.5, -0.5],
        solution=["x", "y"],
    )

    first, second = folder_reader.settled()

    assert (first.step, first.attributes) == (7, {"prompt": "q0", "completion": "a0"})
    assert first.values == {
        "prompt_length": 2.0,
        "length": 2.0,
        "reward/right": 1.0,
        "advantage": 0.5,
    }
    assert second.values == {"prompt_length": 2.0, "length": 2.0, "advantage": -0.5}


def test_conversations_are_converted_to_text(folder):
    folder_reader = FolderReader(folder)
    wanted = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    trl(folder, 1, prompt=[wanted], completion=[[{"role": "assistant", "content": "So."}]])

    (record,) = folder_reader.settled()

    assert record.attributes == {"prompt": "Be brief.\nWhy?", "completion": "So."}


def test_a_large_table_is_sampled_with_best_and_worst_reward(folder):
    folder_reader = FolderReader(folder)
    rewards = [0.0] * 1000
    rewards[501], rewards[777] = 5.0, -5.0
    trl(folder, 1, prompt=["q"] * 1000, completion=[f"a{n}" for n in range(1000)], right=rewards)

    texts = [record.attributes["completion"] for record in folder_reader.settled()]

    assert {"a0", "a501", "a777", "a999"} <= set(texts)
    assert SAMPLES_PER_FILE - 2 <= len(texts) <= SAMPLES_PER_FILE


def test_a_small_file_is_sampled_with_best_and_worst_reward(folder):
    scores = [0, 0, 0, 9, 0, -9, 0, 0, 0, 0, 0, 0]
    rows = [json.dumps({"output": f"a{n}", "score": score}) for n, score in enumerate(scores)]
    (folder / "1.jsonl").write_text("\n".join(rows) + "\n")

    records = [sample.content[1]["completion"] for sample in read_samples(folder / "1.jsonl", 4)]

    assert records == ["a0", "a3", "a5", "a11"]


def test_a_large_file_is_sampled_at_spaced_offsets(folder):
    verl(folder, 1, size=10_000, padding="x" * 500)

    records = [sample.content[1]["completion"] for sample in read_samples(folder / "1.jsonl", 20)]
    places = [int(text[1:]) for text in records]

    assert len(places) == 20
    assert places == sorted(set(places))
    assert places[0] == 0
    assert places[-1] > 9000


def test_a_long_text_is_truncated(folder):
    folder_reader = FolderReader(folder)
    verl(folder, 1, size=1, output="x" * 50_000)

    (record,) = folder_reader.settled()

    assert record.values["length"] == 50_000
    assert len(record.attributes["completion"]) < HEAD_CHARS + TAIL_CHARS + 50


HOSTILE = {
    "not json": "so it goes\n",
    "no object": "[1, 2]\n",
    "nested deeply": "[" * 100_000 + "\n",
    "no text": '{"input": 1, "output": 2}\n',
    "null": '{"input": null, "output": null}\n',
    "nothing but ends of lines": "\n\n\n\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_lines_without_a_completion_are_ignored(folder, kind):
    folder_reader = FolderReader(folder)
    (folder / "1.jsonl").write_text(HOSTILE[kind])

    assert folder_reader.settled() == []


def test_an_invalid_row_costs_only_itself(folder):
    folder_reader = FolderReader(folder)
    rows = [
        '{"output": "half a character: \\ud83d", "score": NaN}',
        "junk",
        '{"output": "far", "score": 1' + "0" * 400 + ', "step": "7"}',
        '{"prompt": "p", "response": "other names", "score": true, "step": 3}',
        '{"output": "beyond", "step": 1' + "0" * 30 + "}",
    ]
    (folder / "5.jsonl").write_text("\n".join(rows) + "\n")

    records = folder_reader.settled()

    assert [record.attributes["completion"][:5] for record in records] == [
        "half ",
        "far",
        "other",
        "beyon",
    ]
    assert [record.step for record in records] == [5, 5, 3, 5]
    assert [record.values.get("reward") for record in records] == [None, None, 1.0, None]


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" * 1000, b"x" * 5000])
def test_a_file_that_is_not_a_table_is_counted(folder, content):
    pytest.importorskip("pyarrow")
    folder_reader = FolderReader(folder)
    (folder / "completions_00001.parquet").write_bytes(content)

    assert folder_reader.settled() == []
    assert folder_reader.unreadable == 1


def test_a_table_without_texts_has_no_samples(folder):
    folder_reader = FolderReader(folder)
    trl(folder, 1, loss=[1.0, 2.0])
    assert folder_reader.settled() == []


def test_without_pyarrow_the_remedy_is_logged_once(folder, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder_reader = FolderReader(folder)
    for step in range(3):
        (folder / f"completions_{step}.parquet").write_bytes(b"PAR1")
        folder_reader.settled()

    assert folder_reader.unreadable == 3
    (message,) = (record.message for record in caplog.records)
    assert f"{folder}/completions_0.parquet" in message
    assert "pip install 'train-sentinel[samples]'" in message


def test_a_file_without_a_final_newline_is_incomplete(folder):
    (folder / "1.jsonl").write_text('{"output": "x"}')
    with pytest.raises(SampleFileError, match="complete line"):
        list(read_samples(folder / "1.jsonl", 8))
