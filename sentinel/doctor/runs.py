"""Runs: those of this machine that are alive, whether somebody watches them, and what was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sentinel.agent.discovery import Served, announced, ask
from sentinel.doctor.check_result import Remark, mend, note, well
from sentinel.doctor.nodes import nodes
from sentinel.doctor.settings_check import token
from sentinel.metrics.run_state import tap_state
from sentinel.transport.paths import home, shared_rings
from sentinel.transport.ring import RingError, RingReader
from sentinel.transport.ring_layout import DROP_REASONS, ERRORS_BEFORE_OFF, Header
from sentinel.transport.run_lock import held

NEVER_READY = frozenset({"pending", "busy", "too_large", "too_many_names", "error"})
"""Reasons for which values were dropped that were sound in themselves."""


def runs() -> Iterator[Remark]:
    """Each run whose ranks are alive or whose agent announced itself."""
    word = token()
    told = {path.parent.name: ask(path, word) for path in announced()}
    alive = _alive()
    if not told and not alive:
        yield well("runs", "none at the moment")
    for run in sorted(told.keys() | alive.keys()):
        yield _watched(run, told.get(run), alive.get(run, []))
        for header in alive.get(run, []):
            yield from _lost(run, header)
        if run in told:
            yield from _taps(run, told[run])
            yield from nodes(run, told[run].state)


def _alive() -> dict[str, list[Header]]:
    """The headers of the rings of every rank that lives, by run."""
    found: defaultdict[str, list[Header]] = defaultdict(list)
    for path in [*shared_rings(), *sorted((home() / "runs").glob("*/*.ring"))]:
        header = _header(path)
        if header is not None and header.process.alive():
            found[header.identity.run].append(header)
    return found


def _header(path: Path) -> Header | None:
    try:
        reader = RingReader(path)
    except (RingError, OSError):
        return None
    try:
        return reader.header()
    finally:
        reader.close()


def _watched(run: str, served: Served | None, ranks: list[Header]) -> Remark:
    subject = f"run {run}"
    if served is not None and served.state:
        return well(subject, f"{served.state.get('state')}, watched at {served.url}")
    if served is not None:
        grade = mend if ranks else note
        return grade(subject, served.trouble, served.remedy)
    if held(home() / "runs" / run / "agent.lock"):
        return well(subject, f"{len(ranks)} ranks alive, and its agent is starting")
    remedy = f"sentinel agent --run {run} takes over; agent.log in its folder may say what happened"
    return mend(subject, f"{len(ranks)} ranks alive, and nobody watches it", remedy)


def _lost(run: str, header: Header) -> Iterator[Remark]:
    subject = f"run {run}, rank {header.identity.rank}"
    if header.errors >= ERRORS_BEFORE_OFF:
        remedy = "tell us of it; @sentinel.monitor(strict=True) raises the error where it happens"
        yield mend(subject, f"the hook is off after {header.errors} errors of ours", remedy)
    elif header.errors:
        remedy = "training is not affected; @sentinel.monitor(strict=True) shows where it happens"
        yield mend(subject, f"{header.errors} errors of ours were swallowed", remedy)
    dropped = {r: n for r, n in zip(DROP_REASONS, header.drops, strict=True) if n}
    if dropped:
        said = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        grade = mend if NEVER_READY & dropped.keys() else note
        remedy = "log numbers under short names, on one thread; drops by reason are on /metrics"
        yield grade(subject, f"values refused or dropped: {said}", remedy)


def _taps(run: str, served: Served) -> Iterator[Remark]:
    for name, said in sorted(served.state.get("taps", {}).items()):
        for state, ranks in sorted(said.items()):
            if tap_state(state) == "on":
                continue
            who = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
            remedy = "use a version of its framework that was tested, or tell us of this one"
            yield mend(f"run {run}, tap {name}", f"{state} (rank {who})", remedy)
