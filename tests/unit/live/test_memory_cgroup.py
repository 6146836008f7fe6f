"""Kills and limits of both versions of control groups, from files as the kernel shows them."""

from __future__ import annotations

import pytest

from sentinel.live.memory_cgroup import MemoryCgroup


@pytest.fixture
def machine(tmp_path):
    """Writes files below /sys/fs/cgroup and the groups of process 7; returns its group."""

    def create(lines, files):
        (tmp_path / "proc" / "7").mkdir(parents=True)
        (tmp_path / "proc" / "7" / "cgroup").write_text("\n".join(lines))
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return MemoryCgroup.of_process(7, tmp_path / "cgroup", tmp_path / "proc")

    return create


EVENTS = "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n"


def test_version_2(machine):
    group = machine(
        ["0::/job/step"],
        {
            "job/step/memory.events": EVENTS,
            "job/step/memory.max": "max\n",
            "job/memory.max": f"{64 << 30}\n",
        },
    )

    assert (group.oom_kills(), group.limit_bytes()) == (2, 64 << 30)


def test_version_2_in_a_container(machine):
    group = machine(["0::/"], {"memory.events": EVENTS, "memory.max": "1048576\n"})

    assert (group.oom_kills(), group.limit_bytes()) == (2, 1 << 20)


def test_version_1_beside_version_2(machine):
    group = machine(
        ["4:memory:/job", "1:name=systemd:/", "0::/"],
        {
            "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            "memory/job/memory.limit_in_bytes": "536870912\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )

    assert (group.oom_kills(), group.limit_bytes()) == (1, 512 << 20)


def test_a_path_of_the_host_is_the_group_of_the_container(machine):
    group = machine(
        ["4:memory:/docker/0f3a"],
        {"memory/memory.oom_control": "oom_kill 3\n"},
    )

    assert group.oom_kills() == 3


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ([], {}),
        (["0::/job"], {}),
        (["0::/job"], {"job/memory.events": "oom_kill many\n", "job/memory.max": "max\n"}),
        (["4:memory:/job"], {"memory/job/memory.oom_control": "under_oom 0\n"}),
    ],
)
def test_what_is_not_known_is_no_kill(machine, lines, files):
    group = machine(lines, files)

    assert (group.oom_kills(), group.limit_bytes()) == (0, None)


def test_a_process_that_is_gone_has_no_group(tmp_path):
    assert MemoryCgroup.of_process(7, tmp_path, tmp_path) == MemoryCgroup(())
