"""Sanitizing of text for Prometheus label values."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

MAX_LABEL_BYTES = 128
"""Maximum size of a label value in bytes of UTF-8."""


@lru_cache(maxsize=4096)
def sanitize_label(text: str, max_bytes: int = MAX_LABEL_BYTES) -> str:
    r"""The text in NFC, without control and direction characters, cut at `max_bytes`.

    A lone surrogate cannot be encoded: a single one would make every scrape of the run fail.

    >>> sanitize_label("reward\nmax"), sanitize_label("\ud800")
    ('rewardmax', '')
    """
    composed = unicodedata.normalize("NFC", text)
    printable = "".join(c for c in composed if not unicodedata.category(c).startswith("C"))
    return printable.encode()[:max_bytes].decode(errors="ignore")
