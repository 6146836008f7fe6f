"""`sentinel report`: runs or logs as one HTML file, Markdown, JSON, a picture, or one figure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sentinel.cli._options import complete_run, error_exit, exit_on, resolve_arguments
from sentinel.cli._run_sources import RUN_OR_LOG_HELP, open_runs

if TYPE_CHECKING:
    from sentinel.report.comparison import ComparedRun

_DEFAULT_STEM = "report"
_STANDARD_OUTPUT = Path("-")
_MIN_DATA_BYTES = 1_000_000
"""With less room for the data, the library of charts is left out."""


def report(  # noqa: PLR0913, PLR0917 - the options of the command
    runs: Annotated[
        list[str],
        typer.Argument(
            help=RUN_OR_LOG_HELP,
            metavar="RUN|LOG...",
            autocompletion=complete_run,
            callback=resolve_arguments,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; - is standard output.")
    ] = None,
    md: Annotated[
        bool, typer.Option("--md", help="Markdown, for pull requests and chats.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The data of the report as JSON.")] = False,
    png: Annotated[bool, typer.Option("--png", help="A picture, taken by Chromium.")] = False,
    samples: Annotated[
        bool, typer.Option(help="Include texts and images that the model generated.")
    ] = True,
    charts: Annotated[
        bool, typer.Option(help="Include the library of interactive charts (4.8 MB).")
    ] = True,
    max_mb: Annotated[
        float | None,
        typer.Option(
            "--max-mb", min=1.0, help="Size of the file; curves get fewer points to keep to it."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the run, if its own is not meant.")] = "",
    config: Annotated[
        Path | None, typer.Option(help="Settings file (sentinel.toml), to replay logs.")
    ] = None,
    figure: Annotated[
        str, typer.Option(help="One figure for a paper instead of a report; list names them.")
    ] = "",
    width: Annotated[
        float, typer.Option(min=1.0, max=20.0, help="Width of the figure in inches.")
    ] = 3.3,
) -> None:
    """Write the report of a run as one HTML file that needs no server and no network.

    It states whether the run was healthy, or what went wrong, when, why and what to do, and has its
    timeline, cases, curves, samples and settings. Several runs are compared. The default file is
    report.html, or report.png; Markdown and JSON go to standard output. A figure is written as PDF,
    or as SVG or PNG by the suffix of the file.

    Exit status: 0 on success, 2 if a run or log cannot be read or the file cannot be written.
    """
    from sentinel.report.run_report import MAX_DATA_BYTES, collect_report
    from sentinel.web.report_page import fixed_bytes, render_report

    if md + json + png + bool(figure) > 1:
        raise error_exit("report", "give one of --md, --json, --png and --figure.")
    if figure:
        _write_figure(open_runs("report", runs, config, name), figure, output, width)
        return
    max_bytes = MAX_DATA_BYTES
    if max_mb is not None:
        rest = int(max_mb * 1e6) - fixed_bytes(with_charts=charts)
        # Small curves are worth more than charts without points.
        charts = charts and rest > _MIN_DATA_BYTES
        max_bytes = int(max_mb * 1e6) - fixed_bytes(with_charts=charts)
    opened = open_runs("report", runs, config, name)
    data = collect_report(opened, include_samples=samples, max_bytes=max_bytes)
    if md:
        from sentinel.report.markdown import markdown_report

        write_text("report", markdown_report(data), output or _STANDARD_OUTPUT)
    elif json:
        from json import dumps

        write_text("report", dumps(data, allow_nan=False) + "\n", output or _STANDARD_OUTPUT)
    elif png:
        from sentinel.cli._browser_picture import PictureError, take_picture

        path = output or Path(f"{_DEFAULT_STEM}.png")
        with exit_on("report", PictureError):
            take_picture(render_report(data, with_charts=charts), path)
        print(f"Wrote {path}.", file=sys.stderr)
    else:
        path = output or Path(f"{_DEFAULT_STEM}.html")
        write_text("report", render_report(data, with_charts=charts), path)


def _write_figure(
    runs: Sequence[ComparedRun], name: str, output: Path | None, width: float
) -> None:
    """Write the figure of that name, or print the names. Exits with an error."""
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.insight.figures import save_figure
    from sentinel.report.run_figures import draw_figure, figure_names

    if name == "list":
        names = figure_names(runs)
        longest = max(map(len, names), default=0)
        for each, title in names.items():
            print(escape_unprintable(f"{each:{longest}}  {title}"))
        return
    path = output or Path(f"{name.replace('/', '-')}.pdf")
    try:
        save_figure(draw_figure(runs, name, width=width), path)
    except (ValueError, ImportError) as error:
        raise error_exit("report", str(error)) from None
    except OSError as error:
        raise error_exit("report", f"cannot write {path}: {error.strerror or error}") from None
    print(f"Wrote {path}.", file=sys.stderr)


def write_text(command: str, text: str, path: Path) -> None:
    """Write the text to the file, or to standard output for `-`. Exits with an error.

    If that fails, an earlier file stays as it was.
    """
    if path == _STANDARD_OUTPUT:
        print(text, end="")
        return
    from sentinel.transport.replaced_file import replace_file

    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise error_exit(command, f"cannot write {path}: {error.strerror or error}") from None
    print(f"Wrote {path} ({len(text.encode()) / 1e6:.1f} MB).", file=sys.stderr)
