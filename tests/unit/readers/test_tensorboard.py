"""Event files of TensorBoard's own writer: complete, cut at any byte, and damaged."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from math import inf, isnan, nan

import pytest
from support.event_files import VERSION, event, event_file, field, framed, varint

from sentinel.model.record import WHOLE_RUN, Event
from sentinel.readers import tensorboard
from sentinel.readers._crc32c_arrays import find_record_header, masked_crc32c_batch
from sentinel.readers.crc32c import masked_crc32c
from sentinel.readers.format_detection import open_log

STEP, START = Event.STEP, Event.START


def steps(records):
    return [(r.step, dict(r.values)) for r in records if r.event is STEP]


@pytest.fixture
def clock():
    """A clock set by the test, in seconds since the epoch."""
    return [1.8e9]


@pytest.fixture
def written(tmp_path):
    """A file of TensorBoard's own writer: 3 tags over 40 steps, one of them as a tensor."""
    pytest.importorskip("tensorboard")
    writing = pytest.importorskip("torch.utils.tensorboard")
    with writing.SummaryWriter(str(tmp_path / "runs")) as writer:
        for step in range(40):
            writer.add_scalar("train/loss", 3.0 / (step + 1), step)
            writer.add_scalar("train/grad_norm", nan if step == 7 else step + 0.5, step)
            writer.add_scalar("train/reward", step / 8, step, new_style=True)
        writer.add_text("args", "{}", 0)
    (path,) = (tmp_path / "runs").iterdir()
    return path


def test_the_checksum_matches_the_standard():
    raw = masked_crc32c(b"123456789") - 0xA282EAD8 & 0xFFFFFFFF
    assert (raw << 15 | raw >> 17) & 0xFFFFFFFF == 0xE3069283


def test_batch_checksums_equal_single_checksums():
    pieces = [bytes(range(n, n + n % 7)) for n in range(60)]
    assert masked_crc32c_batch(pieces) == [masked_crc32c(piece) for piece in pieces]


def test_a_record_header_is_found_among_other_bytes():
    assert find_record_header(b"\x07" * 33 + VERSION) == 33
    assert find_record_header(b"\x07" * 33) == find_record_header(b"") == -1


def test_it_reads_the_same_as_tensorboards_own_reader(written):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    oracle = EventAccumulator(str(written), size_guidance={"tensors": 0})
    oracle.Reload()
    records = steps(tensorboard.read(written))
    assert len(records) == 40
    for tag, name in (("train/loss", "loss"), ("train/grad_norm", "grad_norm")):
        expected = [(e.step, pytest.approx(e.value, nan_ok=True)) for e in oracle.Scalars(tag)]
        assert [(step, values[name]) for step, values in records] == expected
    tensors = [(e.step, make_ndarray(e.tensor_proto)) for e in oracle.Tensors("train/reward")]
    assert [(step, values["reward"]) for step, values in records] == tensors


def test_the_file_its_directory_and_the_parent_are_detected(written):
    head = written.read_bytes()[:4096]
    renamed = written.rename(written.parent / "log")
    assert tensorboard.can_read(renamed, head)
    assert not tensorboard.can_read(renamed, b'{"step": 1}' + b" " * 4000)
    renamed.rename(written)
    assert tensorboard.can_read(written.parent, b"")
    assert tensorboard.can_read(written.parent.parent, b"")


def test_a_file_cut_at_any_byte_yields_complete_rows_and_continues(tmp_path):
    payloads = [event(s, tag, s + 0.5) for s in range(3) for tag in ("loss", "entropy")]
    whole = VERSION + b"".join(map(framed, payloads))
    path = tmp_path / "events.out.tfevents.1"
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        reader = tensorboard.read(path)
        following = reader.follow()
        first = _drain(following)
        assert reader.skipped == 0
        path.write_bytes(whole)
        rest = _drain(following)
        rows = steps(first + rest)
        assert [(s, v["loss"], v["entropy"]) for s, v in rows] == [(0, 0.5, 0.5), (1, 1.5, 1.5)]
        assert reader.skipped == 0


def test_the_last_row_is_yielded_after_a_pause(tmp_path, clock):
    path = event_file(tmp_path / "run", event(1, "loss", 2.0))
    os.utime(path, (clock[0], clock[0]))
    reader = replace(tensorboard.read(path), clock=lambda: clock[0])
    following = reader.follow()
    assert _drain(following) == []
    clock[0] += tensorboard.MAX_ROW_GAP_SECONDS
    assert [r.event for r in _drain(following)] == [START, STEP]
    assert reader.position == 1
    assert _drain(following) == []


