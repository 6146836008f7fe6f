"""Checks of the live runs of this machine: agent, client errors, dropped values and patches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sentinel.agent.discovery import DiscoveredRun, query_agent, registration_files
from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.doctor.nodes import check_nodes
from sentinel.metrics.reported_metadata import patch_state
from sentinel.transport.paths import (
    START_LOG_NAME,
    home_dir,
    is_agent_running,
    is_home_remote,
    list_shared_rings,
    shared_run_dir,
)
from sentinel.transport.ring import read_header
from sentinel.transport.ring_layout import DROP_REASONS, MAX_CLIENT_ERRORS, RingHeader

VALID_VALUE_DROPS = frozenset({"pending", "busy", "too_large", "too_many_names", "error"})
"""Drop reasons of values that were valid in themselves."""


def check_runs() -> Iterator[CheckResult]:
    """Results for each run with live ranks or a registered agent."""
    answers = [query_agent(path) for path in registration_files()]
    agents = {answer.run: answer for answer in answers}
    headers = _live_headers()
    if not agents and not headers:
        yield ok("runs", "none at present")
    for run in sorted(agents.keys() | headers.keys()):
        yield _check_agent(run, agents.get(run), headers.get(run, []))
        for header in headers.get(run, []):
            yield from _check_rank(run, header)
        if run in agents:
            yield from _check_deliveries(run, agents[run])
            yield from _check_storage(run, agents[run])
            yield from _check_patches(run, agents[run])
            yield from check_nodes(run, agents[run].state)


def _live_headers() -> dict[str, list[RingHeader]]:
    """Ring headers of all live ranks by run."""
    headers: defaultdict[str, list[RingHeader]] = defaultdict(list)
    home_rings = [] if is_home_remote() else sorted((home_dir() / "runs").glob("*/*.ring"))
    for path in [*list_shared_rings(), *home_rings]:
        header = read_header(path)
        if header is not None and header.process.is_alive():
            headers[header.identity.run].append(header)
    return headers


def _check_agent(run: str, agent: DiscoveredRun | None, ranks: list[RingHeader]) -> CheckResult:
    subject = f"run {run}"
    if agent is not None and agent.state:
        return ok(subject, f"{agent.state.get('state')}, monitored at {agent.url}")
    if agent is not None:
        grade = fail if ranks else warn
        return grade(subject, agent.problem, agent.remedy)
    if is_agent_running(shared_run_dir(run)):
        return ok(subject, f"{_count(ranks)} alive; the agent is starting")
    log = shared_run_dir(run) / START_LOG_NAME
    where = f"{log}" if log.exists() else "agent.log in the run's state directory"
    remedy = f"start sentinel agent --run {run}; see {where}"
    return fail(subject, f"{_count(ranks)} alive, but no agent monitors them", remedy)


def _count(ranks: list[RingHeader]) -> str:
    return "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _check_rank(run: str, header: RingHeader) -> Iterator[CheckResult]:
    subject = f"run {run}, rank {header.identity.rank}"
    if header.errors >= MAX_CLIENT_ERRORS:
        remedy = "please report it; @sentinel.monitor(strict=True) raises the error where it occurs"
        yield fail(subject, f"the client is off after {header.errors} internal errors", remedy)
    elif header.errors:
        remedy = "training is not affected; @sentinel.monitor(strict=True) shows where it occurs"
        yield fail(subject, f"{header.errors} internal errors of the client", remedy)
    dropped = {r: n for r, n in zip(DROP_REASONS, header.drop_counts, strict=True) if n}
    if dropped:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        grade = fail if VALID_VALUE_DROPS & dropped.keys() else warn
        remedy = "log numbers under short names from one thread; /metrics has drops by reason"
        yield grade(subject, f"values dropped: {counts}", remedy)


def _check_deliveries(run: str, agent: DiscoveredRun) -> Iterator[CheckResult]:
    for problem in agent.state.get("delivery_problems", []):
        grade = fail if problem["given_up"] else warn
        yield grade(f"run {run}, notifications", problem["text"], problem["remedy"])


def _check_storage(run: str, agent: DiscoveredRun) -> Iterator[CheckResult]:
    storage = agent.state.get("storage", {})
    if storage.get("text"):
        yield warn(f"run {run}, storage", storage["text"], storage["remedy"])


def _check_patches(run: str, agent: DiscoveredRun) -> Iterator[CheckResult]:
    for name, ranks_by_state in sorted(agent.state.get("patches", {}).items()):
        for state, ranks in sorted(ranks_by_state.items()):
            if patch_state(state) == "on":
                continue
            shown = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
            remedy = "use a tested version of the framework, or report this one"
            yield fail(f"run {run}, patch {name}", f"{state} (rank {shown})", remedy)
