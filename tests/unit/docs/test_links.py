"""Every link from one of our pages to another leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")


def broken(page: Path) -> list[str]:
    """Targets of the page's links that do not exist."""
    return [
        target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_is_told(tmp_path):
    (page := tmp_path / "page.md").write_text(
        "[there](page.md#top) [gone](gone.md) [web](https://x.y)"
    )

    assert broken(page) == ["gone.md"]
