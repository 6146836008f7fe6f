"""`sentinel inspect`: how a log is understood, before it is replayed or watched."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sentinel.aggregate.trainings import LoggedSteps
from sentinel.cli._options import error_exit, settings_environ
from sentinel.cli._terminal import escape_unprintable, print_json_line

if TYPE_CHECKING:
    from sentinel.model.record import Record
    from sentinel.readers.log_reader import LogReader
    from sentinel.signals.coverage import Coverage

SAMPLE_ROWS = 3
"""First rows that are shown, and as many of the last ones."""
MAX_KEYS = 200
"""Keys that are listed; the first ones seen."""


def inspect(
    path: Path = typer.Argument(..., help="Log file, or folder of a run."),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Show how a log is understood: format, steps, trainings in it, keys, and unread lines.

    Keys that stand for no signal, or for a wrong one, are mapped by [keys] in the settings.

    Exit status: 0 if something of the log would be monitored; 2 if not, or if it cannot be read.
    """
    from sentinel.config.settings import ConfigError, load_replay_settings
    from sentinel.model.evidence_text import capitalized
    from sentinel.pipeline import pipeline
    from sentinel.readers import console
    from sentinel.readers.format_detection import find_reader, open_with
    from sentinel.readers.log_file import read_error_text
    from sentinel.signals.coverage import Coverage, coverage_text

    try:
        settings = load_replay_settings((), settings_environ(config))
        module, file, run_name = find_reader(path)
        reader = replace(open_with(module, file, run_name), keys=settings.keys)
        coverage = Coverage(pipeline.build(settings).readable_signals)
        preview = _Preview(coverage, reader, module.FORMAT_NAME == console.FORMAT_NAME)
        for record in reader:
            preview.add(record)
    except ConfigError as error:
        raise error_exit("inspect", str(error)) from None
    except (OSError, ValueError) as error:
        raise error_exit("inspect", f"cannot read {path}: {read_error_text(error)}") from None
    shown = {
        "format": module.FORMAT_NAME,
        **preview.to_dict(),
        **_unread(reader),
        "notice": reader.notice,
    }
    if json:
        print_json_line({"type": "log", **shown})
    else:
        for line in _text_lines(shown):
            print(escape_unprintable(line))
        if reader.notice:
            print(escape_unprintable(f"Notice: {reader.notice}."))
    text = coverage_text(coverage.is_blind, coverage.unmonitored)
    if not coverage.monitored:
        raise error_exit("inspect", f"{path}: {text or 'it holds no record of a step'}.")
    if text and not json:
        print(escape_unprintable(f"{capitalized(text)}."))


@dataclass
class _Segment:
    """A part of a log whose steps increase.

    `row` is the number of its first record, from 1; `line` that of its line, 0 if that is not
    known. `reason` is why it begins there.
    """

    row: int
    line: int
    first_step: int
    last_step: int
    reason: str


@dataclass
class _Preview:
    """What was read of a log so far.

    `names` holds the signal, or the name, of each key; `segments` are the parts whose steps
    increase. `reader` has the number of the line that was read last; it is not that of the newest
    record if `is_read_ahead`.
    """

    coverage: Coverage
    reader: LogReader
    is_read_ahead: bool = False
    names: dict[str, str] = field(default_factory=dict)
    segments: list[_Segment] = field(default_factory=list)
    steps: LoggedSteps = field(default_factory=LoggedSteps)
    records: int = 0
    attempt: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=SAMPLE_ROWS))

    def add(self, record: Record) -> None:
        """Take note of a training step or an evaluation."""
        from sentinel.model.json_safe import json_safe
        from sentinel.model.record import Event

        if record.event not in (Event.STEP, Event.EVAL):
            return
        self.records += 1
        self.coverage.update(record.values)
        for name in record.values:
            key = record.attributes.get(name, name)
            # A part of the loss stands for the loss once it is clear that there is no total.
            if key in self.names or len(self.names) < MAX_KEYS:
                self.names[key] = name
        if record.event is Event.STEP:
            self._add_step(record)
        values = {name: value for name, value in record.values.items() if name != "step"}
        row = {"event": record.event.value, "step": record.step, **json_safe(values)}
        if len(self.first) < SAMPLE_ROWS:
            self.first.append(row)
        else:
            self.last.append(row)

    def _add_step(self, record: Record) -> None:
        """Add a step to the last part, or begin a part with it."""
        starts_over = self.steps.begins_training(record)
        # Rows of another count have no step of the run.
        has_steps = self.steps.first is not None and not self.steps.counts_epochs
        if has_steps and "global_step" not in record.values:
            return
        step = int(record.values.get("global_step", record.step))
        if record.attempt > self.attempt:
            reason, self.attempt = "the log was started over", record.attempt
        elif not self.segments:
            reason = "start of the log"
        elif starts_over:
            reason = "another training: the steps start over"
        elif step < self.segments[-1].last_step:
            reason = "the step goes back: a resume, or rows of another process"
        else:
            self.segments[-1].last_step = step
            return
        if len(self.segments) < MAX_KEYS:
            line = 0 if self.is_read_ahead else self.reader.line_number
            self.segments.append(_Segment(self.records, line, step, step, reason))

    def to_dict(self) -> dict[str, Any]:
        """What is shown of it."""
        from sentinel.readers.rows import STEP_KEYS
        from sentinel.signals.catalogue import SIGNALS, eval_name
        from sentinel.signals.key_purpose import key_purpose

        known = {*SIGNALS, *map(eval_name, SIGNALS)}
        keys = {key: name if name in known else None for key, name in self.names.items()}
        return {
            "records": self.records,
            "step_key": next((key for key in STEP_KEYS if key in self.names), None),
            "segments": [asdict(each) for each in self.segments],
            "keys": keys,
            "purposes": {key: key_purpose(key) for key, name in keys.items() if name is None},
            "monitored": self.coverage.monitored,
            "rows": [*self.first, *self.last],
        }


def _unread(reader: LogReader) -> dict[str, Any]:
    return {
        "skipped": reader.skipped,
        "unread": dict(reader.unread_counts),
        "unread_lines": [each._asdict() for each in reader.unread_lines],
        "other_trainings": reader.other_trainings,
    }


def _text(value: float | str | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _text_lines(shown: dict[str, Any]) -> Iterator[str]:
    segments = shown["segments"]
    steps = ", ".join(f"{each['first_step']} to {each['last_step']}" for each in segments) or "none"
    axis = shown["step_key"] or "the number of the row"
    yield f"Format: {shown['format']}. Rows: {shown['records']}. Steps: {steps}, by {axis}."
    if len(segments) > 1:
        yield "Segments:"
        for each in segments:
            at = f"line {each['line']}" if each["line"] else f"row {each['row']}"
            yield f"  {at}: steps {each['first_step']} to {each['last_step']} ({each['reason']})"
    if shown["other_trainings"]:
        yield f"Other trainings in the log: {', '.join(shown['other_trainings'])}."
    yield "Keys:"
    for key, signal in shown["keys"].items():
        yield f"  {key}: {signal or '(' + shown['purposes'][key] + ')'}"
    yield "Rows:"
    for row in shown["rows"]:
        yield "  " + ", ".join(f"{name}={_text(value)}" for name, value in row.items())
    if shown["unread"]:
        yield "Lines that were not read:"
        for reason, count in shown["unread"].items():
            yield f"  {count}: {reason}"
            for line in shown["unread_lines"]:
                if line["reason"] == reason and line["excerpt"]:
                    yield f"    line {line['number']}: {line['excerpt']}"
