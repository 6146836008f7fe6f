"""Exit status of a run's command, which its launcher `sentinel run` knows and the ranks do not.

A command may fail before any rank starts or after the last one finished, and only the launcher sees
the signal that killed it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sentinel.live.liveness import StopRequest
from sentinel.live.rank import LiveRank
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.launch_status import LaunchStatus, read_launch_status

POLL_SECONDS = 0.02


@dataclass
class LauncherStatus:
    """The newest launch of a run by `sentinel run`, if any; `poll` reads it again."""

    run: str
    launch: LaunchStatus | None = None
    reported_launch: LaunchStatus | None = None
    """The launch whose exit was reported."""
    is_launcher_gone: bool = False
    """Whether the launcher was gone before its status was read, so that the status is final."""

    def poll(self) -> None:
        """Read the newest status."""
        previous = self.launch
        dead_launcher = (
            None if previous is None or previous.launcher.is_alive() else previous.launcher
        )
        self.launch = read_launch_status(self.run)
        self.is_launcher_gone = self.launch is not None and self.launch.launcher == dead_launcher

    def await_exit(self, seconds: float) -> None:
        """Read the status until the command has ended, for at most that long."""
        deadline = time.monotonic() + seconds
        self.poll()
        while self.running and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self.poll()

    @property
    def running(self) -> bool:
        """Whether the command runs, or its launcher may have written a status not yet read."""
        launch = self.launch
        if launch is None or launch.ended_at is not None:
            return False
        return launch.launcher.is_alive() or not self.is_launcher_gone

    def ended_without_ranks(self, ranks: Sequence[LiveRank]) -> bool:
        """Whether the command exited before any of its ranks started."""
        launch = self.launch
        if launch is None or launch.ended_at is None:
            return False
        return not any(rank.header.created_at >= launch.started_at for rank in ranks)

    def end_records(self, ranks: Sequence[LiveRank], attempt: int, now: float) -> Iterator[Record]:
        """The records of the command's exit, once per launch; `ranks` are all ranks of this node.

        The exit status is a record of the whole run. A failure before any rank started is an
        attempt of its own, of the node's lowest rank: a START, and a STOP with outcome `exit`.
        """
        launch = self.launch
        if launch is None or launch.ended_at is None or launch == self.reported_launch:
            return
        self.reported_launch = launch
        # On another node than the first, rank 0 would be a rank of that node that never ends.
        lowest = min((rank.header.identity.rank for rank in ranks), default=0)
        start = Record(
            run=self.run, rank=lowest, step=0, time=now, event=Event.START, attempt=attempt
        )
        if not self.ended_without_ranks(ranks):
            yield replace(
                start, rank=WHOLE_RUN, event=Event.METADATA, attributes=launch.exit_attributes
            )
        elif launch.has_failed:
            yield replace(start, attributes={"script": launch.command})
            code = str(launch.exit_code)
            attributes = {"outcome": "exit", "code": code, **launch.exit_attributes}
            yield replace(start, event=Event.STOP, attributes=attributes)

    def heartbeat_without_ranks(self, attempt: int, now: float) -> Record | None:
        """The heartbeat of a command that failed before any rank started; else None."""
        launch = self.launch
        if launch is None or not launch.has_failed:
            return None
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=0,
            time=now,
            event=Event.HEARTBEAT,
            values={
                "ranks_running": 0.0,
                "ranks_gone": 0.0,
                "ranks_failed": 0.0,
                "idle_seconds": 0.0,
            },
            attributes={
                "died_ranks": "",
                "failed_ranks": "",
                **_failure_attributes(launch),
                "failed_before": "any rank started",
            },
            attempt=attempt,
        )

    def annotate_heartbeat(self, heartbeat: Record, ranks: Sequence[LiveRank]) -> Record:
        """The ranks' heartbeat with the launcher's attributes: `launcher`, `exit_code`, `signal`.

        A command that failed although all of its ranks finished is a failure as well.
        """
        launch = self.launch
        if launch is None or not all(_belongs_to(launch, rank) for rank in ranks):
            return heartbeat
        if self.running:
            return replace(heartbeat, attributes={**heartbeat.attributes, "launcher": "running"})
        known = dict(launch.exit_attributes)
        attributes = heartbeat.attributes
        if attributes.get("cause") != "died" or not attributes.keys().isdisjoint(
            ("signal", "code")
        ):
            # The signal of the command is that of the rank only if nothing else is known of it.
            known.pop("signal", None)
        if (
            launch.has_failed
            and "cause" not in heartbeat.attributes
            and all(rank.ended for rank in ranks)
        ):
            known |= _failure_attributes(launch)
        return replace(heartbeat, attributes={**attributes, **known})

    @property
    def stop_request(self) -> StopRequest | None:
        """The signal to end the run that `sentinel run` received and passed on, if it did."""
        launch = self.launch
        if launch is None or launch.stop_signal_at is None:
            return None
        return StopRequest(launch.stop_signal, launch.stop_signal_at, "sentinel run")


def _failure_attributes(launch: LaunchStatus) -> dict[str, str]:
    return {
        "state": "failed",
        "cause": "exit",
        "code": str(launch.exit_code),
        **launch.exit_attributes,
    }


def _belongs_to(launch: LaunchStatus, rank: LiveRank) -> bool:
    """Whether that rank started during this launch."""
    created = rank.header.created_at
    return launch.started_at <= created and (launch.ended_at is None or created <= launch.ended_at)
