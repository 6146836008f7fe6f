"""Parses one line of console output: what precedes a message, and its numbers with their keys."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.readers.log_message import message_text
from sentinel.readers.rows import STEP_KEYS, parse_number

MAX_LINE_CHARACTERS = 16_384
"""A longer line is no line of metrics."""
MAX_WORDS = 2
"""Words around a position, and as many for each pair, in a line that is not prose."""
MAX_KEY_WORDS = 3
"""Words of a key that no sign separates from its number, as in `train loss 0.5`."""
MAX_PREFIXES = 8
"""Timestamps, levels, names and ranks before a message that are removed."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[A-Za-z]|\][^\x07\x1b]{0,256}\x07?|[()][A-B0-2])")
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|NOTSET)"
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
_DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d(?:/\d{2,4})?)"
_RANKS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[(?:rank|default|RANK |Rank )(\d{1,6})\]:?\s*",
        r"\[\d{1,6},(\d{1,6})\]<std(?:out|err)>:\s?",
        r"(?:rank|Rank) ?(\d{1,6})\s*[:|]\s*",
        r"(\d{1,6}): ",
    )
)
_RANK_STARTS = frozenset("[rR0123456789")
_PREFIX = re.compile(
    "|".join(
        (
            rf"[\[(]?{_DATE}[T ]{{1,2}}{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?(?: [\w.]{{1,80}})?[\])]?:?\s*",
            rf"[\[(]?{_CLOCK}[\])]?:?\s+",
            rf"[IWEF]\d{{4,8}} {_CLOCK}\s+\d{{1,10}} [\w.]{{1,80}}:\d{{1,6}}\]\s*",
            rf"(?:\| )?[\[(<]?{_LEVEL}[\])>]?(?::[\w.]{{1,80}}:|:?\s)\s*(?:\| )?",
            r"[A-Za-z_][\w.]{0,80}:[\w<>]{1,60}:\d{1,6} - ",
            r"\([A-Za-z_][\w.]{0,60} pid=\d{1,10}(?:, ip=[\d.]{1,40})?\)\s*",
            r"\[[A-Za-z_][\w.]{0,80}(?::[\w<>]{1,60}){0,2}\]:?\s*",
            r"[\w./]{1,80}\.py:\d{1,6}\s*[:>\]-]{0,2}\s*",
            r"(?:train|train_inner|root|__main__|trainer) \| ",
            r"(?:-|>>>|=>|\*)\s+",
        )
    )
)

