"""The filesystem of a path is found from the table of mounts, without an access to a server."""

from __future__ import annotations

import pytest

from sentinel.transport import mounts
from sentinel.transport.mounts import find_mount

TABLE = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:50 / {home} rw - nfs4 server:/home rw
31 21 0:51 / {home}/local rw - tmpfs tmpfs rw
32 21 0:52 / {home}/a\\040b rw - fuse.sshfs server:/ rw
33 21 0:53 / {home}/again rw - ext4 /dev/sdb1 rw
34 33 0:54 / {home}/again rw - lustre server rw
malformed
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.format(home=tmp_path / "home"))
    monkeypatch.setattr(mounts, "_MOUNT_TABLE", table)
    return tmp_path / "home"


@pytest.mark.fault("S5")
@pytest.mark.parametrize(
    ("below", "kind", "is_remote"),
    [
        ("x/y", "nfs4", True),
        ("../homes", "ext4", False),
        ("a b/c", "fuse.sshfs", True),
        ("again", "lustre", True),
    ],
)
def test_the_deepest_and_newest_mount_counts(home, below, kind, is_remote):
    mount = find_mount(home / below)

    assert (mount.type, mount.is_remote) == (kind, is_remote)


@pytest.mark.fault("S5")
def test_a_link_to_a_file_server_is_followed(home, tmp_path):
    (tmp_path / "link").symlink_to(home / "runs")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    assert find_mount(tmp_path / "link" / "x").type == "nfs4"
    assert not find_mount(tmp_path / "loop").is_remote


def test_without_a_table_nothing_is_remote(tmp_path, monkeypatch):
    monkeypatch.setattr(mounts, "_MOUNT_TABLE", tmp_path / "missing")

    assert not find_mount(tmp_path).is_remote
