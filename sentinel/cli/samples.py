"""`sentinel samples`: what the model wrote, with prompts and rewards, as the run's database has it.

A model's text is nobody's friend: whatever could command a terminal, or hide or turn around what is
read, is shown as its number instead.
"""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any
from unicodedata import category

import typer

from sentinel.model.json_safe import json_safe

EXIT_NO_RUN = 2
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Kinds of characters that are not seen, or that steer what is."""
_ALLOWED_CHARACTERS = frozenset("\n\t\u200c\u200d")
"""Of these, those that texts and emoji need."""
_SEPARATOR = "-" * 72


def samples(
    run: Annotated[str, typer.Argument(help="Run id, as `sentinel status` shows it.")],
    step: Annotated[int | None, typer.Option(help="Only the texts of this step.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Texts, the newest.")] = 8,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a text and line.")] = False,
) -> None:
    """Show the newest texts the model made: prompt, completion, rewards."""
    from sqlite3 import DatabaseError

    from sentinel.store.database import NewerSchemaError
    from sentinel.store.samples import newest_samples

    path = _database_path(run)
    try:
        found = newest_samples(path, step, limit)
    except (NewerSchemaError, DatabaseError) as error:
        raise _error_exit(f"{path} cannot be read: {error}") from None
    for sample in found:
        print(jsonlib.dumps(json_safe(sample), allow_nan=False) if json else _format(sample))
    if not found and not json:
        of = "" if step is None else f" of step {step}"
        print(f"Run {run} has shown no text{of}: sentinel.log_samples does, or samples_dir.")


def _database_path(run: str) -> Path:
    """Where the run's texts are. Leaves with an error if there is no such run."""
    from sentinel.transport.paths import RunIdError, home_dir, validate_run_id

    try:
        path = home_dir() / "runs" / validate_run_id(run) / "sentinel.db"
    except RunIdError as error:
        trouble = str(error)
    else:
        if path.is_file():
            return path
        trouble = (
            f"There is no run {run!r} under {home_dir()}: `ls {home_dir() / 'runs'}` names them."
        )
    raise _error_exit(trouble)


def _error_exit(message: str) -> typer.Exit:
    print(f"sentinel samples: {message}", file=sys.stderr)
    return typer.Exit(EXIT_NO_RUN)


def _format(sample: dict[str, Any]) -> str:
    head = f"step {sample['step']}, rank {sample['rank']}"
    if sample["attempt"]:
        head += f", attempt {sample['attempt']}"
    if sample["length"] is not None:
        head += f", {sample['length']:,.0f} characters"
    if sample["finished"] is False:
        head += ", cut off by the limit"
    lines = [_SEPARATOR, head, *_format_scores(sample), "prompt:", _indent(sample["prompt"])]
    return "\n".join([*lines, "completion:", _indent(sample["completion"])])


def _format_scores(sample: dict[str, Any]) -> list[str]:
    scores = [
        (escape_invisible(name) or "reward", value) for name, value in sample["rewards"].items()
    ]
    if sample["advantage"] is not None:
        scores.append(("advantage", sample["advantage"]))
    return ["  ".join(f"{name} {value:.4g}" for name, value in scores)] if scores else []


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in escape_invisible(text).split("\n"))


def escape_invisible(text: str) -> str:
    r"""The text with every character that is not seen, or steers a terminal, as its number.

    >>> visible("red \x1b[31m, wrong way round \u202e, half a character \ud83d")
    'red \\x1b[31m, wrong way round \\u202e, half a character \\ud83d'
    """
    return "".join(map(_escape_character, text))


def _escape_character(letter: str) -> str:
    if letter in _ALLOWED_CHARACTERS or category(letter) not in _INVISIBLE_CATEGORIES:
        return letter
    return letter.encode("unicode_escape").decode("ascii")
