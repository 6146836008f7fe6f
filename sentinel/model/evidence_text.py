"""Evidence of a finding in words: the label of a key, and the value with its unit.

A key consists of words joined by `_`; its last words can name the unit: `idle_seconds`. The label
are the words, with abbreviations written out, and the value has the unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

UNITS: Mapping[str, str] = {
    "seconds": "s",
    "bytes": "GB",
    "ratio": "%",
    "percent": "%",
    "nats": "nats",
    "steps": "steps",
    "tokens": "tokens",
    "times": "times",
}
"""Unit of a value by the last word of its key. Bytes are shown in GB, ratios in percent."""

_WORDS: Mapping[str, str] = {
    "kl": "KL",
    "ref": "reference",
    "grad": "gradient",
    "std": "standard deviation",
    "frac": "fraction",
    "gpu": "GPU",
    "cpu": "CPU",
    "xid": "XID",
    "ecc": "ECC",
    "mfu": "MFU",
    "eval": "evaluation",
    "min": "minimum",
    "max": "maximum",
    "coef": "coefficient",
    "id": "ID",
}
_SCALES: Mapping[str, float] = {"bytes": 1e-9, "ratio": 100.0}


def evidence_text(key: str, value: float | str) -> str:
    """One piece of evidence in words.

    >>> evidence_text("idle_seconds", 30.0299)
    'Idle: 30.03 s'
    >>> evidence_text("limit_ratio", 0.125)
    'Limit: 12.5 %'
    """
    words = key.split("_")
    unit = words[-1] if len(words) > 1 and words[-1] in UNITS else ""
    label = label_of("_".join(words[:-1]) if unit else key)
    if isinstance(value, str):
        return f"{label}: {value}"
    number = format_number(value * _SCALES.get(unit, 1.0))
    return f"{label}: {number} {UNITS[unit]}" if unit else f"{label}: {number}"


def label_of(name: str) -> str:
    """A name of words joined by `_` as the start of a sentence.

    >>> label_of("kl_blowup"), label_of("grad_norm")
    ('KL blowup', 'Gradient norm')
    """
    text = " ".join(_WORDS.get(word, word) for word in name.split("_"))
    return text[:1].upper() + text[1:]


def format_number(value: float) -> str:
    """The number with four digits, without an exponent where it is a usual size.

    >>> [format_number(x) for x in (149.0, 3.74238, 0.00223909, 1234567.0, float("nan"))]
    ['149', '3.742', '0.002239', '1,234,567', 'NaN']
    """
    if not isfinite(value):
        return "NaN" if value != value else ("infinity" if value > 0 else "-infinity")  # noqa: PLR0124
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"
