"""Links between the documents of the project lead to existing files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
RELATIVE = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")
ABSOLUTE = re.compile(
    r"\]\(https://(?:github\.com/train-sentinel/train-sentinel/(?:blob|tree)"
    r"|raw\.githubusercontent\.com/train-sentinel/train-sentinel)/main/([^)#\s]+)"
)


def broken(page: Path) -> list[str]:
    """Link targets of a document that do not exist."""
    text = page.read_text()
    relative = [each for each in RELATIVE.findall(text) if not (page.parent / each).exists()]
    return relative + [each for each in ABSOLUTE.findall(text) if not (ROOT / each).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files(page):
    assert broken(page) == []


def test_the_readme_has_no_relative_link():
    """PyPI shows the README without the repository."""
    assert RELATIVE.findall((ROOT / "README.md").read_text()) == []


def test_a_broken_link_is_reported(tmp_path):
    host = "https://github.com/train-sentinel/train-sentinel/blob/main"
    (page := tmp_path / "page.md").write_text(
        f"[here](page.md#top) [gone](gone.md) [web](https://x.y) [lost]({host}/docs/lost.md)"
    )

    assert broken(page) == ["gone.md", "docs/lost.md"]
