"""What a backtest found as tables of texts, for the terminal and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.model.finding import Severity

MAX_COMPARED = 2
"""Settings of which all changes are shown."""
_SEVERITIES = [each.value for each in Severity]


@dataclass(frozen=True, slots=True)
class Row:
    """Cells, the severity of the incident if it is one, and a word for rows of its kind."""

    cells: Sequence[str]
    severity: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows of texts, the most important first. `noun` names them; without rows `empty` is shown.

    `left_out` is how many others there are, by kind.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    noun: str
    empty: str = ""
    caption: str = ""
    left_out: Counter[str] | None = None


def result_tables(summary: dict[str, Any]) -> Iterator[ResultTable]:
    """Settings, runs, marked cases, and what other settings change.

    `summary` is that of `sentinel.backtest.summary`.
    """
    shown = shown_settings(summary)
    yield _settings_table(summary["settings"])
    yield _run_table(summary, shown)
    if summary["marks"]:
        yield _mark_table(summary, shown)
    for number in shown[1:]:
        yield _change_table(summary, summary["settings"][number]["name"])


def shown_settings(summary: dict[str, Any]) -> list[int]:
    """The numbers of the settings whose changes are shown: of many, the recommended ones."""
    names = [each["name"] for each in summary["settings"]]
    chosen = (summary["recommendation"] or {}).get("settings")
    if len(names) <= MAX_COMPARED:
        return [*range(len(names))]
    return [0] if chosen in (None, names[0]) else [0, names.index(chosen)]


def notes(summary: dict[str, Any]) -> Iterator[str]:
    """Why runs are left out, and what limits the replay of others."""
    for each in summary["skipped"]:
        yield f"{each['name']} is left out: {each['reason']}."
    for run in summary["runs"]:
        for note in run["notes"]:
            yield f"{run['name']}: {note}."


def recommendation_title(made: dict[str, Any]) -> str:
    """The heading of a recommendation."""
    if made["settings"] is None:
        return "No recommendation."
    return f"Add to {made['file']}:" if made["toml"] else "Keep the current settings:"


def recommendation_notes(made: dict[str, Any]) -> Iterator[str]:
    """What else is to be done, and what the choice gives in runs that are left out."""
    if made["replaced"]:
        yield f"Remove what it replaces: {', '.join(made['replaced'])}."
    left_out = made["left_out"]
    if left_out is None:
        return
    text = (
        "Chosen without the run that is measured, for each run: "
        f"{_rate(left_out['false'])} false notifications per day, "
        f"faults found: {left_out['found']} of {left_out['faults']}."
    )
    parts = [text]
    if left_out["lost"]:
        parts.append(f"Lost: {', '.join(left_out['lost'])}.")
    choices = ", ".join(
        f"{_short(each['settings'])} ({each['runs']})" for each in left_out["choices"]
    )
    parts.append(f"Choices: {choices}.")
    yield " ".join(parts)


def _settings_table(settings: Sequence[dict[str, Any]]) -> ResultTable:
    has_false = any(each["false"] for each in settings)
    has_faults = any(each["faults"] for each in settings)
    columns = ["Settings", "Per run", "Per day"]
    columns += ["False per day"] * has_false + ["Faults found"] * has_faults
    rows = []
    for each in settings:
        cells = [_short(each["name"]), _number(each["per_run"]), _number(each["per_run_day"])]
        cells += [_rate(each["false"])] if has_false else []
        cells += [f"{each['found']} of {each['faults']}"] * has_faults
        rows.append(Row(cells))
    title = "Notifications per run and per day of training"
    caption = "Faults: cases that are marked as useful, and one in each other faulty run"
    return ResultTable(title, columns, rows, "settings", caption=caption if has_faults else "")


def _run_table(summary: dict[str, Any], shown: Sequence[int]) -> ResultTable:
    """The runs with notifications, those that differ between the shown settings first."""
    counted = [
        (run, [len(run["notifications"][number]) for number in shown]) for run in summary["runs"]
    ]
    found = sorted(
        ((run, counts) for run, counts in counted if any(counts)),
        key=lambda row: (len(set(row[1])) == 1, row[0]["name"]),
    )
    rows = []
    for run, counts in found:
        label = "healthy" if run["is_healthy"] else "judged" if run["is_judged"] else ""
        name = f"{run['name']} ({label})" if label else run["name"]
        kind = "with a change" if len(set(counts)) > 1 else "unchanged"
        rows.append(Row([name, _number(run["days"]), *map(str, counts)], kind=kind))
    return ResultTable(
        "Notifications of runs",
        ["Run", "Days", *_names(summary, shown)],
        rows,
        "runs",
        empty=f"No run of {len(counted)} has a notification.",
        left_out=Counter({"without a notification": len(counted) - len(found)}),
    )


def _mark_table(summary: dict[str, Any], shown: Sequence[int]) -> ResultTable:
    """The first notification of each marked case, and how it moves."""
    rows = []
    for each in summary["marks"]:
        now, *others = (each["steps"][number] for number in shown)
        cells = [_step(now), *(_step(other) + _delay_between(now, other) for other in others)]
        rows.append(Row([each["case"], each["mark"], *cells]))
    columns = ["Case", "Mark", *_names(summary, shown)]
    return ResultTable("Marked cases: step of the notification", columns, rows, "cases")


def _change_table(summary: dict[str, Any], name: str) -> ResultTable:
    changes = [each for each in summary["changes"] if each["settings"] == name]
    rows = []
    for each in sorted(changes, key=lambda each: _SEVERITIES.index(each["incident"]["severity"])):
        incident, before = each["incident"], each.get("before")
        rank = "" if incident["rank"] is None else f" (rank {incident['rank']})"
        cells = [
            each["run"],
            f"{incident['detector']}{rank}",
            each["change"],
            _moved(incident, before, "severity"),
            _moved(incident, before, "onset_step"),
            _moved(incident, before, "opened_step") + _delay(each.get("delay")),
        ]
        rows.append(Row(cells, incident["severity"]))
    return ResultTable(
        f"Incidents that change with {_short(name)}",
        ["Run", "Incident", "", "Severity", "Onset", "Notified at step"],
        rows,
        "changes",
        empty=f"With {_short(name)}, no incident changes.",
    )


def _names(summary: dict[str, Any], shown: Sequence[int]) -> list[str]:
    return [_short(summary["settings"][number]["name"]) for number in shown]


def _short(name: str) -> str:
    """The name of settings in the least room."""
    return name.replace("detectors.", "")


def _step(step: int | None) -> str:
    return "none" if step is None else str(step)


def _moved(incident: dict[str, Any], before: dict[str, Any] | None, key: str) -> str:
    if before is None or before[key] == incident[key]:
        return str(incident[key])
    return f"{before[key]} to {incident[key]}"


def _delay_between(before: int | None, after: int | None) -> str:
    return _delay(None if before is None or after is None else after - before)


def _delay(delay: int | None) -> str:
    if not delay:
        return ""
    return f", {abs(delay)} {'later' if delay > 0 else 'earlier'}"


def _rate(rate: dict[str, Any]) -> str:
    """The rate with its limits.

    >>> _rate({"per_run_day": 0.0, "low": 0.0, "high": 0.1234})
    '0 (0 to 0.12)'
    """
    values = (_number(rate[key]) for key in ("per_run_day", "low", "high"))
    return "{} ({} to {})".format(*values)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}"
