"""CHANGELOG.md is short enough to read before an upgrade; what needs more is in docs/."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
MAX_WORDS = 1500


def test_the_changelog_has_at_most_1500_words():
    assert len((ROOT / "CHANGELOG.md").read_text().split()) <= MAX_WORDS


def test_the_contributing_guide_states_the_limit():
    assert f"CHANGELOG.md has at most {MAX_WORDS:,} words" in (ROOT / "CONTRIBUTING.md").read_text()
