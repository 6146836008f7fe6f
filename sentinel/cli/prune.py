"""`sentinel prune`: delete runs that ended, oldest first."""

from __future__ import annotations

import json as jsonlib
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sentinel.cli._options import JsonOption, error_exit, exit_on

if TYPE_CHECKING:
    from sentinel.store.stored_runs import StoredRun

MAX_AGE_DAYS = 36_500


def prune(
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Delete runs last written before: 12h, 30d."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=0, help="Delete all but this many of the newest runs.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Delete runs that ended: history, notifications, samples and logs of them.

    Without an option, the oldest are deleted until all take at most [history] max_home_mb. With
    both --older-than and --keep, a run is deleted if both allow it. A run that is live, or that
    did not end and was written in the last day, is never deleted.

    Exit status: 0 on success, 1 if a run could not be deleted, 2 if the options are invalid.
    """
    from sentinel.config.settings import ConfigError, load_replay_settings
    from sentinel.store import stored_runs
    from sentinel.transport.paths import home_dir

    now, home = time.time(), home_dir()
    runs = stored_runs.stored_runs(home, now)
    if older_than is None and keep is None:
        with exit_on("prune", ConfigError):
            max_bytes = load_replay_settings().history.max_home_mb * 2**20
        chosen = stored_runs.runs_above(runs, int(stored_runs.home_size(home) - max_bytes))
    else:
        chosen = [run for run in runs if run.status == "finished"]
        if older_than is not None:
            oldest = now - _parse_age(older_than)
            chosen = [run for run in chosen if run.last_written < oldest]
        if keep is not None:
            newest = {run.run for run in runs[len(runs) - min(keep, len(runs)) :]}
            chosen = [run for run in chosen if run.run not in newest]
    problems: dict[str, str] = {}
    if not dry_run:
        for run in chosen:
            try:
                if not stored_runs.delete_run(run, now):
                    problems[run.run] = "it is in use again"
            except OSError as error:
                problems[run.run] = error.strerror or type(error).__name__
    (_print_json if json else _print_text)(runs, chosen, problems, is_dry=dry_run)
    if problems:
        raise typer.Exit(1)


def _parse_age(text: str) -> float:
    from sentinel.store.silences import parse_duration

    try:
        return parse_duration(text, MAX_AGE_DAYS)
    except ValueError as error:
        raise error_exit("prune", f"--older-than {error}") from None


def _print_json(
    runs: list[StoredRun], chosen: list[StoredRun], problems: dict[str, str], *, is_dry: bool
) -> None:
    for run in runs:
        action = "delete" if run in chosen and run.run not in problems else "keep"
        if action == "delete" and not is_dry:
            action = "deleted"
        fields = {
            "run": run.run,
            "action": action,
            "status": run.status,
            "bytes": run.size,
            "last_written": run.last_written,
        }
        if run.run in problems:
            fields["problem"] = problems[run.run]
        print(jsonlib.dumps(fields))


def _print_text(
    runs: list[StoredRun], chosen: list[StoredRun], problems: dict[str, str], *, is_dry: bool
) -> None:
    from sentinel.cli._terminal import escape_unprintable

    verb = "Would delete" if is_dry else "Deleted"
    deleted = [run for run in chosen if run.run not in problems]
    for run in deleted:
        written = datetime.fromtimestamp(run.last_written, UTC).strftime("%Y-%m-%d %H:%M")
        name = escape_unprintable(run.run)
        print(f"{verb} {name}: {_megabytes(run.size)}, last written {written} UTC.")
    for name, reason in problems.items():
        print(f"Cannot delete {escape_unprintable(name)}: {reason}.")
    kept = [run for run in runs if run not in deleted]
    live = sum(run.status != "finished" for run in kept)
    of_those = f", {live} of them live or not ended" if live else ""
    print(
        f"{verb} {_count(len(deleted))} with {_megabytes(sum(run.size for run in deleted))}. "
        f"{'Would keep' if is_dry else 'Kept'} {_count(len(kept))} with "
        f"{_megabytes(sum(run.size for run in kept))}{of_those}."
    )


def _count(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
