"""A frozen control group is found in both versions, from files as the kernel shows them."""

from __future__ import annotations

import pytest

from sentinel.live.suspension import suspended_by
from sentinel.transport.process import Process


class ProcessInState(Process):
    """A process in the state `letter`."""

    letter = "S"

    def state(self):
        return self.letter


@pytest.mark.fault("R14")
@pytest.mark.parametrize(
    ("lines", "name", "text", "expected"),
    [
        ("6:freezer:/job\n0::/", "freezer/job/freezer.state", "FROZEN\n", "freezer"),
        ("6:freezer:/job\n0::/", "freezer/job/freezer.state", "THAWED\n", ""),
        ("0::/job", "job/cgroup.events", "populated 1\nfrozen 1\n", "freezer"),
        ("0::/job", "job/cgroup.events", "populated 1\nfrozen 0\n", ""),
        ("1:cpu:/\n0::/job", "unified/job/cgroup.events", "frozen 1\n", "freezer"),
        ("0::/of/the/host", "cgroup.events", "frozen 1\n", ""),
    ],
)
def test_a_frozen_group_is_found(tmp_path, lines, name, text, expected):
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(lines)
    path = tmp_path / "cgroup" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)

    found = suspended_by(ProcessInState(7, 1), tmp_path / "cgroup", tmp_path / "proc")

    assert found == expected


@pytest.mark.parametrize(("letter", "expected"), [("T", "signal"), ("t", "debugger"), ("R", "")])
def test_a_signal_and_a_debugger_are_states(letter, expected, tmp_path):
    process = ProcessInState(7, 1)
    process.letter = letter

    assert suspended_by(process, tmp_path, tmp_path) == expected
