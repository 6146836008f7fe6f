"""The runbooks as web pages: one of each alert and of each cause.

They are the generated pages of docs/runbooks. The wheel holds them beside this module.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_RUNBOOK_LINK = re.compile(r"\]\(([a-z0-9_]+)\.md(#[\w-]+)?\)")
_OTHER_PAGE_LINK = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def runbook_page(request: Request) -> HTMLResponse:
    """The runbook whose name is in the path; 404 with the list of all if there is none."""
    text = read_runbook(request.path_params["name"])
    if text is None:
        return HTMLResponse(_index_page("There is no runbook of that name."), 404)
    return HTMLResponse(render_runbook(text))


def runbook_index(_: Request) -> HTMLResponse:
    """The list of all runbooks."""
    return HTMLResponse(_index_page(""))


def read_runbook(name: str) -> str | None:
    """The Markdown text of a runbook; None if there is none of that name."""
    path = _directory() / f"{name}.md"
    return path.read_text(encoding="utf-8") if _NAME.fullmatch(name) and path.is_file() else None


@cache
def render_runbook(text: str) -> str:
    """The page of a runbook; HTML in its text is escaped."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 -- most agents serve no runbook

    found = _TITLE.search(text)
    markdown = _RUNBOOK_LINK.sub(r"](\1\2)", _COMMENT.sub("", text))
    markdown = _OTHER_PAGE_LINK.sub(r"\1", markdown)
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return _page(found[1] if found else "Runbook", f"{body}<p><a href='./'>All runbooks</a></p>")


def _index_page(note: str) -> str:
    paths = sorted(_directory().glob("*.md"))
    items = "".join(f"<li><a href='{path.stem}'>{_title(path)}</a></li>" for path in paths)
    return _page("Runbooks", f"<h1>Runbooks</h1><p>{escape(note)}</p><ul>{items}</ul>")


def _title(path: Path) -> str:
    found = _TITLE.search(path.read_text(encoding="utf-8"))
    return escape(found[1] if found else path.stem)


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><link rel='stylesheet' href='../static/style.css'>"
        "<link rel='icon' href='data:,'>"
        f"<main class='runbook'>{body}</main></html>"
    )


@cache
def _directory() -> Path:
    """The folder of the wheel, or docs/runbooks of a checkout."""
    packaged = Path(__file__).parent / "runbooks"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "docs" / "runbooks"