# No group is possessive: until Python 3.11.4 those capture too much (CPython issue 106052).
_NUMBER = (
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3}){1,6}(?!\d|,\d{3})|\d{1,40}+)(?:\.\d{0,40}+)?|\.\d{1,40}+)"
    r"(?:[eE][-+]?\d{1,4}+|(?![eE][-+]?\d))|[-+]?(?:nan|inf|infinity|NaN|Inf|Infinity|NAN|INF)\b"
)
_AFTER_NUMBER = r"(?![\d_]|[.:/-]\d)"
# A NaN is a value and no part of a key: "loss nan".
_WORD = r"(?!(?i:nan|inf|infinity)(?![\w./@%-]))[A-Za-z_][\w./@%-]{0,79}+"
_PAIR = re.compile(
    rf"(?<![\w./@%-])(?P<key>{_WORD}(?: {_WORD}){{0,4}}(?! {_WORD})"
    rf"(?: ?\([A-Za-z\d][\w.+-]{{0,20}}\))?)"
    rf"\s{{0,4}}(?:(?P<sign>[:=|])\s{{0,40}}|\s{{1,40}})"
    rf"(?:(?P<part>\d{{1,12}}+)\s?/\s?(?P<whole>\d{{1,12}}+)(?![\d./])"
    rf"|(?P<value>{_NUMBER}){_AFTER_NUMBER})"
    rf"(?P<unit>%|[A-Za-z]{{1,4}}(?:/[A-Za-z]{{1,12}})?)?(?![\w])"
    # A mean beside the value, or the numbers that it was computed from.
    rf"(?:\s{{0,2}}\(\s{{0,8}}(?:[-+\d.]|(?i:nan|inf))[^()]{{0,40}}\))?"
)
_EPOCH = re.compile(
    r"(?<![\w/])(?:train(?:ing)? )?(?P<word>epochs?)(?:\((?P<mode>\w{1,12})\))?\s{0,4}[:=#]?\s{0,8}"
    r"\[?\s{0,8}(?P<epoch>\d{1,9}(?:\.\d{1,9})?)(?![\w.])(?:\s{0,8}/\s{0,8}\d{1,9})?\]?"
    # A batch in a bracket of its own, without the number of batches.
    r"(?:\s?\[\s{0,8}(?P<batch>\d{1,12})\s{0,8}\])?",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?<![\w/-])(?<!per )(?:(?:global|train|training|total)[ _])?"
    r"(?P<word>steps?|iters?|iterations?|updates?|num_updates|episodes?|timesteps?)"
    r"\s{0,4}[:=#]?\s{0,40}\[?\s{0,8}(?P<step>\d{1,3}(?:,\d{3}){1,4}|\d{1,15})"
    r"(?:st|nd|rd|th)?(?![\d.,]*\d|[A-Za-z%])"
    r"(?:\s{0,8}/\s{0,8}(?P<total>\d{1,15}))?\]?",
    re.IGNORECASE,
)
_BATCH = re.compile(
    r"(?<![\w/])(?:mini)?batch(?:es|_id|_idx)?\s{0,4}[:=#]?\s{0,8}\[?\s{0,8}(?P<part>\d{1,12})(?![\w.])"
    r"(?:\s{0,8}/\s{0,8}(?P<whole>\d{1,12}))?\]?",
    re.IGNORECASE,
)
_COUNTER = re.compile(r"(?<![\w./])(?P<part>\d{1,12})\s{0,8}/\s{0,8}(?P<whole>\d{1,12})(?![\d./])")
# A narrow terminal leaves the graphic out.
_BAR = re.compile(r"\d{1,3}%(?:\|[^|]{0,400}\||(?= {1,2}\d{1,15}/\d{1,15} \[))\s?(?P<rest>.*)")
_BAR_STATE = re.compile(
    r"\s{0,12}(?P<part>\d{1,15})/(?P<whole>\d{1,15})\s?\[(?P<inside>.{0,8000})\]?"
)
_BAR_SPEED = re.compile(
    r"[\d:?]{1,20}<[\d:?]{1,20}(?:,\s{0,8}[\d.?e+]{1,16}\s?\w{1,12}/\w{1,12})?,?"
)
_UNFINISHED = re.compile(r"\[=*>\.|━╸|━╺")
_GRAPHICS = re.compile(r"\[[=>. ]{3,120}\]|[━╸╺─]{3,200}")
_HELD_OUT = re.compile(
    r"(?<![\w])(val|valid|validation|eval|evaluation|test|testing)(?![\w])", re.IGNORECASE
)
_WRAPPED_NUMBER = re.compile(
    r"(?:np\.|numpy\.|torch\.)?(?:float\d{1,3}|int\d{1,3}|tensor)\(([-+\w.]{1,40})"
    r"(?:, (?:device|dtype|grad_fn)=[^(){}]{1,60}){0,3}\)"
)
_CONFIGURATION = re.compile(
    r"(?:\b|_)(?:config(?:uration)?|(?:hyper)?param(?:eter)?s|arg(?:ument)?s|settings|options)"
    r"['\"]?\s{0,4}[:=]?\s{0,4}$",
    re.IGNORECASE,
)
"""What the text before a dict ends with that holds settings."""
_BARE_WORD = re.compile(r"(?<![\w'\".])(-?(?:nan|inf|NaN|Infinity))(?![\w'\".])")
_WORDS = re.compile(r"[A-Za-z]{2}\S*+")
_DIGIT = re.compile(r"\d|nan|inf", re.IGNORECASE)
_BORDER = re.compile(r"[-+=|─━┏┳┓┡╇┩└┴┘├┼┤┌┬┐╭╮╰╯┃│╞╪╡╘╧╛╒╤╕ ]{3,500}")
_ABBREVIATED = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}


@dataclass(slots=True)
class ConsoleLine:
    """What one line holds; `values` are its metrics, by key.

    `step`, `epoch` and `counter` (batch, of how many) say where the line is. `rank` is that of a
    prefix. `held_out` is whether it names an evaluation. `bar` is the description of a progress
    bar, None for any other line. `cell` is the row of a table: key and text of the value; a border
    has two empty texts. `leading` is the key of an integer that the line begins with, which may
    count steps. `total` is a number of steps without metrics, which may be that of all of them.
    `before` is the progress bar before a dict. `problem` is why a line that looks like
    one of metrics cannot be read. `text` is the line without what precedes the message.
    """

    values: dict[str, Any] = field(default_factory=dict)
    step: float | None = None
    epoch: float | None = None
    counter: tuple[int, int] | None = None
    rank: int | None = None
    held_out: bool = False
    bar: str | None = None
    is_dict: bool = False
    is_unfinished: bool = False
    cell: tuple[str, str] | None = None
    leading: str = ""
    total: float | None = None
    before: ConsoleLine | None = None
    problem: str = ""
    text: str = ""