def test_the_last_row_of_a_file_that_was_not_written_for_a_while_is_yielded_at_once(
    tmp_path, clock
):
    path = event_file(tmp_path / "run", event(1, "loss", 2.0), event(2, "loss", 2.0))
    written = clock[0] - tensorboard.MAX_ROW_GAP_SECONDS
    os.utime(path, (written, written))
    reader = replace(tensorboard.read(path), clock=lambda: clock[0])
    following = reader.follow()
    assert [r.event for r in _drain(following)] == [START, STEP, STEP]
    # What is appended then waits.
    with path.open("ab") as file:
        file.write(framed(event(3, "loss", 2.0)))
    assert _drain(following) == []


@pytest.mark.parametrize("at", [0, 5, 9, 13, 20, 40])
def test_a_damaged_record_costs_only_itself(tmp_path, at):
    payloads = [event(s, "loss", s + 0.5) for s in range(1, 6)]
    path = event_file(tmp_path / "run", *payloads)
    data = bytearray(path.read_bytes())
    size = len(framed(payloads[0]))
    data[len(VERSION) + 2 * size + at] ^= 0x40
    path.write_bytes(data)
    reader = tensorboard.read(path)
    assert [step for step, _ in steps(reader)] == [1, 2, 4, 5]
    assert reader.skipped == 1


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 2**24 + 1])
def test_a_record_with_an_invalid_length_is_skipped(tmp_path, length):
    head = struct.pack("<Q", length)
    path = event_file(tmp_path / "run", event(1, "loss", 1.0))
    with path.open("ab") as file:
        file.write(head + struct.pack("<I", masked_crc32c(head)) + b"abc")
        file.write(framed(event(2, "loss", 1.0)))
    reader = tensorboard.read(path)
    assert [step for step, _ in steps(reader)] == [1, 2]
    assert reader.skipped == 1


def test_invalid_events_are_counted_and_events_without_numbers_are_not(tmp_path):
    histogram = b"\x09" + struct.pack("<d", 1.7e9) + field(5, field(1, field(1, b"w")))
    deep = field(5, b"")
    for _ in range(2000):
        deep = field(5, field(1, deep))
    path = event_file(
        tmp_path / "run", b"\xff" * 30, histogram, deep, b"", event(4, "loss", inf), b"\x09short"
    )
    reader = tensorboard.read(path)
    assert steps(reader) == [(4, {"loss": inf, "global_step": 4.0, "step": 4.0, "time": 1.7e9})]
    assert reader.skipped == 2


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (varint(8) + varint(1) + field(5, struct.pack("<f", 2.5)), 2.5),
        (varint(8) + varint(1) + field(4, struct.pack("<f", 2.5)), 2.5),
        (varint(8) + varint(2) + field(4, struct.pack("<d", 2.5)), 2.5),
        (varint(8) + varint(9) + field(10, varint(-3)), -3.0),
        (varint(8) + varint(3) + varint(7 << 3) + varint(-3), -3.0),
        (varint(8) + varint(14) + field(13, varint(0x4020)), 2.5),
        (varint(8) + varint(19) + field(13, varint(0x4100)), 2.5),
        (varint(8) + varint(1) + field(2, field(2, b"\x08\x02")) + field(4, b"\0" * 8), None),
        (varint(8) + varint(7) + field(8, b"words"), None),
    ],
)
def test_a_tensor_without_dimensions_is_a_number(tmp_path, tensor, value):
    summary_value = field(1, b"loss") + field(8, tensor)
    payload = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x05" + field(5, field(1, summary_value))
    records = steps(tensorboard.read(event_file(tmp_path / "run", payload)))
    assert [values["loss"] for _, values in records] == ([] if value is None else [value])


def test_a_new_file_with_earlier_steps_is_a_new_attempt(tmp_path):
    folder = tmp_path / "run"
    event_file(folder, *(event(s, "loss", 1.0, 1.7e9 + s) for s in range(10)), name="tfevents.9")
    event_file(
        folder, *(event(s, "loss", 1.0, 1.7e9 + 50 + s) for s in range(6, 20)), name="tfevents.10"
    )
    records = list(tensorboard.read(folder))
    assert [(r.step, r.attempt) for r in records if r.event is START] == [(0, 0), (6, 1)]
    assert [r.step for r in records if r.event is STEP] == [*range(10), *range(6, 20)]
    assert {r.attempt for r in records if r.step > 10} == {1}
    assert {(r.run, r.rank) for r in records} == {("run", WHOLE_RUN)}


