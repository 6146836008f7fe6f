"""How many records one turn of the agent's loop reads, so that a turn takes about 0.1 seconds."""

from __future__ import annotations

from dataclasses import dataclass

MIN_TURN_SECONDS, MAX_TURN_SECONDS = 0.05, 0.1
"""A turn that reaches its limit sooner, or later, changes the limit; deaths of ranks, heartbeats
and requests are looked at between two turns."""
MIN_RECORDS, MAX_RECORDS = 64, 4096


@dataclass
class TurnLimit:
    """`max_records` is the limit of the next turn; it follows from how long earlier ones took."""

    max_records: int = 256

    def update(self, seconds: float, *, is_reached: bool) -> None:
        """Note how long a turn took, and whether it left records unread."""
        if seconds > MAX_TURN_SECONDS:
            self.max_records = max(MIN_RECORDS, self.max_records // 2)
        elif is_reached and seconds < MIN_TURN_SECONDS:
            self.max_records = min(MAX_RECORDS, 2 * self.max_records)
