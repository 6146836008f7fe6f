"""Runs: those of this machine that are alive, whether somebody watches them, and what was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sentinel.agent.discovery import DiscoveredRun, query_agent, registration_files
from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.doctor.nodes import check_nodes
from sentinel.doctor.settings_check import api_token
from sentinel.metrics.run_state import patch_state
from sentinel.transport.paths import home_dir, list_shared_rings
from sentinel.transport.ring import RingError, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, MAX_CLIENT_ERRORS, RingHeader
from sentinel.transport.run_lock import is_lock_held

VALID_VALUE_DROPS = frozenset({"pending", "busy", "too_large", "too_many_names", "error"})
"""Reasons for which values were dropped that were sound in themselves."""


def check_runs() -> Iterator[CheckResult]:
    """Each run whose ranks are alive or whose agent announced itself."""
    word = api_token()
    told = {path.parent.name: query_agent(path, word) for path in registration_files()}
    alive = _live_headers()
    if not told and not alive:
        yield ok("runs", "none at the moment")
    for run in sorted(told.keys() | alive.keys()):
        yield _check_agent(run, told.get(run), alive.get(run, []))
        for header in alive.get(run, []):
            yield from _check_rank(run, header)
        if run in told:
            yield from _check_patches(run, told[run])
            yield from check_nodes(run, told[run].state)


def _live_headers() -> dict[str, list[RingHeader]]:
    """The headers of the rings of every rank that lives, by run."""
    found: defaultdict[str, list[RingHeader]] = defaultdict(list)
    for path in [*list_shared_rings(), *sorted((home_dir() / "runs").glob("*/*.ring"))]:
        header = _read_header(path)
        if header is not None and header.process.is_alive():
            found[header.identity.run].append(header)
    return found


def _read_header(path: Path) -> RingHeader | None:
    try:
        reader = RingReader(path)
    except (RingError, OSError):
        return None
    try:
        return reader.read_header()
    finally:
        reader.close()


def _check_agent(run: str, served: DiscoveredRun | None, ranks: list[RingHeader]) -> CheckResult:
    subject = f"run {run}"
    if served is not None and served.state:
        return ok(subject, f"{served.state.get('state')}, watched at {served.url}")
    if served is not None:
        grade = fail if ranks else warn
        return grade(subject, served.problem, served.remedy)
    if is_lock_held(home_dir() / "runs" / run / "agent.lock"):
        return ok(subject, f"{len(ranks)} ranks alive, and its agent is starting")
    remedy = f"sentinel agent --run {run} takes over; agent.log in its folder may say what happened"
    return fail(subject, f"{len(ranks)} ranks alive, and nobody watches it", remedy)


def _check_rank(run: str, header: RingHeader) -> Iterator[CheckResult]:
    subject = f"run {run}, rank {header.identity.rank}"
    if header.errors >= MAX_CLIENT_ERRORS:
        remedy = "tell us of it; @sentinel.monitor(strict=True) raises the error where it happens"
        yield fail(subject, f"the hook is off after {header.errors} errors of ours", remedy)
    elif header.errors:
        remedy = "training is not affected; @sentinel.monitor(strict=True) shows where it happens"
        yield fail(subject, f"{header.errors} errors of ours were swallowed", remedy)
    dropped = {r: n for r, n in zip(DROP_REASONS, header.drop_counts, strict=True) if n}
    if dropped:
        said = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        grade = fail if VALID_VALUE_DROPS & dropped.keys() else warn
        remedy = "log numbers under short names, on one thread; drops by reason are on /metrics"
        yield grade(subject, f"values refused or dropped: {said}", remedy)


def _check_patches(run: str, served: DiscoveredRun) -> Iterator[CheckResult]:
    for name, said in sorted(served.state.get("patches", {}).items()):
        for state, ranks in sorted(said.items()):
            if patch_state(state) == "on":
                continue
            who = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
            remedy = "use a version of its framework that was tested, or tell us of this one"
            yield fail(f"run {run}, tap {name}", f"{state} (rank {who})", remedy)
