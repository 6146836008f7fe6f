"""Masks what may be secret in texts of others, such as the message of an exception."""

from __future__ import annotations

import re
from functools import cache

MAX_LINE_CHARACTERS = 200
"""Length to which a line is cut."""
MASK = "***"

_MAX_INPUT_CHARACTERS = 4000
_SENSITIVE_NAME = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token(?!s|i[sz])|api[_-]?key|access[_-]?key|"
    r"private[_-]?key|credentials?|authorization|cookie|signature)"
)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """The rules in order, each with its replacement; compiled at first use, in a failing run."""
    return (
        # user:password@ and the query of a URL.
        (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.IGNORECASE), rf"\1{MASK}@"),
        (
            re.compile(
                r"(\b[a-z][a-z0-9+.-]*://[^\s?#'\"<>]*)[?#][^\s'\"<>]*?(?=[,;.)]?(?:[\s'\"<>]|$))",
                re.IGNORECASE,
            ),
            rf"\1?{MASK}",
        ),
        (re.compile(r"/services/[A-Za-z0-9/_-]+"), f"/services/{MASK}"),
        (re.compile(r"\b(Bearer|Basic)\s+[^\s'\",;]+", re.IGNORECASE), rf"\1 {MASK}"),
        # name=value; a short number is a setting, such as pad_token_id=0. The start of a word and
        # the possessive quantifier keep the time linear, however often a long word has such a name.
        (
            re.compile(
                rf"(?<![\w.-])([\w.-]*{_SENSITIVE_NAME}[\w.-]*+['\"]?\s*(?:=>|[=:])\s*)"
                r"(?!\d{1,9}\b|(?:Bearer|Basic)\b)"
                r"(\"[^\"]*\"|'[^']*'|[^\s,;)\]}]+)",
                re.IGNORECASE,
            ),
            rf"\1{MASK}",
        ),
        # The possessive quantifiers keep the time linear.
        (re.compile(r"(?<![\w.+-])[\w.+-]++@(?:[\w-]++\.)+[A-Za-z]{2,}"), MASK),
        # Keys with a known prefix, then long random texts.
        (
            re.compile(
                r"\b(?:sk|pk|rk|hf|gh[opsu]|github_pat|glpat|xox[abeprs]|AKIA|ASIA|eyJ)"
                r"[-_A-Za-z0-9.]{10,}"
            ),
            MASK,
        ),
        (re.compile(r"\b[0-9a-fA-F]{32,}\b"), MASK),
        (
            re.compile(
                r"(?<![\w+-])(?=[\w+-]*[0-9])(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])[\w+-]{32,}={0,2}"
            ),
            MASK,
        ),
    )


def redact_line(text: str) -> str:
    r"""The first line with text, cut, without control characters and what may be secret.

    Masked are the credentials and the query of URLs, values of names like `password` or `api_key`,
    addresses of e-mail, keys with a known prefix, and long random texts.

    >>> redact_line("cannot open s3://me:pw@bucket/shard-7?sig=1, api_key=abc\nmore")
    'cannot open s3://***@bucket/shard-7?***, api_key=***'
    """
    lines = (line.strip() for line in text[:_MAX_INPUT_CHARACTERS].splitlines())
    line = next(filter(None, lines), "")
    line = "".join(letter if letter.isprintable() else " " for letter in line)
    for pattern, replacement in _patterns():
        line = pattern.sub(replacement, line)
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[: MAX_LINE_CHARACTERS - 1]}…"
