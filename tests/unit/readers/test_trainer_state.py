"""The trainer state of transformers, as one file or a directory of checkpoints."""

import json
import subprocess
import sys

import pytest

from sentinel.model.record import Event
from sentinel.readers import trainer_state

HISTORY = [
    {"step": 10, "epoch": 0.1, "loss": 2.0, "learning_rate": 1e-5},
    {"step": 20, "epoch": 0.2, "loss": 1.0, "learning_rate": 1e-5},
    {"step": 20, "epoch": 0.2, "eval_loss": 1.5},
]


def state(history=HISTORY, **changes):
    top = {"global_step": 20, "max_steps": 100, "save_steps": 10, "num_train_epochs": 1}
    return json.dumps({**top, "log_history": history, **changes})


def records(path):
    reader = trainer_state.read(path)
    return list(reader), reader.skipped


@pytest.fixture
def file(tmp_path):
    def written(text):
        path = tmp_path / "trainer_state.json"
        path.write_text(text)
        return path

    return written


@pytest.fixture
def folder(tmp_path):
    def written(*saved, **changes):
        for step in saved:
            (tmp_path / f"checkpoint-{step}").mkdir()
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state(**changes))
        return tmp_path

    return written


def test_the_configuration_precedes_the_history(file):
    (start, *result), skipped = records(file(state()))

    assert start.values == {"max_steps": 100.0, "num_train_epochs": 1.0}
    assert start.attributes["framework"] == "transformers"
    assert [r.event for r in result] == [Event.STEP, Event.STEP, Event.EVAL]
    assert [r.values["loss"] for r in result[:2]] == [2.0, 1.0]
    assert skipped == 0


def test_a_duplicate_row_is_yielded_once(file):
    result, _ = records(file(state([HISTORY[0], HISTORY[2], HISTORY[2], HISTORY[1], HISTORY[1]])))

    assert len(result) == 4


def test_an_invalid_row_is_counted(file):
    result, skipped = records(file(state([HISTORY[0], None, "x", {}, HISTORY[1]])))

    assert (len(result), skipped) == (3, 3)


def test_a_fractional_save_steps_becomes_steps(folder):
    (start, *_), _ = records(folder(25, 60, save_steps=0.25))

    assert start.values["save_steps"] == 25.0


def test_checkpoints_in_a_directory_are_saves_in_order(folder):
    result, _ = records(folder(10, 30))

    assert [(r.event, r.step) for r in result] == [
        (Event.START, 0),
        (Event.STEP, 10),
        (Event.SAVE, 10),
        (Event.STEP, 20),
        (Event.EVAL, 20),
        (Event.SAVE, 30),
    ]


def test_the_newest_checkpoint_by_number_is_read(folder, tmp_path):
    folder(900, 1000)
    newest = tmp_path / "checkpoint-1000" / "trainer_state.json"
    newest.write_text(state([{"step": 1000, "loss": 0.5}]))

    assert [r.values["loss"] for r in records(tmp_path)[0] if r.event is Event.STEP] == [0.5]


@pytest.mark.parametrize("place", ["checkpoint-20", "."])
def test_a_file_has_the_saves_of_the_folders_beside_it(folder, tmp_path, place):
    """Checkpoints that are later than the state belong to rows that it does not hold."""
    folder(10, 20, 30)
    (tmp_path / "trainer_state.json").write_text(state())

    result, _ = records(tmp_path / place / "trainer_state.json")

    assert [r.step for r in result if r.event is Event.SAVE] == [10, 20]


@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_the_save_interval_counts_only_beside_checkpoints(folder, file, has_checkpoints):
    """A file that was copied elsewhere has no checkpoints that could be overdue."""
    path = folder(10, 20) if has_checkpoints else file(state())

    (start, *_), _ = records(path)

    assert ("save_steps" in start.values) is has_checkpoints


def test_saving_by_epoch_drops_save_steps(folder):
    """The state holds the default save_steps of 500 even if saving is by epochs."""
    result, _ = records(folder(4, 8, 12, save_steps=500, max_steps=12, num_train_epochs=3))

    assert "save_steps" not in result[0].values


