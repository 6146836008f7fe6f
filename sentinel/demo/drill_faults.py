"""The faults that `sentinel chaos` injects, and what must be detected of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrillFault:
    """A fault of a drill.

    `command` is sent to rank 1 and `peer_command` to rank 0; an empty command is none.
    `kills` is what is killed with SIGKILL: `rank` 1, all `ranks`, the `agent`, or the `node` of
    rank 1 with its agent. `detector` must find it, after about `seconds`. It ends with the command
    `recover`, or with `restarts` when all ranks are started again.
    """

    name: str
    description: str
    detector: str
    seconds: float = 1.0
    command: str = ""
    peer_command: str = ""
    kills: str = ""
    restarts: bool = False
    nodes: int = 1


FAULTS = {
    fault.name: fault
    for fault in (
        DrillFault("nan", "rank 1 logs a loss of NaN", "nan_or_inf", command="nan"),
        DrillFault(
            "kl_blowup",
            "the KL rises from 0.05 to 20 nats",
            "kl_blowup",
            command="kl_blowup",
            peer_command="kl_blowup",
        ),
        DrillFault(
            "exception", "rank 1 raises an exception", "run_failed", command="exception",
            peer_command="wait", restarts=True,
        ),
        DrillFault(
            "rank_killed", "rank 1 is killed with SIGKILL", "run_died", kills="rank",
            peer_command="wait", restarts=True,
        ),
        DrillFault(
            "run_killed", "all ranks are killed with SIGKILL", "run_died", kills="ranks",
            restarts=True,
        ),
        DrillFault(
            "hang", "rank 1 waits for data, and rank 0 for rank 1", "run_stalled", seconds=32.0,
            command="hang", peer_command="wait",
        ),
        DrillFault(
            "agent_killed", "the agent is killed with SIGKILL, then rank 1 logs a loss of NaN",
            "nan_or_inf", seconds=3.0, command="nan", kills="agent",
        ),
        DrillFault(
            "node_lost", "the node of rank 1 is lost with its agent; needs torch", "node_lost",
            seconds=15.0, kills="node", peer_command="lost_peer", restarts=True, nodes=2,
        ),
    )
}  # fmt: skip
"""By name, in the order of `sentinel chaos --list`."""
