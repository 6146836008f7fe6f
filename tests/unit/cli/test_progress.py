"""The progress bar of slow commands."""

from __future__ import annotations

import io
import re

from rich.console import Console
from support.clocks import FakeClock

from sentinel.cli._progress import ProgressBar


def shown(*, is_terminal, seconds, line=""):
    """What is written while 20 updates take so many seconds, and `line` is printed."""
    clock, output = FakeClock(0.0), io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=100, color_system=None)
    with ProgressBar("Replaying log.jsonl", console, clock) as bar:
        for update in range(20):
            clock.now += seconds / 20
            if line and update == 3:
                bar.print(line)
            bar.update(update / 20, f"step {update}")
    return output.getvalue()


def test_what_takes_longer_than_two_seconds_shows_how_far_it_is():
    text = shown(is_terminal=True, seconds=10.0)

    assert "Replaying log.jsonl" in text
    assert "step" in text
    assert "%" in text


def test_the_time_left_is_shown():
    text = shown(is_terminal=True, seconds=1000.0)

    assert "-:--:--" in text or "0:" in text
    assert len(re.findall(r"\d:\d\d:\d\d|-:--:--", text)) >= 2


def test_a_line_is_printed_above_the_bar_once_that_is_shown():
    assert "found [it]" in shown(is_terminal=True, seconds=10.0, line="found [it]")
    assert "found" not in shown(is_terminal=True, seconds=1.9, line="found [it]")
    assert "found" not in shown(is_terminal=False, seconds=10.0, line="found [it]")


def test_a_quick_command_shows_nothing():
    assert not shown(is_terminal=True, seconds=1.9)


def test_output_that_is_no_terminal_shows_nothing():
    assert not shown(is_terminal=False, seconds=10.0)
