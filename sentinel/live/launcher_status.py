"""Launched: what the launcher of a run knows and its ranks cannot say: how the command ended.

A command may fail before any rank began, or after the last one finished well; and only whoever
waited for it knows the signal that ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sentinel.live.liveness import LiveRank
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.launch_status import LaunchStatus, read_launch_status


@dataclass
class LauncherStatus:
    """The newest launch of a run by `sentinel run`, if there was one; `look` reads it anew."""

    run: str
    launch: LaunchStatus | None = None
    reported_launch: LaunchStatus | None = None
    """The launch whose end was told."""
    is_launcher_gone: bool = False
    """The launcher was gone before it was read: it will say no more."""

    def poll(self) -> None:
        """See whether it has ended."""
        known = self.launch
        gone = None if known is None or known.launcher.is_alive() else known.launcher
        self.launch = read_launch_status(self.run)
        self.is_launcher_gone = self.launch is not None and self.launch.launcher == gone

    @property
    def running(self) -> bool:
        """Whether the command is under way, or its launcher may have said how it ended since."""
        launch = self.launch
        if launch is None or launch.ended_at is not None:
            return False
        return launch.launcher.is_alive() or not self.is_launcher_gone

    def ended_without_ranks(self, ranks: Sequence[LiveRank]) -> bool:
        """Whether the command ended before any rank of its own began."""
        launch = self.launch
        if launch is None or launch.ended_at is None:
            return False
        return not any(rank.header.created_at >= launch.started_at for rank in ranks)

    def end_records(self, ranks: Sequence[LiveRank], attempt: int, now: float) -> Iterator[Record]:
        """What is to be said, once, of the end of the command; `ranks` are all there ever were.

        Without a rank it is a whole attempt of one: a START, and a STOP with outcome `exit`.
        """
        launch = self.launch
        if launch is None or launch.ended_at is None or launch == self.reported_launch:
            return
        self.reported_launch = launch
        first = Record(run=self.run, rank=0, step=0, time=now, event=Event.START, attempt=attempt)
        if not self.ended_without_ranks(ranks):
            yield replace(first, event=Event.METADATA, attributes=launch.exit_attributes)
        elif launch.has_failed:
            facts = {"outcome": "exit", "code": str(launch.exit_code), **launch.exit_attributes}
            yield replace(first, attributes={"script": launch.command})
            yield replace(first, event=Event.STOP, attributes=facts)

    def heartbeat_without_ranks(self, attempt: int, now: float) -> Record | None:
        """What a TICK says of a command that failed before any rank began; None if it did not."""
        launch = self.launch
        if launch is None or not launch.has_failed:
            return None
        values = {"ranks_running": 0.0, "ranks_gone": 0.0, "ranks_failed": 0.0, "idle_seconds": 0.0}
        facts = {
            "died_ranks": "",
            "failed_ranks": "",
            **_failure_attributes(launch),
            "failed_before": "any rank began",
        }
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=0,
            time=now,
            event=Event.HEARTBEAT,
            values=values,
            attributes=facts,
            attempt=attempt,
        )

    def annotate_heartbeat(self, heartbeat: Record, ranks: Sequence[LiveRank]) -> Record:
        """The ranks' TICK with what the launcher knows: `launcher`, `exit_code`, `signal`.

        A command that failed though every one of its ranks ended well is a failure as well.
        """
        launch = self.launch
        if launch is None or not all(_belongs_to(launch, rank) for rank in ranks):
            return heartbeat
        if self.running:
            return replace(heartbeat, attributes={**heartbeat.attributes, "launcher": "running"})
        failure = {}
        if (
            launch.has_failed
            and "cause" not in heartbeat.attributes
            and all(rank.ended for rank in ranks)
        ):
            failure = _failure_attributes(launch)
        return replace(
            heartbeat, attributes={**heartbeat.attributes, **launch.exit_attributes, **failure}
        )


def _failure_attributes(launch: LaunchStatus) -> dict[str, str]:
    return {
        "state": "failed",
        "cause": "exit",
        "code": str(launch.exit_code),
        **launch.exit_attributes,
    }


def _belongs_to(launch: LaunchStatus, rank: LiveRank) -> bool:
    """Whether that rank began under this launch, and not under one before or after it."""
    created = rank.header.created_at
    return launch.started_at <= created and (launch.ended_at is None or created <= launch.ended_at)
