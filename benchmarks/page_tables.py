"""Markdown tables, and their places in the documentation."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


def rows(head: list[str], body: list[list[str]], texts: Collection[str] = ()) -> str:
    """A table; the first column is text, and so are those with one of the heads `texts`."""
    alignments = ["---" if each in (head[0], *texts) else "---:" for each in head]
    lines = [head, alignments, *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_table(page: Path, name: str, text: str) -> None:
    """Write a table into its place in the page. Raises ValueError if there is none."""
    content, start, end = page.read_text(), f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if start not in content or end not in content:
        raise ValueError(f"{page.name} has no place for {name}: add '{start.strip()}' and '{end}'")
    before, rest = content.split(start, 1)
    page.write_text(f"{before}{start}\n{text}\n\n{end}{rest.split(end, 1)[1]}")