def parse_console_line(text: str) -> ConsoleLine:
    """The numbers in a line, and where it is. Never raises; takes time linear in the length.

    >>> line = parse_console_line("[rank0]: 2024-01-01 12:00:00 - INFO - step 10: loss 0.5")
    >>> line.rank, line.step, line.values
    (0, 10.0, {'loss': 0.5})
    """
    line = ConsoleLine()
    if len(text) > MAX_LINE_CHARACTERS:
        line.problem = f"it has more than {MAX_LINE_CHARACTERS} characters"
        return line
    if "\0" in text:
        line.problem = "it holds bytes that are no text"
        return line
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = line.text = _remove_prefixes(text.strip(), line)
    if _BORDER.fullmatch(text):
        line.cell = ("", "")
    elif _parse_cell(text, line) or not _DIGIT.search(text):
        pass
    elif (brace := text.find("{")) >= 0 and text.endswith("}"):
        _parse_dict(text, brace, line)
        if (message := message_text(line.values)) is not None:
            return parse_console_line(message)
    elif brace >= 0 and re.match(r"\{\s?['\"]", text[brace:]):
        line.problem = "the dict in it is cut off"
    else:
        _parse_text(text, line)
    return line


def _remove_prefixes(text: str, line: ConsoleLine) -> str:
    for _ in range(MAX_PREFIXES):
        if line.rank is None and text[:1] in _RANK_STARTS:
            match = next((found for each in _RANKS if (found := each.match(text))), None)
            if match:
                line.rank, text = int(match[1]), text[match.end() :]
                continue
        match = _PREFIX.match(text)
        if not match:
            break
        text = text[match.end() :]
    return text


def _parse_cell(text: str, line: ConsoleLine) -> bool:
    """Whether the line is a row of a table with two columns."""
    first, last = text[:1], text[-1:]
    if first not in {"|", "│", "┃"} or last != first:
        return False
    cells = text[1:-1].split(first)
    if len(cells) != 2 or not cells[0].strip():
        return False
    line.cell = (cells[0].strip(), cells[1].strip())
    return True


def _parse_dict(text: str, brace: int, line: ConsoleLine) -> None:
    if _CONFIGURATION.search(text, 0, brace):
        return
    literal = _WRAPPED_NUMBER.sub(r"\1", text[brace:]) if "(" in text else text[brace:]
    row = _literal(literal)
    if not isinstance(row, Mapping):
        line.problem = "the dict in it cannot be read"
        return
    # A dict with words and without a step may be a configuration.
    line.is_dict = not any(map(_is_word, row.values()))
    line.values = {str(key): value for key, value in row.items()}
    if brace:
        before = ConsoleLine()
        _parse_text(text[:brace], before)
        if before.bar is not None:
            line.before = before
        else:
            line.values = before.values | line.values
            line.step, line.epoch, line.counter = before.step, before.epoch, before.counter
            line.held_out = before.held_out
    step = next((key for key in STEP_KEYS if parse_number(row.get(key)) is not None), None)
    if step is not None:
        line.is_dict, line.step = True, parse_number(row[step])


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value[:1].isalpha() and parse_number(value) is None


