"""What every reader must do: follow the contract, and tolerate damaged, empty and cut-off logs."""

from __future__ import annotations

import inspect
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log_files import FORMATS

from sentinel.model.record import Event
from sentinel.readers.format_detection import load_readers, open_log
from sentinel.readers.log_reader import HEAD_BYTES, LogReader

READERS = load_readers()
READER_BY_FORMAT = {"table": "csv", "deepspeed": "csv"} | {
    name: name for name in FORMATS if name in READERS
}
"""Reader by the name of a writer in `support.log_files`."""
FILE_FORMATS = sorted({*FORMATS} - {"deepspeed"})
"""Formats of one file."""
WHOLE_FILE_FORMATS = {"trainer_state", "json_array", "json_columns", "trackio"}
"""Formats whose file is refused as a whole, with a ValueError, if it is damaged."""
ROWS = [
    {"step": n, "time": 1.7e9 + n, "loss": 2.0 + 1.0 / n, "grad_norm": 0.5 + n / 1000}
    for n in range(1, 301)
]


@pytest.fixture(params=sorted(READERS))
def reader(request):
    return READERS[request.param]


def steps(records):
    return [record.step for record in records if record and record.event is Event.STEP]


def read_steps(path):
    """Steps and skipped rows of a log; None if it is refused with a ValueError."""
    reader = READERS[READER_BY_FORMAT[path.parent.name]].read(path)
    try:
        return steps(reader), reader.skipped
    except ValueError:
        return None


@pytest.fixture
def write(tmp_path):
    """Writes ROWS in a format, in a directory of that name."""

    def write_format(name):
        folder = tmp_path / name
        folder.mkdir()
        return FORMATS[name](folder, ROWS)

    return write_format


@pytest.fixture
def write_file(write):
    """The same for a format of one file, whose directory has the name of the format."""

    def write_format(name):
        path = write(name)
        return path if path.parent.name == name else path.rename(path.parent.parent / path.name)

    return write_format


def test_it_follows_the_contract(reader):
    assert isinstance(reader.FORMAT_NAME, str)
    assert [*inspect.signature(reader.can_read).parameters] == ["path", "head"]
    assert [*inspect.signature(reader.read).parameters] in (["path"], ["path", "run_name"])


def test_it_documents_itself(reader):
    assert reader.__doc__.startswith(reader.FORMAT_NAME)
    assert reader.can_read.__doc__
    assert "Raises" in reader.read.__doc__


def test_the_names_of_formats_are_unique():
    names = [module.FORMAT_NAME for module in READERS.values()]

    assert len({*names}) == len(names)


def test_every_reader_has_an_example():
    assert {*READER_BY_FORMAT.values()} == {*READERS}
    assert {*READER_BY_FORMAT} == {*FORMATS}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_its_log_is_detected_and_read(write, name):
    path = write(name)
    head = b"" if path.is_dir() else path.read_bytes()[:HEAD_BYTES]
    records = list(open_log(path))

    assert READERS[READER_BY_FORMAT[name]].can_read(path, head)
    assert records[0].event is Event.START
    assert steps(records) == [row["step"] for row in ROWS]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_other_reader_takes_its_log(write, name):
    path = write(name)
    head = b"" if path.is_dir() else path.read_bytes()[:HEAD_BYTES]

    readers = [key for key, module in READERS.items() if module.can_read(path, head)]
    assert readers == [READER_BY_FORMAT[name]]


def test_reading_creates_a_new_log_reader(reader, tmp_path):
    first, second = reader.read(tmp_path / "a"), reader.read(tmp_path / "a")

    assert isinstance(first, LogReader)
    assert first is not second


def test_an_empty_file_or_directory_is_not_read(reader, tmp_path):
    (tmp_path / "log").write_bytes(b"")
    (tmp_path / "folder").mkdir()

    assert not reader.can_read(tmp_path / "log", b"")
    assert not reader.can_read(tmp_path / "folder", b"")


@given(head=st.binary(max_size=200))
def test_detection_never_raises(tmp_path_factory, head):
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(head)

    for module in READERS.values():
        assert module.can_read(path, head) in (True, False)


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_a_truncated_log_is_read_up_to_the_cut(write_file, name):
    path = write_file(name)
    content = path.read_bytes()
    for cut in (len(content) // 3, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:cut])
        result = read_steps(path)
        if name in WHOLE_FILE_FORMATS:
            assert result is None or set(result[0]) <= {row["step"] for row in ROWS}
        else:
            assert result is not None
            # The cut may be inside the number of the last step.
            assert result[0][:-1] == [row["step"] for row in ROWS][: len(result[0]) - 1]
            assert result[0]


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_damage_is_counted_and_costs_few_rows(write_file, name):
    path = write_file(name)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = b"\xff\x00" * 20
    path.write_bytes(content)
    result = read_steps(path)

    if name in WHOLE_FILE_FORMATS:
        assert result is None or result[1] >= 1
    else:
        assert result is not None
        assert result[1] >= 1
        assert len(result[0]) > len(ROWS) * 0.9


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_random_damage_never_raises_another_error(write_file, name):
    path, random = write_file(name), Random(7)
    content = path.read_bytes()
    for _ in range(10):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(damaged)
        result = read_steps(path)
        assert result is not None or name in WHOLE_FILE_FORMATS


@pytest.mark.parametrize("name", sorted({*FILE_FORMATS} - WHOLE_FILE_FORMATS))
def test_a_growing_log_is_followed(write_file, name):
    path = write_file(name)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    now = [0.0]
    reader = READERS[READER_BY_FORMAT[name]].read(path)
    reader.clock = lambda: now[0]
    following, records = reader.follow(), []

    def drain():
        while (record := next(following)) is not None:
            records.append(record)

    drain()
    seen = len(records)
    with path.open("ab") as file:
        file.write(content[len(content) // 2 :])
    drain()
    now[0] += 60.0
    drain()

    assert 0 < seen < len(records)
    assert steps(records) == [row["step"] for row in ROWS]
    assert reader.skipped == 0