@pytest.mark.parametrize("text", ["{}", '{"log_history": 3}', "[]", "no json", "[" * 100_000])
def test_an_invalid_file_raises_a_value_error(file, text):
    path = file(text)

    with pytest.raises(ValueError, match=r"."):
        records(path)


def test_a_directory_without_a_state_is_refused(tmp_path):
    assert not trainer_state.can_read(tmp_path, b"")
    with pytest.raises(FileNotFoundError, match="holds no trainer_state"):
        records(tmp_path)


def test_it_is_detected_by_name_and_by_content(tmp_path, folder):
    assert trainer_state.can_read(tmp_path / "trainer_state.json", b"")
    assert trainer_state.can_read(tmp_path / "copy.json", state().encode()[:4096])
    assert not trainer_state.can_read(tmp_path / "log.jsonl", b'{"step": 1}')
    assert trainer_state.can_read(folder(10), b"")


def following(path):
    """The records of a state that is followed, each time as far as there are any."""
    reader = trainer_state.read(path)
    records = reader.follow()

    def new():
        found = []
        while (record := next(records)) is not None:
            found.append((record.attempt, record.event.value, record.step))
        return found, reader.position

    return new


def test_a_followed_state_yields_what_was_added(file):
    new = following(file(state(HISTORY[:1])))
    assert new() == ([(0, "start", 0), (0, "step", 10)], 2)

    file(state(HISTORY[:2], epoch=2))
    assert new() == ([(0, "step", 20)], 3)
    file(state(HISTORY, epoch=3))
    assert new() == ([(0, "eval", 20)], 4)
    assert new() == ([], 4)


def test_a_state_that_is_being_written_is_read_once_it_is_complete(file):
    new = following(file(state(HISTORY[:1])))
    new()
    text = state(HISTORY)
    file(text[: len(text) // 2])
    assert new() == ([], 2)

    file(text)
    assert new() == ([(0, "step", 20), (0, "eval", 20)], 4)


@pytest.mark.parametrize("history", [HISTORY[:1], [HISTORY[0], HISTORY[2], HISTORY[2]]])
def test_a_history_that_is_another_one_is_the_next_attempt(file, history):
    new = following(file(state(HISTORY)))
    new()
    file(state(history, epoch=4))
    found, _ = new()

    assert found[:2] == [(1, "start", 0), (1, "step", 10)]


def test_checkpoints_are_yielded_once_although_they_disappear(folder):
    root = folder(10)
    new = following(root)
    assert (0, "save", 10) in new()[0]
    (root / "checkpoint-10").rename(root / "checkpoint-20")
    (root / "checkpoint-20" / "trainer_state.json").write_text(state(epoch=5))
    assert new()[0] == [(0, "save", 20)]
    (root / "checkpoint-20").rename(root / "checkpoint-10")
    assert new()[0] == []


@pytest.mark.fault("X12")
def test_the_last_of_several_histories_is_read(file):
    text = state(HISTORY[:1])
    again = text[:-1] + ', "log_history": ' + json.dumps(HISTORY[1:]) + "}"
    (_, *result), _ = records(file(again))

    assert [record.step for record in result] == [20, 20]


READ_SCRIPT = """
import re, sys
from pathlib import Path
from sentinel.readers import trainer_state
count = sum(1 for _ in trainer_state.read(Path(sys.argv[1])))
# The maximum of getrusage includes that of the parent before the program was executed.
status = Path("/proc/self/status").read_text()
print(count, int(re.search(r"VmHWM:\\s*(\\d+)", status)[1]) // 1024)
"""


@pytest.mark.fault("X12")
def test_a_large_state_takes_no_memory(file):
    """A file of 96 MiB; json.loads alone would take more than twice its size."""
    row = json.dumps({"step": 10, "loss": 1.0, "text": "x" * 100_000})
    path = file("")
    with path.open("w") as large:
        large.write('{"log_history": [' + row)
        for step in range(1, 1000):
            large.write("," + row.replace("10,", f"{10 + step},", 1))
        large.write('], "max_steps": 1000}')
    command = [sys.executable, "-c", READ_SCRIPT, str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    count, megabytes = map(int, output.split())

    assert path.stat().st_size > 90 << 20
    assert count == 1001
    assert megabytes < 100