def test_two_files_written_side_by_side_are_one_attempt(tmp_path):
    folder = tmp_path / "run"
    event_file(folder, *(event(s, "loss", 1.0, 1.7e9 + s) for s in range(9)), name="tfevents.1")
    event_file(
        folder, *(event(s, "eval/loss", 2.0, 1.7e9 + s + 0.5) for s in (3, 6)), name="tfevents.2"
    )
    records = list(tensorboard.read(folder))
    assert [r.step for r in records if r.event is Event.EVAL] == [3, 6]
    assert [r.time for r in records] == sorted(r.time for r in records)
    assert len([r for r in records if r.event is START]) == 1


def test_a_file_that_appears_later_is_followed(tmp_path):
    folder = tmp_path / "run"
    event_file(folder, event(1, "loss", 1.0), event(2, "loss", 1.0))
    following = tensorboard.read(folder).follow()
    assert [r.step for r in _drain(following)] == [1, 1]
    event_file(folder, *(event(s, "loss", nan, 1.8e9) for s in (1, 2)), name="tfevents.2")
    records = _drain(following)
    assert [(r.event, r.step, r.attempt) for r in records] == [(START, 1, 1), (STEP, 1, 1)]
    assert isnan(records[1].values["loss"])


def test_preallocated_zeros_are_not_damage(tmp_path):
    path = event_file(tmp_path / "run", event(1, "loss", 1.0))
    with path.open("ab") as file:
        file.write(bytes(5000))
    reader = tensorboard.read(path)
    assert [step for step, _ in steps(reader)] == [1]
    assert reader.skipped == 0


def _drain(following):
    found = []
    while (record := next(following)) is not None:
        found.append(record)
    return found


@pytest.fixture
def writing():
    pytest.importorskip("tensorboard")
    return pytest.importorskip("torch.utils.tensorboard")


def test_curves_of_add_scalars_are_parts_of_the_run(tmp_path, writing):
    with writing.SummaryWriter(str(tmp_path / "run")) as writer:
        for step in range(1, 5):
            writer.add_scalar("train/reward", step / 8, step)
            writer.add_scalars("loss", {"train": 2.0 / step, "eval": 3.0 / step}, step)
    records = list(tensorboard.read(tmp_path / "run"))
    losses = [(r.step, r.values["loss"]) for r in records if r.event is STEP and "loss" in r.values]
    assert losses == [(step, pytest.approx(2.0 / step)) for step in range(1, 5)]
    assert [r.step for r in records if r.event is Event.EVAL] == [1, 2, 3, 4]
    assert [r.values["reward"] for r in records if "reward" in r.values] == [
        s / 8 for s in range(1, 5)
    ]
    assert {r.attempt for r in records} == {0}


def test_train_and_eval_directories_are_one_run(tmp_path, writing):
    for part, offset in (("train", 0.0), ("eval", 0.5)):
        with writing.SummaryWriter(str(tmp_path / "run" / part)) as writer:
            for step in range(1, 5):
                writer.add_scalar("loss", step + offset, step)
    records = list(open_log(tmp_path))
    assert [r.values["loss"] for r in records if r.event is STEP] == [1.0, 2.0, 3.0, 4.0]
    assert [r.step for r in records if r.event is Event.EVAL] == [1, 2, 3, 4]
    assert {r.run for r in records} == {"run"}


def test_a_directory_of_several_runs_names_them(tmp_path):
    for name in ("a", "b"):
        event_file(tmp_path / name, event(1, "loss", 1.0))
    with pytest.raises(ValueError, match="event files of 2 runs: name one of a, b"):
        list(open_log(tmp_path))


def test_a_run_in_a_subdirectory_is_not_mixed_in(tmp_path):
    event_file(tmp_path, event(1, "loss", 1.0))
    event_file(tmp_path / "other", event(1, "loss", 9.0), event(2, "loss", 9.0))
    assert [(s, v["loss"]) for s, v in steps(tensorboard.read(tmp_path))] == [(1, 1.0)]


def test_a_second_run_in_the_parent_does_not_stop_following(tmp_path):
    event_file(tmp_path / "a", event(1, "loss", 1.0), event(2, "loss", 1.0))
    following = tensorboard.read(tmp_path).follow()
    assert [r.step for r in _drain(following)] == [1, 1]
    event_file(tmp_path / "b", event(1, "loss", 1.0), event(2, "loss", 1.0))
    assert _drain(following) == []


def test_a_run_in_a_directory_with_many_others_is_read(tmp_path):
    event_file(tmp_path, event(1, "loss", 2.0))
    event_file(tmp_path / "eval", event(1, "reward", 0.5))
    for number in range(tensorboard.MAX_FILES):
        event_file(tmp_path / f"other-{number}", event(1, "loss", 9.0))

    ((_, values),) = [(s, v) for s, v in steps(tensorboard.read(tmp_path)) if "loss" in v]
    assert values["loss"] == 2.0
