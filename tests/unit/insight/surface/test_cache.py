"""Points of surfaces on disk: exact, bounded, and unharmed by whatever happens to the disk."""

import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.insight.surface import cache as surface_cache
from sentinel.insight.surface.cache import SurfaceCache, prune

WRITER = """
import sys
from sentinel.insight.surface.cache import SurfaceCache

cache, name = SurfaceCache("shared", sys.argv[1]), int(sys.argv[2])
for i in range(int(sys.argv[3])):
    cache.append({(name + j / 7, i / 3): name + i * 0.1 + j for j in range(5)})
    if i == 20:
        print("began", flush=True)
print("ended", cache.problem, flush=True)
"""


def start_writer(folder: Path, name: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(name), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_points_are_read_back_bit_for_bit(tmp_path):
    points = {(0.1, -1 / 3): 2 / 3, (1e-300, 5e300): -0.0, (0.0, 0.0): math.inf}
    SurfaceCache("k", tmp_path).append(points)
    SurfaceCache("k", tmp_path).append({(0.5, 0.5): math.nan})

    found = SurfaceCache("k", tmp_path).known()

    assert math.isnan(found.pop((0.5, 0.5)))
    assert found == points
    assert SurfaceCache("other", tmp_path).known() == {}


def test_one_dimension(tmp_path):
    SurfaceCache("k", tmp_path).append({(0.25,): 1.5})

    assert SurfaceCache("k", tmp_path).known() == {(0.25,): 1.5}


def test_the_default_folder_is_in_the_users_cache():
    SurfaceCache("k").append({(0.0,): 1.0})

    folder = Path(os.environ["XDG_CACHE_HOME"], "sentinel", "surfaces")
    assert [path.name for path in folder.iterdir()] == ["k.points"]
    assert SurfaceCache("k").known() == {(0.0,): 1.0}


def test_any_text_is_a_key(tmp_path):
    for key in ("../../escape", "", "a/b", "x" * 1000):
        SurfaceCache(key, tmp_path / "cache").append({(0.0,): float(len(key))})

        assert SurfaceCache(key, tmp_path / "cache").known() == {(0.0,): float(len(key))}
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_line_that_is_cut_anywhere_is_ignored(tmp_path):
    cache = SurfaceCache("k", tmp_path)
    cache.append({(0.0, 1.0): 2.0})
    whole = cache.path.read_bytes()
    cache.append({(0.125, 0.25): 1.375})
    longer = cache.path.read_bytes()

    for length in range(len(whole), len(longer)):
        cache.path.write_bytes(longer[:length])
        found = cache.known()
        assert found in ({(0.0, 1.0): 2.0}, {(0.0, 1.0): 2.0, (0.125, 0.25): 1.375})
        cache.append({(5.0, 5.0): 5.0})
        assert cache.known() == {**found, (5.0, 5.0): 5.0}


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 50, b"\xff\xfe\n", b'{"a": 1}', b"[1, [2]]", b"[]", b"[3]", b"7", b"[" * 9999],
)
def test_garbage_is_ignored(tmp_path, garbage):
    cache = SurfaceCache("k", tmp_path)
    cache.path.write_bytes(b"\n[1.0, 2.0]\n" + garbage)

    assert cache.known() == {(1.0,): 2.0}
    assert cache.problem is None


def test_a_killed_writer_leaves_what_it_stored(tmp_path):
    writer = start_writer(tmp_path, 3, 10**9)
    assert writer.stdout.readline() == "began\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()

    found = SurfaceCache("shared", tmp_path).known()

    assert len(found) >= 100
    for (x, y), loss in found.items():
        assert loss == pytest.approx(3 + y * 0.3 + (x - 3) * 7)


def test_two_processes_write_the_same_surface(tmp_path):
    writers = [start_writer(tmp_path, name, 200) for name in (1, 2)]
    assert [writer.communicate()[0] for writer in writers] == ["began\nended None\n"] * 2

    found = SurfaceCache("shared", tmp_path).known()

    assert len(found) == 2 * 200 * 5
    assert all(
        loss == pytest.approx(int(x) + y * 0.3 + (x % 1) * 7) for (x, y), loss in found.items()
    )


def test_a_full_disk_ends_the_storing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache = SurfaceCache("k", tmp_path)
    cache.append({(0.0, 0.0): 1.0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (cache.path.stat().st_size + 10, before[1]))
    try:
        cache.append({(0.1, 0.1): 1.1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    cache.append({(0.2, 0.2): 1.2})

    assert cache.problem == "Points of the surface are not stored in the cache: the disk is full."
    assert SurfaceCache("k", tmp_path).known() == {(0.0, 0.0): 1.0}


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none"):
        cache = SurfaceCache("k", folder)

        assert cache.known() == {}
        cache.append({(0.0,): 1.0})
        assert cache.problem.startswith("Points of the surface are not stored in the cache: ")


def test_a_home_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    cache = SurfaceCache("k")

    assert cache.problem is not None
    assert cache.known() == {}


def test_a_link_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "k.points").symlink_to(target)

    cache = SurfaceCache("k", tmp_path)
    cache.append({(0.0,): 1.0})

    assert target.read_text() == "mine"
    assert cache.problem is not None


def test_one_surface_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(surface_cache, "MAX_SURFACE_BYTES", 1000)
    cache = SurfaceCache("k", tmp_path)
    for i in range(100):
        cache.append({(float(i), 0.0): 1.0})

    assert cache.path.stat().st_size <= 1000
    assert "larger than" in cache.problem
    assert len(SurfaceCache("k", tmp_path).known()) > 30


def test_the_oldest_surfaces_are_deleted(tmp_path):
    for age in range(6):
        path = tmp_path / f"{age}.points"
        path.write_bytes(b"x" * 1000)
        written = path.stat().st_mtime - 1800.0 - 1800.0 * age
        os.utime(path, (written, written))
    (tmp_path / "other.txt").write_bytes(b"x" * 5000)

    prune(tmp_path, kept=tmp_path / "5.points", max_bytes=1500)

    # Those written within the last hour stay, and so does the one that is in use.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0.points",
        "5.points",
        "other.txt",
    ]


def test_a_new_surface_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(surface_cache, "MAX_CACHE_BYTES", 1500)
    old = tmp_path / "old.points"
    old.write_bytes(b"x" * 2000)
    os.utime(old, (1e9, 1e9))

    SurfaceCache("new", tmp_path).append({(0.0,): 1.0})

    assert [path.name for path in tmp_path.iterdir()] == ["new.points"]
