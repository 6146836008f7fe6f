"""`sentinel samples`: what the model wrote, with prompts and rewards, as the run's database has it.

A model's text is nobody's friend: whatever could command a terminal, or hide or turn around what is
read, is shown as its number instead.
"""

from __future__ import annotations

import json as jsonlib
import sys
from math import isfinite
from pathlib import Path
from typing import Annotated, Any
from unicodedata import category

import typer

NO_RUN = 2
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Kinds of characters that are not seen, or that steer what is."""
_PLAIN = frozenset("\n\t\u200c\u200d")
"""Of these, those that texts and emoji need."""
_RULE = "-" * 72


def samples(
    run: Annotated[str, typer.Argument(help="Run id, as `sentinel status` shows it.")],
    step: Annotated[int | None, typer.Option(help="Only the texts of this step.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Texts, the newest.")] = 8,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a text and line.")] = False,
) -> None:
    """Show the newest texts the model made: prompt, completion, rewards."""
    from sqlite3 import DatabaseError

    from sentinel.store.database import NewerSchemaError
    from sentinel.store.samples import newest

    path = _database(run)
    try:
        found = newest(path, step, limit)
    except (NewerSchemaError, DatabaseError) as error:
        raise _refusal(f"{path} cannot be read: {error}") from None
    for sample in found:
        print(jsonlib.dumps(_told(sample), allow_nan=False) if json else _shown(sample))
    if not found and not json:
        of = "" if step is None else f" of step {step}"
        print(f"Run {run} has shown no text{of}: sentinel.log_samples does, or samples_from.")


def _database(run: str) -> Path:
    """Where the run's texts are. Leaves with an error if there is no such run."""
    from sentinel.transport.paths import RunIdError, checked, home

    try:
        path = home() / "runs" / checked(run) / "sentinel.db"
    except RunIdError as error:
        trouble = str(error)
    else:
        if path.is_file():
            return path
        trouble = f"There is no run {run!r} under {home()}: `ls {home() / 'runs'}` names them."
    raise _refusal(trouble)


def _refusal(trouble: str) -> typer.Exit:
    print(f"sentinel samples: {trouble}", file=sys.stderr)
    return typer.Exit(NO_RUN)


def _told(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample without what JSON has no word for."""
    rewards = sample["rewards"].items()
    return {**sample, "rewards": {name: v if isfinite(v) else str(v) for name, v in rewards}}


def _shown(sample: dict[str, Any]) -> str:
    head = f"step {sample['step']}, rank {sample['rank']}"
    if sample["attempt"]:
        head += f", attempt {sample['attempt']}"
    if sample["length"] is not None:
        head += f", {sample['length']:,.0f} characters"
    if sample["finished"] is False:
        head += ", cut off by the limit"
    lines = [_RULE, head, *_scores(sample), "prompt:", _indented(sample["prompt"])]
    return "\n".join([*lines, "completion:", _indented(sample["completion"])])


def _scores(sample: dict[str, Any]) -> list[str]:
    scores = [(visible(name) or "reward", value) for name, value in sample["rewards"].items()]
    if sample["advantage"] is not None:
        scores.append(("advantage", sample["advantage"]))
    return ["  ".join(f"{name} {value:.4g}" for name, value in scores)] if scores else []


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in visible(text).split("\n"))


def visible(text: str) -> str:
    r"""The text with every character that is not seen, or steers a terminal, as its number.

    >>> visible("red \x1b[31m, wrong way round \u202e, half a character \ud83d")
    'red \\x1b[31m, wrong way round \\u202e, half a character \\ud83d'
    """
    return "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter in _PLAIN or category(letter) not in _UNSEEN:
        return letter
    return letter.encode("unicode_escape").decode("ascii")
