"""Sample files: texts as TRL and verl write them, read once they are whole."""

from __future__ import annotations

import json
import os
import sys

import pytest

from sentinel.record import Event
from sentinel.sources.sample_rows import SampleFileError, samples
from sentinel.sources.samples import LOOK_SECONDS, PER_FILE, SampleFiles
from sentinel.stats.text_cut import HEAD, TAIL
from sentinel.tally import Tally

UNREADABLE = ("sentinel_dropped_records_total", "samples_unreadable")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


class Watch:
    """A watched folder, and the clock it is watched by."""

    def __init__(self, folder, known=()):
        self.now, self.tally = 1000.0, Tally()
        self.files = SampleFiles("run", folder, self.tally, dict(known), lambda: self.now)
        self.poll()

    def poll(self, attempt=0):
        """What a look at the folder brings, file by file until there is no other."""
        self.now += LOOK_SECONDS
        found = []
        while more := self.files.poll(attempt):
            found += more
        return found

    def settled(self):
        return [*self.poll(), *self.poll()]

    @property
    def unreadable(self):
        return self.tally.counts[UNREADABLE]


def verl(folder, step, size=2, **more):
    """A file as `trainer.rollout_data_dir` fills it."""
    rows = [
        {"input": f"q{n}", "output": f"a{n}", "gts": 7, "score": n / 2, "step": step, **more}
        for n in range(size)
    ]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    (folder / f"{step}.jsonl").write_text(lines, encoding="utf-8")


