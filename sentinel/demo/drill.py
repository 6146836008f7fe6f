"""A drill: a run of its own in which a fault is injected, to test where its notifications arrive.

Two processes log steps, and agents with the user's settings and sinks watch them. Everything else
is apart from real runs: a temporary SENTINEL_HOME, rings of its own, and a run id that begins with
`chaos-`. All processes end with the drill, also if it is killed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sentinel.client.spawn import agent_environment
from sentinel.config.route import Route
from sentinel.config.settings import Settings
from sentinel.demo.drill_faults import DrillFault
from sentinel.demo.sandbox import STOP_TIMEOUT_SECONDS, IsolatedRun, terminate
from sentinel.model.finding import Severity
from sentinel.model.incident import RunTier
from sentinel.model.quantity_text import format_time
from sentinel.notify import outbox
from sentinel.store.database import connect_read_only
from sentinel.store.run_reader import RunReader
from sentinel.store.silences import Suppression
from sentinel.transport.launch_status import LAUNCHER_PID_VARIABLE
from sentinel.transport.paths import DATABASE_NAME

NUM_RANKS = 2
WARM_UP_STEPS = 150
"""Steps before the fault, from which detectors know the usual values."""
START_TIMEOUT_SECONDS = 60.0
POLL_INTERVAL_SECONDS = 0.1
JOB_VARIABLES = (
    "SENTINEL_RUN_ID",
    LAUNCHER_PID_VARIABLE,
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)
"""Variables of a training job: the processes of a drill would count as its ranks."""
_SCRIPT_NAME = "drill.py"
_SETTLE_SECONDS = 3.0
"""Time after the hold of a case within which its severity usually has risen."""
_OPENINGS = ("opened", "escalated")


class DrillError(RuntimeError):
    """The drill cannot be run; the message contains the remedy."""


@dataclass(frozen=True, slots=True)
class DrillEvent:
    """What happened: `kind`, a sentence, and further fields for programs.

    `seconds` count from the start of the drill.
    """

    kind: str
    seconds: float
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Delivery:
    """The delivery of a notification to one sink.

    `state` is "" while it is not decided, `delivered`, `dead`, `held_back`, or `late` after the
    timeout. `seconds` is the time from the fault, or its end, to the acceptance.
    """

    state: str = ""
    detail: str = ""
    seconds: float | None = None


@dataclass
class _Node(IsolatedRun):
    """One node of the drill, and its ranks by number."""

    ranks: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def database(self) -> Path:
        return self.run_directory / DATABASE_NAME


class Drill:
    """Context manager of one drill with the user's `settings`; `config` is their file, if given.

    `timeout` is how long a detection and a delivery may take, in seconds.
    """

    def __init__(
        self, fault: DrillFault, settings: Settings, config: Path | None, timeout: float
    ) -> None:
        self.fault, self.settings, self.config, self.timeout = fault, settings, config, timeout
        self.run = f"chaos-{fault.name}-{secrets.token_hex(3)}"
        self.folder = Path(tempfile.mkdtemp(prefix="sentinel-chaos-"))
        self.nodes = [_Node(self.folder / str(number)) for number in range(fault.nodes)]
        self.sinks = list(settings.sinks)
        self.openings: dict[str, Delivery] = {}
        self.closings: dict[str, Delivery] = {}
        self._port = _free_port()
        self._began = self._fault_time = time.time()
        self._case = ""
        self._severity = Severity.CRITICAL
        self._detected_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The ranks end by themselves, since an end by a signal would be notified too.
        for rank in self._ranks():
            if rank.stdin is not None:
                with suppress(BrokenPipeError):
                    rank.stdin.close()
        for rank in self._ranks():
            with suppress(subprocess.TimeoutExpired):
                rank.wait(STOP_TIMEOUT_SECONDS)
        terminate([agent for node in self.nodes if (agent := node.agent) is not None])
        for rank in self._ranks():
            rank.kill()
            rank.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def passed(self) -> bool:
        """Whether every sink accepted the opening and the closing."""
        found = [self.openings.get(sink) for sink in self.sinks]
        found += [self.closings.get(sink) for sink in self.sinks]
        return all(each is not None and each.state == "delivered" for each in found)

    def events(self) -> Iterator[DrillEvent]:
        """Run the drill; yields what happens. Raises DrillError if the run does not start."""
        shutil.copyfile(Path(__file__).with_name("drill_rank.py"), self.folder / _SCRIPT_NAME)
        for node in self.nodes:
            node.folder.mkdir()
        self._start_ranks()
        self._await_warm_up()
        yield self._event("started", f"{NUM_RANKS} processes log steps, and an agent watches them")
        self._inject()
        yield self._event("injected", self.fault.description, fault=self.fault.name)
        incident = self._await_incident()
        if incident is None:
            yield self._event("undetected", self._why_undetected())
            return
        yield self._detected(incident)
        yield from self._await_deliveries(_OPENINGS, self.openings)
        if not any(each.state == "delivered" for each in self.openings.values()):
            return
        self._recover()
        yield self._event("recovered", "the fault is over, and training continues")
        yield from self._await_deliveries(("resolved",), self.closings)

    # Processes

    def _start_ranks(self, last_step: int = 0) -> None:
        for rank in range(NUM_RANKS):
            node = self.nodes[rank % len(self.nodes)]
            with (node.folder / "output").open("ab") as output:
                node.ranks[rank] = subprocess.Popen(  # noqa: S603 - our own command line
                    [sys.executable, "-P", str(self.folder / _SCRIPT_NAME), str(last_step)],
                    env=self._environment(node, rank),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )

    def _environment(self, node: _Node, rank: int) -> dict[str, str]:
        variables = node.variables | {
            "SENTINEL_RUN_ID": self.run,
            "SENTINEL_DRILL": "true",
            "RANK": str(rank),
            "WORLD_SIZE": str(NUM_RANKS),
            "LOCAL_RANK": str(rank if len(self.nodes) == 1 else 0),
            "LOCAL_WORLD_SIZE": str(NUM_RANKS // len(self.nodes)),
        }
        if len(self.nodes) > 1:
            variables |= {
                "GROUP_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._port),
                "SENTINEL_CLUSTER__HEAD": f"127.0.0.1:{self._port}",
            }
        return agent_environment({**os.environ, **variables}, self.config)

    def _ranks(self) -> list[subprocess.Popen[bytes]]:
        return [process for node in self.nodes for process in node.ranks.values()]

    def _send_command(self, rank: int, command: str) -> None:
        process = self.nodes[rank % len(self.nodes)].ranks[rank]
        if command and process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.write(f"{command}\n".encode())
                process.stdin.flush()

    def _inject(self) -> None:
        self._fault_time = time.time()
        kills, node = self.fault.kills, self.nodes[-1]
        self._send_command(0, self.fault.peer_command)
        if kills in ("agent", "node") and (agent := node.agent) is not None:
            agent.kill()
        if kills in ("rank", "node", "ranks"):
            node.ranks[1].kill()
        if kills == "ranks":
            node.ranks[0].kill()
        self._send_command(1, self.fault.command)

    def _recover(self) -> None:
        self._fault_time = time.time()
        if self.fault.restarts:
            last_step = self._step()
            self._send_command(0, "lost_peer")
            for rank in self._ranks():
                with suppress(subprocess.TimeoutExpired):
                    rank.wait(STOP_TIMEOUT_SECONDS)
                rank.kill()
                rank.wait()
            self._start_ranks(last_step)
        else:
            self._send_command(0, "recover")
            self._send_command(1, "recover")

    # State of the agent

    def _await_warm_up(self) -> None:
        def is_warm() -> bool:
            if any(rank.poll() is not None for rank in self._ranks()):
                raise DrillError(f"a process of the drill ended: {self._last_output()}")
            return (
                all(node.agent is not None for node in self.nodes) and self._step() >= WARM_UP_STEPS
            )

        if not _wait_until(is_warm, START_TIMEOUT_SECONDS * len(self.nodes)):
            raise DrillError(
                f"no agent evaluated the run within {START_TIMEOUT_SECONDS:.0f} s: "
                f"{self._last_output()}"
            )

    def _step(self) -> int:
        if not self.nodes[0].is_registered:
            return 0
        state = self.nodes[0].query().state
        is_complete = len(self.nodes) == 1 or len(state.get("cluster", {}).get("nodes", ())) > 1
        return int(state.get("step") or 0) if is_complete else 0

    def _last_output(self) -> str:
        paths = [node.run_directory / "agent.log" for node in self.nodes]
        paths += [node.folder / "output" for node in self.nodes]
        texts = [path.read_text(errors="replace") for path in paths if path.exists()]
        lines = "\n".join(texts).strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def _await_incident(self) -> dict[str, Any] | None:
        found: list[dict[str, Any]] = []

        def is_found() -> bool:
            found[:] = [
                each
                for each in self._incidents()
                if each["detector"] == self.fault.detector and each["state"] != "pending"
            ]
            return bool(found)

        _wait_until(is_found, self.fault.seconds + self.timeout)
        return found[-1] if found else None

    def _incidents(self) -> list[dict[str, Any]]:
        with suppress(sqlite3.Error, OSError):
            return RunReader(self.nodes[0].database).incidents()
        return []

    def _detected(self, incident: Mapping[str, Any]) -> DrillEvent:
        self._case = incident.get("case") or incident["name"]
        self._severity, self._detected_at = Severity(incident["severity"]), time.monotonic()
        delay = max(0.0, time.time() - self._fault_time)
        text = (
            f"{incident['detector']}, {incident['severity']}: {incident['summary']} "
            f"({delay:.1f} s after the fault)"
        )
        return self._event(
            "detected",
            text,
            detector=incident["detector"],
            severity=incident["severity"],
            summary=incident["summary"],
            delay_seconds=round(delay, 2),
        )

    def _why_undetected(self) -> str:
        detector = self.fault.detector
        if detector in self.settings.disable:
            return f"nothing is detected: the setting `disable` switches {detector} off"
        seconds = self.fault.seconds + self.timeout
        return f"{detector} has found nothing within {seconds:.0f} s: {self._last_output()}"

    # Deliveries

    def _await_deliveries(
        self, reasons: tuple[str, ...], deliveries: dict[str, Delivery]
    ) -> Iterator[DrillEvent]:
        """Wait until the notification is decided for each sink; yields each decision."""
        word = "opening" if reasons == _OPENINGS else "closing"
        for sink in self.sinks:
            deliveries[sink] = Delivery()
            if word == "closing" and self.openings[sink].state != "delivered":
                opening = self.openings[sink]
                deliveries[sink] = Delivery(opening.state, "it has no opening")
        deadline = time.monotonic() + self.timeout
        while undecided := [sink for sink in self.sinks if not deliveries[sink].state]:
            is_late = time.monotonic() >= deadline
            for sink in undecided:
                self._decide(sink, reasons, deliveries[sink], is_late=is_late)
                if deliveries[sink].state:
                    yield self._delivery_event(sink, word, deliveries[sink])
            time.sleep(POLL_INTERVAL_SECONDS)

    def _decide(
        self, sink: str, reasons: tuple[str, ...], delivery: Delivery, *, is_late: bool
    ) -> None:
        rows = [row for row in self._outbox(sink) if row.reason in reasons]
        accepted = [row for row in rows if row.state == "delivered"]
        waiting = [row for row in rows if row.state in ("queued", "sending")]
        if accepted:
            delivery.state = "delivered"
            delivery.seconds = max(0.0, (accepted[0].finished_at or 0.0) - self._fault_time)
        elif rows and not waiting:
            # What another notification replaced has the fate of that one.
            row = next((each for each in reversed(rows) if each.state != "merged"), rows[-1])
            delivery.state = "dead" if row.state == "dead" else "held_back"
            delivery.detail = row.last_error or _held_state(row)
        elif not rows and reasons == _OPENINGS and (why := self._why_never_queued(sink)):
            delivery.state, delivery.detail = "held_back", why
        elif is_late:
            delivery.state = "late"
            error = waiting[-1].last_error if waiting else ""
            delivery.detail = f"last answer: {error}" if error else "nothing was sent"

    def _why_never_queued(self, sink: str) -> str:
        """Why the sink does not get the opening; empty while that may still change."""
        for each in self._incidents():
            if self._case in (each.get("case"), each["name"]):
                self._severity = min(
                    self._severity, Severity(each["severity"]), key=lambda known: known.order
                )
        waited = time.monotonic() - self._detected_at
        is_final = waited > self.settings.hold_seconds + _SETTLE_SECONDS
        return self._why_held_back(sink) if is_final else ""

    def _outbox(self, sink: str) -> list[outbox.DeliveryRow]:
        try:
            with closing(connect_read_only(self.nodes[0].database)) as db:
                return outbox.deliveries_of(db, sink, self._case)
        except (sqlite3.Error, OSError):
            return []

    def _why_held_back(self, sink: str) -> str:
        """Which setting keeps the notification from that sink; empty if none does."""
        tier = RunTier(self.settings.tier)
        if tier is RunTier.QUIET:
            return "the setting `tier` is quiet"
        if self._severity is Severity.INFO:
            return "nothing is sent for severity info"
        route = self.settings.routes.get(sink, Route())
        severity = Suppression(tier).notified_severity(self._severity)
        if route.permits(self.run, self.settings.team, severity):
            return ""
        if severity.order > Severity(route.min_severity).order:
            return f"its `min_severity` is {route.min_severity}, and this is {severity.value}"
        if route.teams and self.settings.team not in route.teams:
            return f"its `teams` do not contain {self.settings.team or 'a run without a team'}"
        return f'its `runs` match no drill: add "chaos-*" to include {self.run}'

    def _delivery_event(self, sink: str, word: str, delivery: Delivery) -> DrillEvent:
        if delivery.state == "delivered":
            since = "the fault" if word == "opening" else "its end"
            text = f"{sink} accepted the {word}, {delivery.seconds:.1f} s after {since}"
        elif delivery.state == "held_back":
            text = f"{sink} does not get the {word}: {delivery.detail}"
        elif delivery.state == "dead":
            text = (
                f"{sink} rejected the {word} ({delivery.detail}): "
                f"`sentinel notify test --sink {sink}` shows the remedy"
            )
        else:
            text = f"{sink} has not accepted the {word} in {self.timeout:.0f} s: {delivery.detail}"
        return self._event(
            "delivery",
            text,
            sink=sink,
            notification="opened" if word == "opening" else "resolved",
            state=delivery.state,
            detail=delivery.detail,
            latency_seconds=None if delivery.seconds is None else round(delivery.seconds, 2),
        )

    def _event(self, kind: str, text: str, **fields: Any) -> DrillEvent:
        return DrillEvent(kind, max(0.0, time.time() - self._began), text, fields)


def job_variable(environ: Mapping[str, str]) -> str:
    """A variable of a training job in this environment; empty if there is none."""
    return next((name for name in JOB_VARIABLES if environ.get(name)), "")


def _held_state(row: outbox.DeliveryRow) -> str:
    if row.state == "withheld":
        return f"its `quiet_hours` last until {format_time(row.next_at)}"
    if row.state == "digested":
        return "`max_notifications_per_hour` is exceeded"
    return f"it was {row.state}"


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_INTERVAL_SECONDS)
    return True


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
