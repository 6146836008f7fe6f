"""Stalled run: the processes are alive, but no step has completed for much longer than usual.

Formula
    limit      = max(`floor`, `times` * p99 of the last `window` step intervals)
    limit      = `patience_first` until `warmup` steps have completed
    limit      = max(limit, `patience_phase`) inside a phase, declared or noticed
    limit      = max(limit, `times` * the longest gap between rows) for a followed log
    limit      = max(limit, how long a node did not report, at most 120 s) after it reports again
    Finding    = inactive > limit; critical once inactive > `page_after` * limit, and at once if a
                 rank is suspended by SIGSTOP or frozen
    Finding    = no step for max(limit, `page_after` * `patience_phase`) outside a phase, although
                 batches arrive: a loop that skips all of them. Computing is then no phase

Units
    `floor`, `patience_first`, `patience_phase`: seconds. `window`, `warmup`: steps. `times`,
    `page_after`: plain numbers. Inactive time: seconds since any rank completed a step, or fetched
    a batch from a DataLoader; or, if that is later, since the ranks waited for a lost node.

    Phases that are noticed: an evaluation, from `Module.eval()` of a model in training to the next
    backward pass; `torch.save` and `torch.load`; torch.compile at work; and computing, which is a
    rank that uses a CPU and whose stack changes, or that never waits but for a CPU, while no rank
    is in a collective: one that waits there may spin. No phase counts for a rank that is
    suspended.

    Named are suspended ranks (SIGSTOP, SIGTSTP, a debugger, a frozen control group); otherwise, by
    their stacks, those that do not wait for the others; otherwise those with the least progress: by
    steps taken, then by whether the backward pass of the next step has begun, in which
    data-parallel ranks wait. If they wait for the ranks of a lost node, `node_lost` reports that
    instead.

Source
    Fault-tolerant launchers use learned limits of five times the usual interval without the first
    five steps; NCCL times out after ten minutes, gloo after thirty. TCP doubles the time between
    two retransmissions up to 120 s (RFC 6298, TCP_RTO_MAX of Linux): the connections of the ranks
    may need as long as a cut lasted to continue after it.

Defaults
    A pause that shows no sign of life stops the steps like a hang, so the finding is a warning
    first, and critical at `page_after` 4 times the limit: two minutes for a run with one-second
    steps. `warmup` 5 excludes compilation; a run that never completes a step is reported after
    `patience_first` 1800 seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from sentinel.detectors._rank_ends import ranks_in, unreported_ranks_text
from sentinel.model.finding import (
    CLEAR,
    Clear,
    DetectorDefaults,
    DetectorOutput,
    Finding,
    Scope,
    Severity,
)
from sentinel.model.number_ranges import ranges_text
from sentinel.model.rank_stack import RankStack, find_odd_ranks, parse_stacks
from sentinel.model.record import HEARTBEAT, PHASE, START, STEP, TRAINING, Record

STACK_WAIT_SECONDS = 10.0
"""Time after the limit for which a finding waits for stacks that were requested. They take 1.5 s at
most, unless the agent gets no CPU or another node does not report."""

MAX_RETRANSMISSION_SECONDS = 120.0
"""TCP_RTO_MAX of Linux: the longest time between two retransmissions."""

MAX_DESCRIBED_PLACES = 3
"""Places of ranks in the summary: the odd ones, and the largest groups of the others."""

SUSPENSIONS: Mapping[str, str] = {
    "signal": "suspended by SIGSTOP",
    "debugger": "held by a debugger",
    "freezer": "in a frozen control group",
}
"""What holds a process, by `blocked_by`, in words."""

COMPUTING = "computing"
"""Activity of a rank whose stack changes, which a collective that spins may feign."""

MAX_LISTED_PROCESSES = 16
"""Process ids in the remedy for suspended ranks."""

SINGLE_PROCESS_REMEDY = (
    "Look at the function that the process is in; the page shows its stack. If it waits for "
    "a DataLoader, check storage, memory and the worker processes, and try 0 "
    "for {number of data loader workers}. If it waits for a lock or a queue, find the thread that "
    "holds or fills it; otherwise check the device (`nvidia-smi`, `dmesg`) and the file systems."
)


LEFT_REMEDY = (
    "Look at the function that the named rank is in; its stack is on the page of the run. If that "
    "is the end of the training, it hangs while objects are destroyed: call "
    "`torch.distributed.destroy_process_group()` there. If the last checkpoint is complete, "
    "nothing is lost by ending the process."
)


@dataclass
class RunStalled(DetectorDefaults):
    """Evaluates `idle_seconds`."""

    floor: float = 30.0
    times: float = 5.0
    window: int = 200
    warmup: int = 5
    patience_first: float = 1800.0
    patience_phase: float = 1800.0
    page_after: float = 4.0

    signal = "idle_seconds"
    scope = Scope.PROCESS
    remedy = (
        "Start with the named ranks: the others wait for them in a collective. Look at the "
        "function that a named rank is in; its stack is on the page of the run. Then check GPU, "
        "network and storage of its node."
    )

    def __post_init__(self) -> None:
        self._step_intervals: deque[float] = deque(maxlen=self.window)
        self._step_count = 0
        self._last_step_time: float | None = None
        self._open_phases: list[str] = []
        self._world_size = 0
        self._node_lost_time = -inf
        self._lost_seconds = 0.0

    def update(self, record: Record) -> DetectorOutput:
        if record.event is HEARTBEAT:
            return self._evaluate(record)
        if record.event in (START, TRAINING):
            # The steps of another training take another time.
            self._step_count, self._last_step_time = 0, None
            self._step_intervals.clear()
        if record.event is START:
            self._open_phases.clear()
            self._world_size = int(record.values.get("world_size", 0))
        elif record.event is STEP:
            self._append_step(record.time)
        elif record.event is PHASE:
            self._update_phases(record)
        return None

    def _append_step(self, time: float) -> None:
        self._step_count += 1
        if self._last_step_time is not None and self._step_count > self.warmup:
            self._step_intervals.append(max(0.0, time - self._last_step_time))
        self._last_step_time = time

    def _update_phases(self, record: Record) -> None:
        name = record.attributes.get("name", "")
        if record.attributes.get("edge") == "begin":
            self._open_phases.append(name)
        elif name in self._open_phases:
            self._open_phases.remove(name)

    def _evaluate(self, record: Record) -> DetectorOutput:
        values, attributes = record.values, record.attributes
        if not values.get("ranks_running"):
            return None
        if attributes.get("blocked_by") == "node_lost":
            self._node_lost_time = record.time
            self._lost_seconds = values.get("lost_seconds", 0.0)
            return None
        max_gap = float(attributes.get("max_gap_seconds", 0.0))
        inactive = values.get("inactive_seconds", values["idle_seconds"])
        limit = max(self._step_limit(), self.times * max_gap)
        seconds_back = record.time - self._node_lost_time
        if 0.0 <= seconds_back < values["idle_seconds"]:
            # No step since: the ranks wait for their connections to continue.
            inactive = min(inactive, seconds_back)
            limit = max(limit, min(self._lost_seconds, MAX_RETRANSMISSION_SECONDS))
        if inactive <= limit:
            return self._evaluate_batches(record, inactive, limit)
        stacks = parse_stacks(attributes.get("stacks", ""))
        may_spin = self._world_size != 1 and any(stack.is_waiting for stack in stacks)
        ignored = COMPUTING if may_spin else ""
        if attributes.get("blocked_by") not in SUSPENSIONS and self._is_in_phase(
            attributes, ignored
        ):
            limit = max(limit, self.patience_phase)
            if inactive <= limit:
                return CLEAR
        is_awaiting_stacks = "stacks_pending" in attributes and "blocked_by" not in attributes
        if is_awaiting_stacks and inactive <= limit + STACK_WAIT_SECONDS:
            return None
        return self._finding(record, stacks, inactive, limit)

    def _evaluate_batches(self, record: Record, inactive: float, limit: float) -> Clear | Finding:
        """Whether there are signs of life, but no step for too long."""
        attributes = record.attributes
        limit = max(limit, self.page_after * self.patience_phase)
        if record.values["idle_seconds"] <= limit or self._is_in_phase(attributes, COMPUTING):
            return CLEAR
        return self._finding(record, parse_stacks(attributes.get("stacks", "")), inactive, limit)

    def _step_limit(self) -> float:
        if not self._step_intervals:
            return self.patience_first
        ordered = sorted(self._step_intervals)
        slowest = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return max(self.floor, self.times * slowest)

    def _is_in_phase(self, attributes: Mapping[str, str], ignored: str) -> bool:
        """Whether a phase is declared, or one was noticed that is not `ignored`."""
        activities = {*attributes.get("activity", "").split(",")} - {"", ignored}
        return bool(self._open_phases or activities)

    def _finding(
        self, record: Record, stacks: list[RankStack], inactive: float, limit: float
    ) -> Finding:
        values, attributes = record.values, record.attributes
        behind = tuple(ranks_in(attributes, "straggler_ranks"))
        suspension = SUSPENSIONS.get(attributes.get("blocked_by", ""), "")
        all_behind = "all_behind" in attributes
        is_alone = self._world_size == 1
        named: tuple[int, ...] = () if all_behind else behind
        if not suspension:
            named = find_odd_ranks(stacks, behind) or named
        if is_alone:
            named = behind
        idle = values["idle_seconds"]
        stall = "No step has followed" if is_alone else "No rank has passed"
        where = _where_text(named, stacks, suspension=suspension, is_alone=is_alone)
        # A suspended rank is the cause, whatever others have sent.
        unreported = "" if suspension else unreported_ranks_text(attributes)
        running = int(values["ranks_running"])
        ended = self._world_size - running if not unreported else 0
        if is_left := 0 < running == len(behind) and ended > 0 and not suspension:
            where += f"; {'the other rank has' if ended == 1 else 'the other ranks have'} ended"
        summary = f"{stall} step {record.step} for {idle:.0f} s (limit {limit:.0f} s){where}."
        return Finding(
            summary=f"{summary} {unreported}".rstrip(),
            evidence={
                "seconds_since_last_step": idle,
                **({"seconds_without_activity": inactive} if inactive < idle else {}),
                "limit_seconds": limit,
                "ranks_behind": ",".join(map(str, named or behind)),
                "last_step_of_ranks_behind": attributes.get("straggler_step", ""),
                **({"ranks_without_data": attributes["unreported_ranks"]} if unreported else {}),
                **{
                    f"stack_of_rank{'s' if len(stack.ranks) > 1 else ''}_"
                    f"{ranges_text(stack.ranks).replace(', ', ',')}": stack.format_frames()
                    for stack in _odd_first(stacks, named)[:MAX_DESCRIBED_PLACES]
                },
            },
            severity=Severity.CRITICAL
            if inactive > self.page_after * limit
            or attributes.get("blocked_by") in ("signal", "freezer")
            else Severity.WARNING,
            rank=named[0] if named else None,
            remedy=_suspension_remedy(attributes)
            if suspension
            else LEFT_REMEDY
            if is_left
            else SINGLE_PROCESS_REMEDY
            if is_alone
            else None,
        )


def _odd_first(stacks: Sequence[RankStack], named: tuple[int, ...]) -> list[RankStack]:
    """The stacks of the named ranks first, then the others by the number of their ranks."""
    return sorted(stacks, key=lambda stack: (set(named).isdisjoint(stack.ranks), -len(stack.ranks)))


def _where_text(
    named: tuple[int, ...], stacks: Sequence[RankStack], *, suspension: str, is_alone: bool
) -> str:
    """The end of the summary: the ranks that block the run and where ranks are, if known."""
    verb = "is" if len(named) == 1 else "are"
    subject = f"rank{'' if verb == 'is' else 's'} {ranges_text(named)} {verb}"
    if suspension:
        return f": {'the process is' if is_alone else subject} {suspension}"
    shown = _odd_first(stacks, named)[:MAX_DESCRIBED_PLACES]
    if shown:
        return ": " + "; ".join(stack.describe(is_alone=is_alone) for stack in shown)
    if named and not is_alone:
        return f": {subject} behind"
    return ""


def _suspension_remedy(attributes: Mapping[str, str]) -> str:
    """How to continue the suspended processes, and who may have suspended them."""
    pids: dict[str, list[str]] = {}
    for process in attributes.get("suspended_processes", "").split(",")[:MAX_LISTED_PROCESSES]:
        _, _, address = process.partition(":")
        pid, _, host = address.partition(":")
        pids.setdefault(host, []).append(pid or "PID")
    listed = "; ".join(
        f"{', '.join(own)}{f' on {host}' if host else ''}" for host, own in pids.items()
    )
    if attributes.get("blocked_by") == "freezer":
        return (
            f"Its control group is frozen (process {listed}): thaw it with `docker unpause`, "
            "`scontrol resume`, or 0 in its file `cgroup.freeze`. Then find out who froze it: a "
            "scheduler, a person or a backup of the container."
        )
    if attributes.get("blocked_by") == "debugger":
        return (
            f"A debugger or `strace` holds the process ({listed}): let it continue, or detach it. "
            "The run goes on by itself then."
        )
    commands = ", ".join(
        f"`kill -CONT {' '.join(own)}`{f' on {host}' if host else ''}" for host, own in pids.items()
    )
    return (
        f"Continue it: {commands}. Then find out who suspended it: a scheduler (`scontrol "
        "suspend`), Ctrl-Z in its terminal, a debugger, or a program that sends SIGSTOP. If it "
        "stays suspended, its control group is frozen (`cgroup.freeze`, `docker unpause`)."
    )
