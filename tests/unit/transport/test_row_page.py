"""The page of the rows of a rank's last steps."""

from array import array
from struct import pack

import pytest

from sentinel.transport.row_page import (
    MAX_ROWS,
    MIN_STEPS,
    RowPage,
    StepRows,
    read_row_page,
    row_page_path,
)


@pytest.fixture
def ring(tmp_path):
    return tmp_path / "0-3.ring"


def packed(rows):
    return pack(f"{len(rows)}q", *rows)


def test_the_last_steps_are_read(ring):
    page = RowPage(row_page_path(ring), 4)
    count = 3000
    for index in range(1, count + 1):
        page.write(index, 10 * index, packed([index, -index]), 2)
    page.write_losses(count, array("f", [0.5, float("inf")]))
    page.write_losses(1, array("f", [9.0, 9.0]))

    steps, gap = read_row_page(ring)

    assert gap == ""
    assert sorted(steps) == [*range(count + 1 - len(steps), count + 1)]
    assert len(steps) >= MIN_STEPS
    assert steps[count] == StepRows(10 * count, 2, (count, -count), (0.5, float("inf")))
    assert steps[count - 1] == StepRows(10 * count - 10, 2, (count - 1, 1 - count))
    page.close()


@pytest.mark.parametrize("first", [1, 100, 5000])
def test_a_large_batch_is_cut_and_its_size_is_known(ring, first):
    page = RowPage(row_page_path(ring), first)
    rows = [*range(MAX_ROWS)]
    for index in range(1, MIN_STEPS + 3):
        page.write(index, index, packed(rows), 70_000)
    steps, _ = read_row_page(ring)
    assert len(steps) >= MIN_STEPS
    assert all(each.drawn == 70_000 for each in steps.values())
    assert steps[MIN_STEPS].rows == tuple(rows[: page.slot_rows])
    page.close()


def test_a_slot_that_is_partly_written_is_ignored(ring):
    page = RowPage(row_page_path(ring), 2)
    page.write(1, 1, packed([7, 8]), 2)
    page.write(2, 2, packed([9, 10]), 2)
    content = row_page_path(ring).read_bytes()
    place = content.index(packed([9, 10]))
    row_page_path(ring).write_bytes(content[:place] + b"\xff" + content[place + 1 :])

    assert [*read_row_page(ring)[0]] == [1]


@pytest.mark.parametrize("content", [b"", b"x", b"SNTLROWS" + b"\0" * 24, b"\0" * 4096])
def test_a_file_that_is_no_page_has_no_rows(ring, content):
    assert read_row_page(ring) == ({}, "")
    row_page_path(ring).write_bytes(content)
    assert read_row_page(ring) == ({}, "")
