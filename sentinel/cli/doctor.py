"""`sentinel doctor`: what could keep a run of this machine from being watched, and the remedy."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator
from typing import Any

import typer


def doctor(
    quick: bool = typer.Option(False, help="Do not load frameworks to try their taps."),
    json: bool = typer.Option(False, "--json", help="One JSON object for each thing looked at."),
) -> None:
    """Look at versions, taps, folders, settings and runs; say what to mend, and how.

    Exit status: 0 if nothing has to be mended, 1 if something has.
    """
    from sentinel.doctor.check_result import Grade

    ailing = False
    for remark in _everything(quick=quick):
        ailing = ailing or remark.grade is Grade.MEND
        print(_line(remark, as_json=json), flush=True)
    raise typer.Exit(1 if ailing else 0)


def _everything(*, quick: bool) -> Iterator[Any]:
    from sentinel.doctor.directories import places
    from sentinel.doctor.frameworks import frameworks
    from sentinel.doctor.gpus import gpus
    from sentinel.doctor.runs import runs
    from sentinel.doctor.settings_check import configured
    from sentinel.doctor.versions import versions

    for look in (versions, configured, places, gpus, runs, *(() if quick else (frameworks,))):
        yield from _safely(look)


def _safely(look: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """One kind of checkup; that one fails is no reason to leave out the others."""
    from sentinel.doctor.check_result import mend

    try:
        yield from look()
    except Exception as error:
        says = f"could not be looked at ({type(error).__name__}: {error})"
        yield mend(look.__name__, says, "tell us of it: this is a fault of sentinel's own")


def _line(remark: Any, *, as_json: bool) -> str:
    from sentinel.metrics.label import label

    if as_json:
        told = {"subject": remark.subject, "says": remark.says, "remedy": remark.remedy}
        return jsonlib.dumps({"grade": remark.grade.value, **told})
    remedy = f"\n      {_plain(remark.remedy, label)}" if remark.remedy else ""
    said = f"{_plain(remark.subject, label)}: {_plain(remark.says, label)}"
    return f"{remark.grade.value:<5} {said}{remedy}"


def _plain(text: str, label: Callable[[str], str]) -> str:
    """Without control marks: names come from training code, and this goes to a terminal."""
    return "".join(label(sign) for sign in text.replace("\n", " "))
