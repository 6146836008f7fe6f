"""`sentinel doctor`: finds what prevents runs of this machine from being monitored."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator
from typing import Any

import typer


def doctor(
    quick: bool = typer.Option(
        False, "--quick", help="Skip the frameworks, which are slow to import."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object per check."),
) -> None:
    """Check versions, settings, directories, GPUs, runs and frameworks; print remedies.

    Exit status: 0 if no check failed, 1 if one did.
    """
    from sentinel.doctor.check_result import Grade

    failed = False
    for result in _run_checks(quick=quick):
        failed = failed or result.grade is Grade.FAIL
        print(_format(result, as_json=json), flush=True)
    raise typer.Exit(1 if failed else 0)


def _run_checks(*, quick: bool) -> Iterator[Any]:
    from sentinel.doctor.directories import check_directories
    from sentinel.doctor.frameworks import check_frameworks
    from sentinel.doctor.gpus import check_gpus
    from sentinel.doctor.runs import check_runs
    from sentinel.doctor.settings import check_settings
    from sentinel.doctor.versions import check_versions

    for check in (
        check_versions,
        check_settings,
        check_directories,
        check_gpus,
        check_runs,
        *(() if quick else (check_frameworks,)),
    ):
        yield from _run_check(check)


def _run_check(check: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Results of one kind of check; an error in it is a failed result."""
    from sentinel.doctor.check_result import fail

    try:
        yield from check()
    except Exception as error:
        message = f"the check failed ({type(error).__name__}: {error})"
        yield fail(check.__name__.removeprefix("check_"), message, "please report this bug")


def _format(result: Any, *, as_json: bool) -> str:
    from sentinel.cli._terminal import escape_unprintable

    if as_json:
        texts = {"subject": result.subject, "message": result.message, "remedy": result.remedy}
        return jsonlib.dumps({"grade": result.grade.value, **texts})
    subject, message, remedy = (
        escape_unprintable(text.replace("\n", " "))
        for text in (result.subject, result.message, result.remedy)
    )
    line = f"{result.grade.value:<5} {subject}: {message}"
    return f"{line}\n      {remedy}" if remedy else line
