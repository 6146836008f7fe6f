"""Launched: what the launcher of a run knows and its ranks cannot say: how the command ended.

A command may fail before any rank began, or after the last one finished well; and only whoever
waited for it knows the signal that ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sentinel.live.liveness import Rank
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.launch_status import Launch, read


@dataclass
class Launched:
    """The newest launch of a run by `sentinel run`, if there was one; `look` reads it anew."""

    run: str
    launch: Launch | None = None
    told: Launch | None = None
    """The launch whose end was told."""
    final: bool = False
    """The launcher was gone before it was read: it will say no more."""

    def look(self) -> None:
        """See whether it has ended."""
        known = self.launch
        gone = None if known is None or known.process.alive() else known.process
        self.launch = read(self.run)
        self.final = self.launch is not None and self.launch.process == gone

    @property
    def running(self) -> bool:
        """Whether the command is under way, or its launcher may have said how it ended since."""
        launch = self.launch
        if launch is None or launch.ended is not None:
            return False
        return launch.process.alive() or not self.final

    def alone(self, ranks: Sequence[Rank]) -> bool:
        """Whether the command ended before any rank of its own began."""
        launch = self.launch
        if launch is None or launch.ended is None:
            return False
        return not any(rank.header.created >= launch.began for rank in ranks)

    def ending(self, ranks: Sequence[Rank], attempt: int, now: float) -> Iterator[Record]:
        """What is to be said, once, of the end of the command; `ranks` are all there ever were.

        Without a rank it is a whole attempt of one: a START, and a STOP with outcome `exit`.
        """
        launch = self.launch
        if launch is None or launch.ended is None or launch == self.told:
            return
        self.told = launch
        first = Record(run=self.run, rank=0, step=0, time=now, event=Event.START, attempt=attempt)
        if not self.alone(ranks):
            yield replace(first, event=Event.FACTS, facts=launch.facts)
        elif launch.failed:
            facts = {"outcome": "exit", "code": str(launch.code), **launch.facts}
            yield replace(first, facts={"script": launch.command})
            yield replace(first, event=Event.STOP, facts=facts)

    def alone_tick(self, attempt: int, now: float) -> Record | None:
        """What a TICK says of a command that failed before any rank began; None if it did not."""
        launch = self.launch
        if launch is None or not launch.failed:
            return None
        values = {"ranks_running": 0.0, "ranks_gone": 0.0, "ranks_failed": 0.0, "idle_seconds": 0.0}
        facts = {"gone": "", "failed": "", **_failure(launch), "before": "any rank began"}
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=0,
            time=now,
            event=Event.TICK,
            values=values,
            facts=facts,
            attempt=attempt,
        )

    def told_of(self, tick: Record, ranks: Sequence[Rank]) -> Record:
        """The ranks' TICK with what the launcher knows: `launcher`, `exit_code`, `signal`.

        A command that failed though every one of its ranks ended well is a failure as well.
        """
        launch = self.launch
        if launch is None or not all(_of(launch, rank) for rank in ranks):
            return tick
        if self.running:
            return replace(tick, facts={**tick.facts, "launcher": "running"})
        failure = {}
        if launch.failed and "cause" not in tick.facts and all(rank.ended for rank in ranks):
            failure = _failure(launch)
        return replace(tick, facts={**tick.facts, **launch.facts, **failure})


def _failure(launch: Launch) -> dict[str, str]:
    return {"state": "failed", "cause": "exit", "code": str(launch.code), **launch.facts}


def _of(launch: Launch, rank: Rank) -> bool:
    """Whether that rank began under this launch, and not under one before or after it."""
    created = rank.header.created
    return launch.began <= created and (launch.ended is None or created <= launch.ended)
