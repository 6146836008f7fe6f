"""The modules and the style sheet of the pages: what a report and the security policy rely on."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

import sentinel.web

STATIC = Path(sentinel.web.__file__).parent / "static"
MODULES = sorted(STATIC.rglob("*.js"))
TEXT_TOKENS = ("text", "soft", "accent", "good", "warn", "bad")
SURFACES = ("background", "surface", "raised")
MIN_CONTRAST = 4.5
"""WCAG 2.1 AA for text."""


def declarations(pattern):
    """The colours in the first rule of the style sheet that matches."""
    rule = re.search(pattern + r"\s*\{(.*?)\}", (STATIC / "style.css").read_text(), re.DOTALL)
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", rule[1]))


THEMES = {
    "light": declarations(r":root"),
    "dark": declarations(r':root\[data-theme="dark"\]'),
    "system": declarations(r':root:not\(\[data-theme="light"\]\)'),
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_sets_text_only_and_loads_its_neighbours_only(path):
    text = path.read_text()

    for refused in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert refused not in text
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert not re.search(r"^export default|\bimport\(|^await ", text, re.MULTILINE)
    for target in re.findall(r' from "([^"]+)"', text):
        assert (path.parent / target).resolve() in MODULES


def test_names_are_unique_over_all_modules():
    """A report is one script that contains them all."""
    names = Counter(
        name
        for path in MODULES
        for name in re.findall(
            r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)",
            path.read_text(),
            re.MULTILINE,
        )
    )

    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.html")), ids=lambda path: path.name)
def test_a_page_has_no_inline_script_or_style(path):
    text = path.read_text()

    assert not re.search(r"<style|\sstyle=|\son\w+=", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
    assert "http" not in text


def test_the_dark_theme_is_the_same_by_choice_and_by_system():
    assert THEMES["dark"] == THEMES["system"]
    assert THEMES["dark"].keys() == THEMES["light"].keys()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_enough_contrast(theme):
    colours = THEMES[theme]
    pairs = [*product(TEXT_TOKENS, SURFACES), ("on-accent", "accent")]
    pairs += [(name, f"{name}-tint") for name in ("good", "warn", "bad", "accent")]
    pairs += [("text", tint) for tint in ("mark", "added", "removed", "bad-tint", "good-tint")]
    pairs += [("soft", tint) for tint in ("good-tint", "warn-tint", "bad-tint")]
    low = {
        pair: round(ratio, 2)
        for pair in pairs
        if (ratio := contrast(colours[pair[0]], colours[pair[1]])) < MIN_CONTRAST
    }

    assert low == {}


def contrast(one, other):
    """Contrast ratio of two colours, WCAG 2.1."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
