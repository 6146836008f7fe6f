"""`sentinel samples`: generated texts of a run, with prompts and rewards.

The texts are untrusted: characters that are invisible or control the terminal are escaped.
"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from sentinel.cli._options import RunArgument, error_exit
from sentinel.cli._run_database import run_database_path
from sentinel.cli._terminal import escape_unprintable

ALLOWED_CHARACTERS = "\n\t\u200c\u200d"
"""Control characters of ordinary texts, and joiners, which emoji and some scripts need."""
_SEPARATOR = "-" * 72


def samples(  # noqa: PLR0913, PLR0917 - the options of a command
    run: RunArgument,
    step: Annotated[int | None, typer.Option(help="Only samples of this step.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Number of samples.")] = 8,
    search: Annotated[str, typer.Option(help="Only texts that contain this, in any case.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per sample.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete all texts of the run.")] = False,
) -> None:
    """Show the newest generated texts: prompt, completion and rewards. --delete deletes all.

    Exit status: 0 on success, also without samples; 2 if the run cannot be read.
    """
    from sqlite3 import DatabaseError

    from sentinel.store.database import NewerSchemaError
    from sentinel.store.run_reader import RunReader
    from sentinel.store.samples import delete_samples

    path = run_database_path("samples", run)
    try:
        if delete:
            _print_deleted(run, delete_samples(path), as_json=json)
            return
        newest = RunReader(path).samples(step, limit, search)
    except (NewerSchemaError, DatabaseError) as error:
        raise error_exit("samples", f"cannot read {path}: {error}") from None
    for sample in newest:
        print(jsonlib.dumps(sample, allow_nan=False) if json else _format(sample))
    if not newest and not json:
        of_step = "" if step is None else f" of step {step}"
        of_step += f" with {search!r}" if search else ""
        print(
            f"Run {run} has no samples{of_step}. "
            "Log them with sentinel.log_samples, or set samples_dir."
        )


def _print_deleted(run: str, count: int, *, as_json: bool) -> None:
    plural = "" if count == 1 else "s"
    text = f"{count} text{plural} of run {run} deleted."
    print(jsonlib.dumps({"run": run, "deleted": count}) if as_json else text)


def _format(sample: dict[str, Any]) -> str:
    title = f"step {sample['step']}, rank {sample['rank']}"
    if sample["attempt"]:
        title += f", attempt {sample['attempt']}"
    if sample["length"] is not None:
        title += f", {sample['length']:,.0f} characters"
    if sample["finished"] is False:
        title += ", truncated at the length limit"
    lines = [_SEPARATOR, title, *_format_scores(sample), "prompt:", _indent(sample["prompt"])]
    return "\n".join([*lines, "completion:", _indent(sample["completion"])])


def _format_scores(sample: dict[str, Any]) -> list[str]:
    scores = [
        (escape_unprintable(name, ALLOWED_CHARACTERS) or "reward", value)
        for name, value in sample["rewards"].items()
    ]
    if sample["advantage"] is not None:
        scores.append(("advantage", sample["advantage"]))
    texts = [
        f"{name} {'not finite' if value is None else format(value, '.4g')}"
        for name, value in scores
    ]
    return ["  ".join(texts)] if texts else []


def _indent(text: str) -> str:
    return "\n".join(
        f"  {line}" for line in escape_unprintable(text, ALLOWED_CHARACTERS).split("\n")
    )
