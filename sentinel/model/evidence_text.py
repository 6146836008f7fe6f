"""Evidence of a finding in words: the label of a key, and the value with its unit.

A key consists of words joined by `_`. A word, or the longest sequence of words, that is in `UNITS`
gives the unit, and the others are the label: `kl_nats_expected` is "KL expected", in nats. A key
that ends in `_median_of_8` is shown as that of the newest 8 values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sentinel.model.quantity_text import format_bytes, format_duration, format_number


class Unit(NamedTuple):
    """A unit: its symbol, the factor from the stored value, and whether its word is shown.

    `singular` is the symbol of exactly one, if it differs.
    """

    symbol: str
    factor: float = 1.0
    is_shown: bool = False
    singular: str = ""


_MINUTE_SECONDS = 60.0
_BYTES = "bytes"

UNITS: Mapping[str, Unit] = {
    "bytes_per_second": Unit("MiB/s", 2.0**-20),
    "optimizer_steps": Unit("optimizer steps", singular="optimizer step"),
    "bytes": Unit(_BYTES),
    "seconds": Unit("s"),
    "nats": Unit("nats", singular="nat"),
    "steps": Unit("steps", singular="step"),
    "tokens": Unit("tokens", singular="token"),
    "characters": Unit("characters", singular="character"),
    "share": Unit("%", 100.0, is_shown=True),
    "relative": Unit("%", 100.0),
    "fraction": Unit("%", 100.0, is_shown=True),
    "utilisation": Unit("%", 100.0, is_shown=True),
}
"""Units by the words of a key, the longest first. Several of one key are not allowed."""

_WORDS: Mapping[str, str] = {
    "coef": "coefficient",
    "cpu": "CPU",
    "ecc": "ECC",
    "eval": "evaluation",
    "frac": "fraction",
    "gpu": "GPU",
    "gpus": "GPUs",
    "grad": "gradient",
    "kl": "KL",
    "max": "maximum",
    "mfu": "MFU",
    "min": "minimum",
    "nan": "NaN",
    "nonzero": "non-zero",
    "std": "standard deviation",
    "train": "training",
    "warmup": "warm-up",
    "xid": "XID",
}
_NAMES: Mapping[str, str] = {
    "clip_fraction": "share of clipped tokens",
    "frac_zero_std": "share of groups without variance",
    "kl_mismatch": "KL between engine and trainer",
    "kl_old": "KL to the sampling policy",
    "kl_ref": "KL to the reference",
    "truncated_fraction": "share of truncated completions",
}
"""Names of signals whose words alone do not describe them."""

_MEDIAN = "_median_of_"

NAME_KEY = "signal"
"""Key of evidence whose value is the name of a signal, which is shown in words as well."""


def evidence_text(key: str, value: float | str) -> str:
    """One piece of evidence in words.

    >>> evidence_text("kl_nats_expected", 0.41)
    'KL expected: 0.41 nats'
    >>> evidence_text("kl_nats_limit", 1.0)
    'KL limit: 1 nat'
    >>> evidence_text("data_wait_share", 0.125)
    'Data wait share: 12.5%'
    >>> evidence_text("kl_nats_median_of_8", 0.41)
    'KL (median of the last 8): 0.41 nats'
    >>> evidence_text("signal", "data_wait")
    'Signal: data wait'
    """
    words, unit = (key, None) if isinstance(value, str) else split_unit(key)
    words, _, count = words.partition(_MEDIAN)
    label = f"{label_of(words)} (median of the last {count})" if count else label_of(words)
    if isinstance(value, str):
        return f"{label}: {in_words(value) if key == NAME_KEY else value}"
    if unit is None:
        return f"{label}: {format_number(value)}"
    if unit.symbol == "s" and value >= _MINUTE_SECONDS:
        return f"{label}: {format_duration(value)}"
    if unit.symbol == _BYTES:
        return f"{label}: {format_bytes(value)}"
    space = "" if unit.symbol == "%" else " "
    number = format_number(value * unit.factor)
    symbol = unit.singular if number == "1" and unit.singular else unit.symbol
    return f"{label}: {number}{space}{symbol}"


def split_unit(key: str) -> tuple[str, Unit | None]:
    """The key without the words of its unit, and the unit, if it has one.

    >>> split_unit("fill_rate_bytes_per_second")[0]
    'fill_rate'
    """
    padded = f"_{key}_"
    for words, unit in UNITS.items():
        if f"_{words}_" in padded:
            rest = padded.replace(f"_{words}_", "_", 1).strip("_")
            return (rest if rest and not unit.is_shown else key), unit
    return key, None


def label_of(name: str) -> str:
    """A name of words joined by `_` as the start of a sentence.

    >>> label_of("kl_blowup"), label_of("grad_norm")
    ('KL blowup', 'Gradient norm')
    """
    return capitalized(in_words(name))


def capitalized(text: str) -> str:
    """The text with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def in_words(name: str) -> str:
    """A name of words joined by `_` as words, with abbreviations written out.

    >>> in_words("eval_loss")
    'evaluation loss'
    """
    return _NAMES.get(name) or " ".join(_WORDS.get(word, word) for word in name.split("_"))