def trl(folder, step, **columns):
    """A file as `log_completions=True` writes it."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    size = len(next(iter(columns.values())))
    table = {"step": [step] * size, **columns}
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pandas.DataFrame(table).to_parquet(path)
    return path


def test_what_verl_writes_is_read(folder):
    watch = Watch(folder)
    verl(folder, 12, acc=True, pred="so", extra=[1])

    first, second = watch.settled()

    assert (first.event, first.step, first.rank) == (Event.SAMPLE, 12, 0)
    assert second.facts == {"prompt": "q1", "completion": "a1"}
    assert second.values == {
        "prompt_length": 2.0,
        "length": 2.0,
        "reward": 0.5,
        "reward/acc": 1.0,
    }


def test_what_trl_writes_is_read(folder):
    watch = Watch(folder)
    trl(
        folder,
        7,
        prompt=["q0", "q1"],
        completion=["a0", "a1"],
        right=[1.0, None],
        advantage=[0.5, -0.5],
        solution=["x", "y"],
    )

    first, second = watch.settled()

    assert (first.step, first.facts) == (7, {"prompt": "q0", "completion": "a0"})
    assert first.values == {
        "prompt_length": 2.0,
        "length": 2.0,
        "reward/right": 1.0,
        "advantage": 0.5,
    }
    assert second.values == {"prompt_length": 2.0, "length": 2.0, "advantage": -0.5}


def test_conversations_of_newer_trl_are_their_words(folder):
    watch = Watch(folder)
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    trl(folder, 1, prompt=[asked], completion=[[{"role": "assistant", "content": "So."}]])

    (record,) = watch.settled()

    assert record.facts == {"prompt": "Be brief.\nWhy?", "completion": "So."}


def test_of_a_large_table_few_rows_are_taken_the_best_and_the_worst_among_them(folder):
    watch = Watch(folder)
    rewards = [0.0] * 1000
    rewards[501], rewards[777] = 5.0, -5.0
    trl(folder, 1, prompt=["q"] * 1000, completion=[f"a{n}" for n in range(1000)], right=rewards)

    texts = [record.facts["completion"] for record in watch.settled()]

    assert {"a0", "a501", "a777", "a999"} <= set(texts)
    assert PER_FILE - 2 <= len(texts) <= PER_FILE


def test_of_a_small_file_the_best_and_the_worst_are_taken(folder):
    scores = [0, 0, 0, 9, 0, -9, 0, 0, 0, 0, 0, 0]
    rows = [json.dumps({"output": f"a{n}", "score": score}) for n, score in enumerate(scores)]
    (folder / "1.jsonl").write_text("\n".join(rows) + "\n")

    found = [sample.told[1]["completion"] for sample in samples(folder / "1.jsonl", 4)]

    assert found == ["a0", "a3", "a5", "a11"]


def test_of_many_lines_few_are_read_from_all_over_the_file(folder):
    verl(folder, 1, size=10_000, padding="x" * 500)

    found = [sample.told[1]["completion"] for sample in samples(folder / "1.jsonl", 20)]
    places = [int(text[1:]) for text in found]

    assert len(places) == 20
    assert places == sorted(set(places))
    assert places[0] == 0
    assert places[-1] > 9000


def test_a_long_text_is_cut(folder):
    watch = Watch(folder)
    verl(folder, 1, size=1, output="x" * 50_000)

    (record,) = watch.settled()

    assert record.values["length"] == 50_000
    assert len(record.facts["completion"]) < HEAD + TAIL + 50


def test_a_file_is_read_once_and_again_only_if_it_is_written_anew(folder):
    watch = Watch(folder)
    verl(folder, 1)
    assert len(watch.settled()) == 2
    assert watch.settled() == []

    verl(folder, 1, size=3)
    assert len(watch.settled()) == 3


def test_a_file_is_left_until_it_has_stopped_growing(folder):
    watch = Watch(folder)
    verl(folder, 1)
    assert watch.poll() == []
    verl(folder, 1, size=5)
    assert watch.poll() == []

    assert len(watch.poll()) == 5


def test_half_a_file_is_read_when_it_is_whole(folder):
    watch = Watch(folder)
    verl(folder, 1, size=4)
    whole = (folder / "1.jsonl").read_bytes()
    (folder / "1.jsonl").write_bytes(whole[:-10])
    assert watch.settled() == []
    assert watch.unreadable == 1

    (folder / "1.jsonl").write_bytes(whole)
    assert len(watch.settled()) == 4


def test_half_a_table_is_read_when_it_is_whole(folder):
    watch = Watch(folder)
    path = trl(folder, 1, prompt=["q"], completion=["a"])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert watch.settled() == []
    assert watch.unreadable == 1

    path.write_bytes(whole)
    assert len(watch.settled()) == 1


def test_what_is_there_before_the_run_is_another_runs(folder):
    verl(folder, 1)
    watch = Watch(folder)
    verl(folder, 2)

    assert {record.step for record in watch.settled()} == {2}


def test_an_agent_that_takes_over_reads_only_what_the_first_did_not(folder):
    first = Watch(folder)
    verl(folder, 1)
    first.settled()
    verl(folder, 2)
    second = Watch(folder, known=first.files.taken())

    assert {record.step for record in second.settled()} == {2}


def test_marks_are_handed_out_once(folder):
    watch = Watch(folder)
    verl(folder, 1)
    watch.settled()

    assert [os.path.basename(path) for path in watch.files.taken()] == ["1.jsonl"]  # noqa: PTH119
    assert watch.files.taken() == {}


def test_files_are_told_in_the_order_of_their_steps_and_with_the_attempt(folder):
    watch = Watch(folder)
    for step in (10, 9, 100):
        verl(folder, step, size=1)
    watch.poll(attempt=3)

    assert [(r.step, r.attempt) for r in watch.poll(attempt=3)] == [(9, 3), (10, 3), (100, 3)]


HOSTILE = {
    "not json": "so it goes\n",
    "no object": "[1, 2]\n",
    "nested deeply": "[" * 100_000 + "\n",
    "no text": '{"input": 1, "output": 2}\n',
    "null": '{"input": null, "output": null}\n',
    "nothing but ends of lines": "\n\n\n\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_lines_that_hold_no_text_bring_none(folder, kind):
    watch = Watch(folder)
    (folder / "1.jsonl").write_text(HOSTILE[kind])

    assert watch.settled() == []


def test_odd_rows_cost_only_themselves(folder):
    watch = Watch(folder)
    rows = [
        '{"output": "half a character: \\ud83d", "score": NaN}',
        "junk",
        '{"output": "far", "score": 1' + "0" * 400 + ', "step": "7"}',
        '{"prompt": "p", "response": "other names", "score": true, "step": 3}',
    ]
    (folder / "5.jsonl").write_text("\n".join(rows) + "\n")

    found = watch.settled()

    assert [record.facts["completion"][:5] for record in found] == ["half ", "far", "other"]
    assert [record.step for record in found] == [5, 5, 3]
    assert [record.values.get("reward") for record in found] == [None, None, 1.0]


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" * 1000, b"x" * 5000])
def test_what_only_calls_itself_a_table_is_counted(folder, content):
    pytest.importorskip("pyarrow")
    watch = Watch(folder)
    (folder / "completions_00001.parquet").write_bytes(content)

    assert watch.settled() == []
    assert watch.unreadable == 1


def test_a_table_without_texts_brings_none(folder):
    watch = Watch(folder)
    trl(folder, 1, loss=[1.0, 2.0])
    assert watch.settled() == []


def test_without_pyarrow_the_remedy_is_told_once(folder, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    watch = Watch(folder)
    for step in range(3):
        (folder / f"completions_{step}.parquet").write_bytes(b"PAR1")
        watch.settled()

    assert watch.unreadable == 3
    (told,) = (record.message for record in caplog.records)
    assert f"{folder}/completions_0.parquet" in told
    assert "pip install 'train-sentinel[samples]'" in told


def test_other_files_are_not_touched(folder):
    watch = Watch(folder)
    for name in ("train.jsonl", "1.txt", "1.jsonl.tmp", "completions_a.parquet", "-1.jsonl"):
        (folder / name).write_text('{"output": "x"}\n')
    (folder / "2.jsonl").mkdir()
    (folder / "3.jsonl").touch()

    assert watch.settled() == []
    assert watch.unreadable == 0


def test_a_folder_that_does_not_exist_yet_is_waited_for(tmp_path):
    watch = Watch(tmp_path / "later")
    assert watch.settled() == []
    (tmp_path / "later").mkdir()
    verl(tmp_path / "later", 1)

    assert len(watch.settled()) == 2


def test_a_file_that_goes_away_is_no_trouble(folder):
    watch = Watch(folder)
    verl(folder, 1)
    watch.poll()
    watch.files._looked = watch.now = watch.now + LOOK_SECONDS
    watch.files._look()
    (folder / "1.jsonl").unlink()

    assert watch.files.poll(0) == []
    assert watch.unreadable == 1


def test_a_file_without_a_last_end_of_line_is_not_whole(folder):
    (folder / "1.jsonl").write_text('{"output": "x"}')
    with pytest.raises(SampleFileError, match="whole line"):
        list(samples(folder / "1.jsonl", 8))
