"""Position: where reading a ring has got to; all that is stored to go on after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.transport.ring import RingCursor


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Cursor, the names its frames use, and how the rank ended, once it has.

    `outcome` is empty while the rank runs; `ended_at` is in seconds since the epoch.
    """

    cursor: RingCursor
    reader_state: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = ""
    ended_at: float = 0.0
