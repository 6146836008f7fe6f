"""Texts are cleaned by the category of each character, with a table of bounded size."""

import unicodedata

from sentinel.model import clean_text
from sentinel.model.clean_text import clean

CODES = [*range(0x3000), *range(0x3000, 0x30000, 11)]
"""More characters than the table caches."""


def expected(character):
    category = unicodedata.category(character)
    if character.isspace() or category.startswith("Z"):
        return " "
    return "" if category.startswith("C") else character


def test_a_character_is_cleaned_by_its_category_cached_or_not():
    text = "".join(map(chr, CODES))
    cleaned = "".join(map(expected, text))

    assert clean(text) == cleaned
    assert clean(text) == cleaned


def test_the_table_is_bounded_after_every_character():
    clean("".join(map(chr, CODES)))

    assert len(CODES) > 2 * clean_text._MAX_CACHED
    assert len(clean_text._CLEAN_CHARACTERS) <= clean_text._MAX_CACHED


def test_a_character_is_cached_after_every_other():
    clean("".join(map(chr, CODES)))
    clean("\U0001f525")

    assert ord("\U0001f525") in clean_text._CLEAN_CHARACTERS
