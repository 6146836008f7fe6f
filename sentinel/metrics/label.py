"""Label: any text made fit to be the value of a Prometheus label."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

MAX_LABEL_BYTES = 128
"""Bytes of UTF-8 that a label value may have."""


@lru_cache(maxsize=4096)
def sanitize_label(text: str) -> str:
    r"""The text, composed (NFC), without control and direction marks, cut at `LONGEST` bytes.

    A lone surrogate would make the whole page impossible to encode, so one bad key could blind
    the monitoring of a run.

    >>> label("reward\nmax"), label("\ud800")
    ('rewardmax', '')
    """
    composed = unicodedata.normalize("NFC", text)
    shown = "".join(sign for sign in composed if not unicodedata.category(sign).startswith("C"))
    return shown.encode()[:MAX_LABEL_BYTES].decode(errors="ignore")
