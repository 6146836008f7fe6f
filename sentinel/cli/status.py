"""`sentinel status`: runs, live and past, and their open incidents."""

from __future__ import annotations

import json as jsonlib
import time
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from math import isfinite, nan
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli._options import complete_run, error_exit, resolve_argument
from sentinel.cli._terminal import can_print, escape_unprintable

if TYPE_CHECKING:
    from pathlib import Path

    from sentinel.store.run_reader import RunReader

UNREACHABLE = "unreachable"
NEWEST_SHOWN = 5
"""Runs that ended, shown if no run has an agent."""
CURVE_WIDTH = 48
MAX_CURVES = 8
MAX_CLOSED_CASES = 8
MIN_INTERVAL_SECONDS = 0.2


def status(  # noqa: PLR0913, PLR0917 - each is an option
    run: Annotated[
        str | None,
        typer.Argument(
            help="Run id, live or past; by default, every run with an agent.",
            autocompletion=complete_run,
            callback=resolve_argument,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List all runs, those that ended too.")
    ] = False,
    filter_text: Annotated[
        str,
        typer.Option("--filter", help="With --all: words, or state:failed, tag:x, project:y."),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again.")] = False,
    interval: Annotated[
        float, typer.Option(min=MIN_INTERVAL_SECONDS, help="Seconds between two looks of --watch.")
    ] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")] = False,
) -> None:
    """Show runs: what they train, their step, and their open incidents.

    Without arguments, runs with an agent. --all lists all runs of this user, the newest first.
    --watch ends with Ctrl-C, or with the run; if the output is no terminal, it prints what changed.

    Exit status: 0, whatever the state of the runs; 2 if there is no such run.
    """
    if run is not None and (every or filter_text):
        raise error_exit("status", "give a run, or --all.")
    if watch:
        from sentinel.cli._live_status import watch_run, watch_runs

        if run is not None:
            watch_run(lambda: find_run(run), interval, json=json)
        else:
            watch_runs(filter_text, interval, is_all=every or bool(filter_text), json=json)
    elif run is not None:
        _print_one(find_run(run), json=json)
    elif every or filter_text:
        from sentinel.cli._run_table import print_rows, read_rows

        print_rows(read_rows(filter_text), json=json)
    else:
        _print_agents(json=json)


def _print_agents(*, json: bool) -> None:
    from sentinel.agent.discovery import query_agent, registration_files
    from sentinel.transport.paths import home_dir

    runs = [_to_dict(query_agent(path)) for path in registration_files()]
    for run in runs:
        print(jsonlib.dumps(run) if json else "\n".join(_format_run(run)))
    if runs or json:
        return
    from sentinel.cli._run_table import print_rows, read_rows

    print(f"No run has an agent under {home_dir()}.")
    rows = read_rows("", max_completed=NEWEST_SHOWN)
    if rows:
        count = min(len(rows), NEWEST_SHOWN)
        print(f"The newest {count} of {len(rows)} runs (`sentinel status --all` lists all):")
        print_rows(rows[:NEWEST_SHOWN], json=False)


def _print_one(found: dict[str, Any], *, json: bool) -> None:
    if json:
        print(jsonlib.dumps(found))
        return
    for line in format_one(found):
        print(line)


def format_one(found: dict[str, Any], *, has_curves: bool = True) -> Iterator[str]:
    """The lines about one run, its cases that are over, and curves of its main signals."""
    yield from _format_run(found)
    for case in found["closed_cases"]:
        steps = f"steps {case['onset_step']} to {case['resolved_step']}"
        text = f"{case['severity']} {case['subject']}, {steps}: {case['resolution']}"
        yield f"  {escape_unprintable(text)}"
    if has_curves:
        yield from _curve_lines(found["run"])


def find_run(run: str) -> dict[str, Any]:
    """The state of a run from its agent, or from its database if no agent answers.

    Exits with an error if there is no such run, or its database cannot be read.
    """
    from sqlite3 import DatabaseError

    from sentinel.agent import run_lookup
    from sentinel.cli._run_database import run_database_path
    from sentinel.store.database import NewerSchemaError

    path = run_database_path("status", run)
    try:
        found = run_lookup.find_run(run)
    except (NewerSchemaError, DatabaseError) as error:
        raise error_exit("status", f"cannot use {path}: {error}") from None
    return _to_dict(found) | {"closed_cases": _closed_cases(run)}


def _curve_lines(run: str) -> Iterator[str]:
    """Curves of the main signals with their newest values, a line each; none without a database."""
    from sentinel.cli._sparkline import sparkline
    from sentinel.model.quantity_text import format_number

    reader = _reader(run)
    if reader is None:
        return
    main = [each for each in reader.signals() if each["group"] == "main"][:MAX_CURVES]
    answer = reader.series([each["name"] for each in main], points=2 * CURVE_WIDTH)
    width = max((len(each["name"]) for each in main), default=0)
    for each in main:
        found = answer["series"].get(each["name"], {"x": [], "mean": [], "bad": [], "attempt": []})
        values = _with_gaps(found, answer["trainings"])
        drawn = sparkline(values, CURVE_WIDTH, ascii_only=not can_print("▁"))
        latest = "" if each["latest"] is None else format_number(each["latest"])
        yield escape_unprintable(f"  {each['name']:<{width}}  {drawn}  {latest}".rstrip())


def _with_gaps(points: dict[str, Any], trainings: list[int]) -> list[float | None]:
    """The values of a series, with a gap between trainings that is wide enough to be seen."""
    bad, columns = (
        set(points["bad"]),
        zip(*(points[k] for k in ("x", "mean", "attempt")), strict=True),
    )
    gap = 2 * -(-len(points["x"]) // CURVE_WIDTH)
    values: list[float | None] = []
    before = 0
    for x, value, segment in columns:
        training = bisect_right(trainings, segment)
        values += [None] * gap if values and training != before else []
        values.append(nan if x in bad else value)
        before = training
    return values


def _closed_cases(run: str) -> list[dict[str, Any]]:
    """The cases that are over, the newest first."""
    reader = _reader(run)
    if reader is None:
        return []
    return [
        {
            "severity": case["severity"],
            "subject": case["message"]["subject"] if case["message"] else case["subject"],
            **{key: case[key] for key in ("onset_step", "resolved_step", "resolution")},
        }
        for case in reader.cases()
        if case["state"] == "resolved"
    ][:MAX_CLOSED_CASES]


def _reader(run: str) -> RunReader | None:
    from sentinel.transport.paths import DATABASE_NAME, current_run_dir

    path = current_run_dir(run) / DATABASE_NAME
    return _cached_reader(path) if path.is_file() else None


@lru_cache(maxsize=1)
def _cached_reader(path: Path) -> RunReader:
    """One for all looks of --watch: it reads the new rows only."""
    from sentinel.store.run_reader import RunReader

    return RunReader(path)


def _to_dict(discovered: Any) -> dict[str, Any]:
    from sentinel.store.unmonitored import missing_ranks

    state = discovered.state
    return {
        "run": discovered.run,
        "url": discovered.url,
        "verdict": state.get("verdict"),
        "is_live": state.get("is_live", bool(state)),
        "host": state.get("host", ""),
        "started": _time_or_none(state.get("started")),
        "ended": _time_or_none(state.get("ended")),
        "state": state.get("state", UNREACHABLE),
        "step": state.get("step"),
        "training": state.get("training", 1),
        "cases": state.get("cases", []),
        "incidents": state.get("incidents", []),
        "delivery_problems": state.get("delivery_problems", []),
        "storage": state.get("storage", {}),
        "ignored_settings": state.get("ignored_settings", []),
        "silences": state.get("silences", []),
        "tier": state.get("tier", "page"),
        "metadata": state.get("metadata", {}),
        "monitored": state.get("monitored", []),
        "unmonitored": state.get("unmonitored", []),
        "coverage": state.get("coverage", ""),
        "patches": state.get("patches", {}),
        "cluster": state.get("cluster", {}),
        "missing_ranks": missing_ranks(state),
        "refused": state.get("refused", {}),
        "late_records": state.get("late_records", 0.0),
        "active": state.get("active", True),
        "note": state.get("note"),
        "error": discovered.problem,
        "remedy": discovered.remedy,
    }


def _time_or_none(value: Any) -> float | None:
    """The time; NaN, which JSON writes as a text, stands for none."""
    return value if isinstance(value, int | float) and isfinite(value) else None


def _format_run(run: dict[str, Any]) -> Iterator[str]:

    return map(escape_unprintable, _run_lines(run))


def _run_lines(run: dict[str, Any]) -> Iterator[str]:
    """The lines about a run, unescaped."""
    from sentinel.agent.config_alert import ignored_text
    from sentinel.doctor.nodes import node_lines, problem_lines, report_lines
    from sentinel.store.unmonitored import failed_patches, rank_text

    if run["state"] == UNREACHABLE:
        yield f"{run['run']}: {run['error']}; {run['remedy']}"
        return
    yield f"{run['run']}: {_format_state(run)}{_format_place(run)}"
    if run["error"]:
        yield f"  {run['error']}; {run['remedy']}"
    if description := format_run_metadata(run["metadata"]):
        yield f"  {description}"
    if run["note"]:
        yield f"  {format_note(run['note'])}"
    yield from (f"  {line}" for line in node_lines(run))
    yield from (f"  {line}" for line in problem_lines(run["run"], run))
    yield from (f"  {line}" for line in report_lines(run))
    for problem in run["delivery_problems"]:
        yield f"  {problem['text']} {problem['remedy']}"
    if run["storage"].get("text"):
        yield f"  {run['storage']['text']} {run['storage']['remedy']}"
    if run["ignored_settings"]:
        yield f"  {ignored_text(run['ignored_settings'])}"
    yield from _incident_lines(run)
    if run["coverage"]:
        yield f"  {run['coverage']}"
    for integration, patch_status, ranks in failed_patches(run["patches"]):
        yield f"  patch of {integration} is {patch_status} ({rank_text(ranks)})"


def _incident_lines(run: dict[str, Any]) -> Iterator[str]:
    """The open cases, then the incidents of none."""
    for case in run["cases"]:
        yield from (f"  {line}" for line in _case_lines(case, run["incidents"]))
    names = {case["name"] for case in run["cases"]}
    for incident in run["incidents"]:
        if incident.get("case") not in names:
            yield f"  {_format_incident(incident)}"


def _format_state(run: dict[str, Any]) -> str:
    """State and step of a run, where it is processed if not here, and its tier."""
    from sentinel.doctor.nodes import describe_head

    head = describe_head(run)
    # The agent of a follower node counts no steps.
    no_step = "" if head else " before its first step"
    step = no_step if run["step"] is None else f" at step {run['step']}"
    step += f" of training {run['training']}" if run["training"] > 1 else ""
    tier = "" if run["tier"] == "page" else f"tier {run['tier']}"
    return ", ".join(filter(None, (f"{run['state']}{step}", head, tier)))


def _format_place(run: dict[str, Any]) -> str:
    """The address of the agent, or when a run without one ended."""
    from sentinel.model.quantity_text import format_duration

    if run["url"]:
        return f" ({run['url']})"
    if run["ended"] is None:
        return ""
    return f" (ended {format_duration(max(time.time() - run['ended'], 0.0), parts=1)} ago)"


def _format_incident(incident: dict[str, Any]) -> str:
    """Severity, detector (the argument of `sentinel ack` and `silence`), summary and notes."""
    detector = f" {incident['detector']}" if "detector" in incident else ""
    return (
        f"{incident['severity']}{detector}: {incident['summary']}{format_incident_notes(incident)}"
    )


def _case_lines(case: dict[str, Any], incidents: list[dict[str, Any]]) -> Iterator[str]:
    """The text of the notification of a case, and the names of its detectors with their notes."""
    message = case["message"]
    yield f"{case['severity'].upper()}: {message['subject']}"
    if case.get("now"):
        yield f"  {case['now']}"
    yield f"  {message['since']}"
    yield from (f"  - {fact}" for fact in message["facts"])
    if message["remedy"]:
        yield f"  What to do: {message['remedy']}"
    if message["checkpoint"]:
        yield f"  Last good checkpoint: {message['checkpoint']}"
    yield from (f"  Also: {text}" for text in message["also"])
    yield from (f"  {note}" for note in message["notes"])
    if case.get("feedback"):
        from sentinel.store.feedback import feedback_text

        yield f"  {feedback_text(case['feedback'])}"
    if case["ranks"]:
        from sentinel.model.number_ranges import ranges_text

        yield f"  Ranks: {ranges_text(case['ranks'])}"
    members = [incident for incident in incidents if incident["case"] == case["name"]]
    detectors = (f"{each['detector']}{format_incident_notes(each)}" for each in members)
    count = len(case["incidents"]) - len(members)
    over = f"; {count} more of this case {'is' if count == 1 else 'are'} over" if count else ""
    yield f"  Case: {case['name']}"
    yield f"  Detectors: {', '.join(detectors)}{over}"


def format_run_metadata(metadata: dict[str, Any]) -> str:
    """Framework and version, algorithm, model and number of ranks, as far as they are known.

    >>> format_run_metadata({"framework": "trl", "framework_version": "1.16.0", "world_size": 8.0})
    'trl 1.16.0, 8 ranks'
    """
    framework = " ".join(
        str(metadata[key]) for key in ("framework", "framework_version") if metadata.get(key)
    )
    parts = [framework, *(str(metadata.get(key, "")) for key in ("algorithm", "model"))]
    ranks = metadata.get("world_size")
    if isinstance(ranks, float):
        parts.append(f"{ranks:.0f} rank{'s' if ranks != 1 else ''}")
    return ", ".join(filter(None, parts))


def format_incident_notes(incident: dict[str, Any]) -> str:
    """Onset, checkpoint, acknowledgement and silence of an incident, in parentheses.

    >>> ack = {"author": "ana", "comment": "looking at it"}
    >>> format_incident_notes({"acknowledged": ack, "silenced": None, "flaps": 2})
    ' (fired again 2 times; acknowledged by ana: looking at it)'
    >>> dates = {"onset_step": 41, "onset": {"earliest": 38, "latest": 44}, "last_good_step": 30}
    >>> format_incident_notes(dates)
    ' (began at step 41, between 38 and 44; last checkpoint before: step 30)'
    """
    from sentinel.store.silences import format_utc_time, with_author

    notes = []
    if onset := incident.get("onset"):
        is_exact = onset["earliest"] == onset["latest"]
        bounds = "" if is_exact else f", between {onset['earliest']} and {onset['latest']}"
        notes.append(f"began at step {incident['onset_step']}{bounds}")
    if (good_step := incident.get("last_good_step")) is not None:
        notes.append(f"last checkpoint before: step {good_step}")
    if flaps := incident.get("flaps"):
        notes.append(f"fired again {flaps} times" if flaps > 1 else "fired again once")
    for kind in ("acknowledged", "silenced"):
        if entry := incident.get(kind):
            until = f" until {format_utc_time(entry['ends_at'])}" if "ends_at" in entry else ""
            notes.append(with_author(f"{kind}{until}", entry["author"], entry["comment"]))
    return f" ({'; '.join(notes)})" if notes else ""


def format_note(note: dict[str, Any]) -> str:
    r"""A note with its author on one line.

    >>> format_note({"text": "good seed\nrerun", "author": "ana", "time": 1_700_000_000.0})
    'note by ana, 2023-11-14 22:13 UTC: good seed rerun'
    """
    from sentinel.model.clean_text import clean
    from sentinel.store.silences import format_utc_time

    author = f" by {note['author']}" if note["author"] else ""
    return f"note{author}, {format_utc_time(note['time'])}: {clean(note['text'])}"
