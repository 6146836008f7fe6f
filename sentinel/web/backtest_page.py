"""What a backtest found as a page: one HTML file without scripts, which needs no server."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from sentinel.backtest.tables import (
    ResultTable,
    notes,
    recommendation_notes,
    recommendation_title,
    result_tables,
)
from sentinel.model.clean_text import clean
from sentinel.web.module_bundle import read_static
from sentinel.web.report_page import source_hash

MAX_TEXT_CHARS = 2000

_PAGE = """\
<!doctype html>
<html lang="en" class="report">
<head>
  <meta charset="utf-8">
  <meta http-equiv="Content-Security-Policy" content="{policy}">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <meta name="referrer" content="no-referrer">
  <meta name="robots" content="noindex">
  <title>Backtest of sentinel</title>
  <link rel="icon" href="data:,">
  <style>{style}</style>
</head>
<body>
  <header class="topbar"><div class="name"><h1>Backtest</h1>
  <small class="soft">{subtitle}</small></div></header>
  <main class="page"><div class="sections">
{sections}
  </div></main>
</body>
</html>
"""


def render_backtest_page(summary: dict[str, Any]) -> str:
    """The page for the data of `sentinel.backtest.summary.summarize`, as text.

    Names and messages of runs are escaped, and unprintable characters are removed.
    """
    style = read_static("style.css")
    policy = (
        f"default-src 'none'; style-src {source_hash(style)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    runs, settings = len(summary["runs"]), len(summary["settings"])
    return _PAGE.format(
        policy=policy,
        style=style,
        subtitle=f"{runs} runs, {settings} settings, budget of {summary['budget']:g} "
        "false notifications per day of training",
        sections="\n".join(_sections(summary)),
    )


def _sections(summary: dict[str, Any]) -> Iterator[str]:
    made = summary["recommendation"]
    if made is not None:
        yield _section("Recommendation", _recommendation(made))
    for table in result_tables(summary):
        yield _section(table.title, _format(table))
    if lines := [*notes(summary)]:
        items = "".join(f"<li>{_text(line)}</li>" for line in lines)
        yield _section("Left out, and limits", f"<ul>{items}</ul>")


def _section(title: str, body: str) -> str:
    return (
        f'<details class="section" open><summary><h2>{_text(title)}</h2></summary>'
        f'<div class="body">{body}</div></details>'
    )


def _recommendation(made: dict[str, Any]) -> str:
    parts = [f"<p><strong>{_text(recommendation_title(made))}</strong> {_text(made['reason'])}</p>"]
    if made["toml"]:
        parts.append(f'<pre class="remedy">{escape(made["toml"])}</pre>')
    parts += [f"<p>{_text(line)}</p>" for line in recommendation_notes(made)]
    return "".join(parts)


def _format(table: ResultTable) -> str:
    if not table.rows:
        return f'<p class="empty">{_text(table.empty)}</p>'
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in table.columns)
    rows = []
    for row in table.rows:
        cells = [f"<td>{_text(cell)}</td>" for cell in row.cells]
        if row.severity:
            place = [*table.columns].index("Severity")
            badge = f'<span class="badge {row.severity}">{_text(row.cells[place])}</span>'
            cells[place] = f"<td>{badge}</td>"
        rows.append(f"<tr>{''.join(cells)}</tr>")
    left_out = (table.left_out or {}).items()
    captions = [table.caption, *(f"{count} more {kind}" for kind, count in left_out if count)]
    caption = "".join(f'<p class="soft">{_text(each)}</p>' for each in filter(None, captions))
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>{caption}'


def _text(text: str) -> str:
    return escape(clean(text, MAX_TEXT_CHARS))
