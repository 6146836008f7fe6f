"""Files that are replaced while others read them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def replace_file(path: Path, body: bytes) -> None:
    """Write a file such that a reader sees the former content or the new one. Raises OSError.

    Threads and processes may replace it at once: the last one wins. An error leaves the file as it
    was, and no other one.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(8)}")
    try:
        temporary.write_bytes(body)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
