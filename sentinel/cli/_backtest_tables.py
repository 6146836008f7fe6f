"""What a backtest found as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sentinel.cli._replay_tables import SEVERITY_STYLES
from sentinel.cli._terminal import escape_unprintable as _clean

MIN_SETTINGS_WIDTH = 20
MAX_ROWS = 20
"""Rows of each table, and notes; all are in the output of --json."""
MAX_COMPARED = 2
"""Settings of which all changes are shown."""
_STYLES = {severity.value: style for severity, style in SEVERITY_STYLES.items()}
_SEVERITIES = [*_STYLES]


def print_backtest(summary: dict[str, Any]) -> None:
    """Settings, runs, what other settings change, what is left out, and the recommendation."""
    console = Console()
    shown = _shown_settings(summary)
    console.print(_settings_table(summary["settings"]))
    _print_runs(console, summary, shown)
    if summary["marks"]:
        console.print(_mark_table(summary, shown))
        _print_hidden(console, len(summary["marks"]), "cases")
    for number in shown[1:]:
        name = summary["settings"][number]["name"]
        changes = [each for each in summary["changes"] if each["settings"] == name]
        if changes:
            console.print(_change_table(name, changes))
            _print_hidden(console, len(changes), "changes")
        else:
            console.print(Text(f"With {_setting_name(name)}, no incident changes.\n"))
    notes = [*_notes(summary)]
    for line in notes[:MAX_ROWS]:
        console.print(Text(_clean(line)), style="dim")
    _print_hidden(console, len(notes), "notes")
    if summary["recommendation"] is not None:
        _print_recommendation(console, summary["recommendation"])


def _shown_settings(summary: dict[str, Any]) -> list[int]:
    """The numbers of the settings whose changes are shown: of many, the recommended ones."""
    names = [each["name"] for each in summary["settings"]]
    chosen = (summary["recommendation"] or {}).get("settings")
    if len(names) <= MAX_COMPARED:
        return [*range(len(names))]
    return [0] if chosen in (None, names[0]) else [0, names.index(chosen)]


def _settings_table(settings: Sequence[dict[str, Any]]) -> Table:
    table = _table("Notifications per run and per day of training")
    table.add_column("Settings", overflow="fold", min_width=MIN_SETTINGS_WIDTH)
    has_false = any(each["false"] for each in settings)
    has_faults = any(each["faults"] for each in settings)
    columns = ("Per run", "Per day", *["False per day"] * has_false, *["Faults found"] * has_faults)
    for column in columns:
        table.add_column(column)
    for each in settings:
        counts = [_number(each["per_run"]), _number(each["per_run_day"])]
        counts += [_rate(each["false"])] if has_false else []
        counts += [f"{each['found']} of {each['faults']}"] * has_faults
        table.add_row(Text(_setting_name(each["name"])), *counts)
    if has_faults:
        table.caption = "Faults: cases that are marked as useful, and one in each other faulty run"
    return table


def _print_runs(console: Console, summary: dict[str, Any], shown: Sequence[int]) -> None:
    """The runs with notifications, those that differ between the shown settings first."""
    names = [summary["settings"][number]["name"] for number in shown]
    table = _table("Notifications of runs", "Run", "Days", *map(_setting_name, names))
    counted = [
        (run, [len(run["notifications"][number]) for number in shown]) for run in summary["runs"]
    ]
    rows = sorted(
        ((run, counts) for run, counts in counted if any(counts)),
        key=lambda row: (len(set(row[1])) == 1, row[0]["name"]),
    )
    if not rows:
        console.print(Text(f"No run of {len(counted)} has a notification.\n"))
        return
    for run, counts in rows[:MAX_ROWS]:
        kind = "healthy" if run["is_healthy"] else "judged" if run["is_judged"] else ""
        name = f"{run['name']} ({kind})" if kind else run["name"]
        cells = [_number(run["days"]), *map(str, counts)]
        table.add_row(Text(_clean(name)), *cells)
    more = {
        "with a change": sum(len(set(counts)) > 1 for _, counts in rows[MAX_ROWS:]),
        "unchanged": sum(len(set(counts)) == 1 for _, counts in rows[MAX_ROWS:]),
        "without a notification": len(counted) - len(rows),
    }
    table.caption = ", ".join(f"{count} more {kind}" for kind, count in more.items() if count)
    console.print(table)


def _mark_table(summary: dict[str, Any], shown: Sequence[int]) -> Table:
    """The first notification of each marked case, and how it moves."""
    names = [summary["settings"][number]["name"] for number in shown]
    table = _table("Marked cases: step of the notification", "Case", "Mark")
    for name in names:
        table.add_column(_setting_name(name), overflow="fold")
    for each in summary["marks"][:MAX_ROWS]:
        now, *others = (each["steps"][number] for number in shown)
        cells = [_step(now), *(_step(other) + _delay_between(now, other) for other in others)]
        table.add_row(Text(_clean(each["case"])), each["mark"], *cells)
    return table


def _step(step: int | None) -> str:
    return "none" if step is None else str(step)


def _delay_between(before: int | None, after: int | None) -> str:
    return _delay(None if before is None or after is None else after - before)


def _change_table(name: str, changes: Sequence[dict[str, Any]]) -> Table:
    columns = ("Run", "Incident", "", "Severity", "Onset", "Notified at step")
    table = _table(f"Incidents that change with {_setting_name(name)}", *columns)
    order = sorted(changes, key=lambda each: _SEVERITIES.index(each["incident"]["severity"]))
    for each in order[:MAX_ROWS]:
        incident, before = each["incident"], each.get("before")
        rank = "" if incident["rank"] is None else f" (rank {incident['rank']})"
        table.add_row(
            Text(_clean(each["run"])),
            f"{incident['detector']}{rank}",
            each["change"],
            Text(_moved(incident, before, "severity"), _STYLES.get(incident["severity"], "")),
            _moved(incident, before, "onset_step"),
            _moved(incident, before, "opened_step") + _delay(each.get("delay")),
        )
    return table


def _moved(incident: dict[str, Any], before: dict[str, Any] | None, key: str) -> str:
    if before is None or before[key] == incident[key]:
        return str(incident[key])
    return f"{before[key]} to {incident[key]}"


def _delay(delay: int | None) -> str:
    if not delay:
        return ""
    return f", {abs(delay)} {'later' if delay > 0 else 'earlier'}"


def _print_hidden(console: Console, count: int, noun: str) -> None:
    if count > MAX_ROWS:
        console.print(f"{count - MAX_ROWS} more {noun} are in the output of --json.\n", style="dim")


def _notes(summary: dict[str, Any]) -> Iterator[str]:
    for each in summary["skipped"]:
        yield f"{each['name']} is left out: {each['reason']}."
    for run in summary["runs"]:
        for note in run["notes"]:
            yield f"{run['name']}: {note}."


def _print_recommendation(console: Console, made: dict[str, Any]) -> None:
    if made["settings"] is None:
        title = "No recommendation."
    else:
        file = _clean(made["file"])
        title = f"Add to {file}:" if made["toml"] else "Keep the current settings:"
    console.print(Text.assemble("\n", (title, "bold"), " ", _clean(made["reason"])))
    if made["toml"]:
        print(f"\n{made['toml']}\n")
    if made["replaced"]:
        console.print(Text(f"Remove what it replaces: {_clean(', '.join(made['replaced']))}."))
    if made["left_out"] is not None:
        console.print(Text(_clean(_left_out_text(made["left_out"]))))


def _left_out_text(left_out: dict[str, Any]) -> str:
    """What the choices without a run gave in that run."""
    text = (
        "Chosen without the run that is measured, for each run: "
        f"{_rate(left_out['false'])} false notifications per day, "
        f"faults found: {left_out['found']} of {left_out['faults']}."
    )
    parts = [text]
    if left_out["lost"]:
        parts.append(f"Lost: {', '.join(left_out['lost'])}.")
    choices = ", ".join(
        f"{_setting_name(each['settings'])} ({each['runs']})" for each in left_out["choices"]
    )
    parts.append(f"Choices: {choices}.")
    return " ".join(parts)


def _rate(rate: dict[str, Any]) -> str:
    """The rate with its limits.

    >>> _rate({"per_run_day": 0.0, "low": 0.0, "high": 0.1234})
    '0 (0 to 0.12)'
    """
    values = (_number(rate[key]) for key in ("per_run_day", "low", "high"))
    return "{} ({} to {})".format(*values)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _setting_name(name: str) -> str:
    """The name of settings in the least room."""
    return _clean(name.replace("detectors.", ""))


def _table(title: str, *columns: str) -> Table:
    table = Table(box=SIMPLE, title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