def _literal(text: str) -> Any:
    """The dict in a text: JSON or Python; None if it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if "\\" in text:
        # An escape may be one that Python warns of.
        return None
    try:
        return ast.literal_eval(_BARE_WORD.sub(r"'\1'", text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _parse_text(text: str, line: ConsoleLine) -> None:
    if "tensor(" in text or "float" in text:
        text = _WRAPPED_NUMBER.sub(r"\1", text)
    bar = _BAR.search(text) if "%" in text else None
    if bar:
        text = _parse_bar(text[: bar.start()], bar["rest"], line)
    line.is_unfinished = _UNFINISHED.search(text) is not None
    text, is_total = _parse_position(_GRAPHICS.sub(" ", text), line)
    remainder = _parse_pairs(text, line)
    if line.counter is None:
        _find_counters(remainder, line)
    line.held_out = line.held_out or _HELD_OUT.search(f"{line.leading} ; {remainder}") is not None
    is_total = is_total and line.bar is None and all(key.startswith("num_") for key in line.values)
    if is_total or _is_prose(remainder, len(line.values)):
        line.values = {}
        if line.bar is None:
            line.total = line.step if is_total else None
            line.step, line.epoch, line.counter = None, None, None


def _parse_position(text: str, line: ConsoleLine) -> tuple[str, bool]:
    """The text without epoch, step and batch; whether it may hold their number, as `Epochs: 90`."""
    words = []
    if match := _EPOCH.search(text):
        line.epoch = float(match["epoch"])
        if match["batch"]:
            line.counter = int(match["batch"]), 0
        words.append(match["word"])
        line.held_out = _HELD_OUT.fullmatch(match["mode"] or "") is not None
        text = f"{text[: match.start()]} ; {text[match.end() :]}"
    if match := _STEP.search(text):
        words.append(match["word"])
        number, inner = match["step"].replace(",", ""), _STEP.search(text, match.end())
        if line.epoch is None and inner is not None and inner["total"]:
            # A pass over the data, also called an iteration, and its batch: "iteration 3 step 1/9".
            line.epoch = float(number)
            line.counter = int(inner["step"].replace(",", "")), int(inner["total"])
            text = f"{text[: inner.start()]} ; {text[inner.end() :]}"
        else:
            line.step = float(number)
        text = f"{text[: match.start()]} ; {text[match.end() :]}"
    if (match := _BATCH.search(text)) and not _is_batch_size(text, match):
        line.counter = int(match["part"]), int(match["whole"] or 0)
        text = f"{text[: match.start()]} ; {text[match.end() :]}"
    return text, any(word[-1] in "sS" for word in words)


def _is_batch_size(text: str, batch: re.Match[str]) -> bool:
    """Whether the number of a batch is its size: a counter and metrics come before it."""
    counter = None if batch["whole"] else _COUNTER.search(text, 0, batch.start())
    return counter is not None and _PAIR.search(text, counter.end(), batch.start()) is not None


def _parse_pairs(text: str, line: ConsoleLine) -> str:
    """The text without the pairs of a key and a number, which go to `values`."""
    rest, end = [], 0
    for match in _PAIR.finditer(text):
        if not match["sign"] and match["key"].count(" ") >= MAX_KEY_WORDS:
            continue
        rest.append(text[end : match.start()])
        end = match.end()
        key = _clean_key(match["key"])
        line.values[key] = _pair_value(match)
        if match.start() == 0 and " " not in key and (match["value"] or "").isdecimal():
            line.leading = key
    rest.append(text[end:])
    return " ; ".join(rest)


def _is_prose(remainder: str, pairs: int) -> bool:
    """Whether there are too many words around the pairs, as in generated text."""
    return len(_WORDS.findall(remainder)) > MAX_WORDS + MAX_WORDS * pairs


def _find_counters(text: str, line: ConsoleLine) -> None:
    """A batch with the number of batches; of two such counters, the first is the epoch."""
    counters = [(int(match[1]), int(match[2])) for match in _COUNTER.finditer(text)][:2]
    if len(counters) > 1 and line.epoch is None and line.step is None:
        line.epoch = float(counters.pop(0)[0])
    if counters:
        line.counter = counters[0]


def _parse_bar(before: str, after: str, line: ConsoleLine) -> str:
    """The text of a progress bar without its graphic, time and speed."""
    line.bar = before.strip().rstrip(":")
    state = _BAR_STATE.match(after)
    if not state:
        return before
    line.counter = int(state["part"]), int(state["whole"])
    return f"{before} ; {_BAR_SPEED.sub(' ', state['inside'], count=1)}"


def _clean_key(key: str) -> str:
    return key.strip().rstrip("-").removesuffix(".")


def _pair_value(match: re.Match[str]) -> float:
    if match["value"] is None:
        whole = int(match["whole"])
        return int(match["part"]) / whole if whole else 0.0
    value = float(match["value"].replace(",", ""))
    return value * _ABBREVIATED.get(match["unit"] or "", 1.0)


def numeric_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """The keys whose values are numbers, or texts of numbers."""
    return (key for key, value in values.items() if parse_number(value) is not None)
