"""Files that are replaced while others read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a file to write, which replaces `path` at the end of the block.

    A reader sees the former content or the new one. Threads and processes may replace it at once:
    the last one wins. An error in the block leaves the file as it was, and no other one.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_file(path: Path, body: bytes) -> None:
    """Replace the content of a file, see `replacing`. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_bytes(body)
