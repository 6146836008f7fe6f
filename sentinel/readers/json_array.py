"""JSON array: one file with a list of rows, such as a bare `log_history` of transformers.

The file is read as the trainer state whose history the list is: it is rewritten as it grows, and
`checkpoint-<step>` folders beside it are saves.
"""

from __future__ import annotations

import re
from pathlib import Path

from sentinel.readers import trainer_state
from sentinel.readers.log_reader import LogReader

FORMAT_NAME = "JSON array"

_FIRST_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")


def can_read(path: Path, head: bytes) -> bool:
    """Whether the file begins with a list of objects."""
    return not path.is_dir() and _FIRST_OBJECT.match(head) is not None


def read(path: Path) -> LogReader:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""
    return trainer_state.read(path)
