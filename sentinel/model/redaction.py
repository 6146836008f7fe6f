"""Masks what may be secret in texts of others, such as the message of an exception."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from shlex import quote

MAX_LINE_CHARACTERS = 200
"""Length to which a line is cut."""
MAX_COMMAND_CHARACTERS = 1000
"""Length to which a command line is cut."""
MASK = "***"

_MAX_INPUT_CHARACTERS, _MAX_ARGUMENTS = 4000, 200
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
    return _cut(_masked(next(filter(None, lines), "")), MAX_LINE_CHARACTERS)


def redact_arguments(arguments: Sequence[str]) -> str:
    """A command line for a shell, cut and without what may be secret, as in `redact_line`.

    Masked besides are the value after an option such as `--api-key`, and the code after `-c`.

    >>> redact_arguments(["python", "train.py", "--lr", "1e-4", "--hf_token", "abc", "--eos=2"])
    'python train.py --lr 1e-4 --hf_token *** --eos=2'
    """
    words = (_masked(word[:_MAX_INPUT_CHARACTERS]) for word in _without_secret_values(arguments))
    return _cut(" ".join(map(_quoted, words)), MAX_COMMAND_CHARACTERS)


def _without_secret_values(arguments: Sequence[str]) -> Iterator[str]:
    is_option = re.compile(rf"--?[\w.-]*{_SENSITIVE_NAME}[\w.-]*", re.IGNORECASE).fullmatch
    previous, is_interpreter = "", True
    for argument in filter(None, arguments[:_MAX_ARGUMENTS]):
        is_value = not argument.startswith("-") and not re.fullmatch(r"\d{1,9}", argument)
        is_code = is_interpreter and previous == "-c"
        yield MASK if is_code or (is_value and is_option(previous)) else argument
        is_interpreter &= not previous or argument.startswith("-")
        previous = argument


def _quoted(word: str) -> str:
    """The word as a shell reads it; asterisks of masks are left as they are."""
    return quote(word) if re.search(r"[\s'\"\\$`;&|<>()]", word) else word


def _masked(line: str) -> str:
    line = "".join(letter if letter.isprintable() else " " for letter in line)
    for pattern, replacement in _patterns():
        line = pattern.sub(replacement, line)
    return line


def _cut(line: str, length: int) -> str:
    return line if len(line) <= length else f"{line[: length - 1]}…"
