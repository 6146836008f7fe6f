"""Identity of a rank: which run, attempt and rank a process is, and on which host."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.transport.rendezvous import NO_RENDEZVOUS, Rendezvous


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank of one attempt of one run, and where it runs."""

    run: str
    attempt: int = 0
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    host: str = ""
    rendezvous: Rendezvous = NO_RENDEZVOUS
