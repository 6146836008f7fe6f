"""Console output: what is read of the lines of well-known trainers, and what is not."""

from __future__ import annotations

import pytest
from support.console_logs import CONSOLE_LOGS

from sentinel.model.record import Event
from sentinel.readers.console import ConsoleParser
from sentinel.readers.format_detection import find_reader, open_log


def rows(text):
    """The rows of a text, with the position of each."""
    parser, position, found = ConsoleParser(), 0, []
    for line in text.encode().splitlines(keepends=True):
        position += len(line)
        if line.strip():
            found += parser.add(line, position)
    return [row for row, _ in [*found, *parser.flush()]]


@pytest.mark.parametrize("name", CONSOLE_LOGS)
def test_the_lines_of_a_trainer_are_read(tmp_path, name):
    log = CONSOLE_LOGS[name]
    path = tmp_path / "nohup.out"
    path.write_bytes(log.text.encode())
    attributes, steps, values = {}, [], []
    for record in open_log(path):
        attributes = attributes | record.attributes
        signal = next((n for n, key in record.attributes.items() if key == log.key), log.key)
        if record.event is Event.STEP and signal in record.values:
            steps.append(record.step)
            values.append(record.values[signal])

    assert find_reader(path)[0].FORMAT_NAME == "Console output"
    assert steps == log.steps
    assert (values[0], values[-1]) == pytest.approx((log.first, log.last))
