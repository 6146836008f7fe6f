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
    for remark in _run_checks(quick=quick):
        ailing = ailing or remark.grade is Grade.FAIL
        print(_format(remark, as_json=json), flush=True)
    raise typer.Exit(1 if ailing else 0)


def _run_checks(*, quick: bool) -> Iterator[Any]:
    from sentinel.doctor.directories import check_directories
    from sentinel.doctor.frameworks import check_frameworks
    from sentinel.doctor.gpus import check_gpus
    from sentinel.doctor.runs import check_runs
    from sentinel.doctor.settings_check import check_settings
    from sentinel.doctor.versions import check_versions

    for look in (
        check_versions,
        check_settings,
        check_directories,
        check_gpus,
        check_runs,
        *(() if quick else (check_frameworks,)),
    ):
        yield from _run_check(look)


def _run_check(check: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """One kind of checkup; that one fails is no reason to leave out the others."""
    from sentinel.doctor.check_result import fail

    try:
        yield from check()
    except Exception as error:
        says = f"could not be looked at ({type(error).__name__}: {error})"
        yield fail(check.__name__, says, "tell us of it: this is a fault of sentinel's own")


def _format(remark: Any, *, as_json: bool) -> str:
    from sentinel.metrics.label import sanitize_label

    if as_json:
        told = {"subject": remark.subject, "says": remark.says, "remedy": remark.remedy}
        return jsonlib.dumps({"grade": remark.grade.value, **told})
    remedy = f"\n      {_printable(remark.remedy, sanitize_label)}" if remark.remedy else ""
    said = (
        f"{_printable(remark.subject, sanitize_label)}: {_printable(remark.says, sanitize_label)}"
    )
    return f"{remark.grade.value:<5} {said}{remedy}"


def _printable(text: str, label: Callable[[str], str]) -> str:
    """Without control marks: names come from training code, and this goes to a terminal."""
    return "".join(label(sign) for sign in text.replace("\n", " "))
