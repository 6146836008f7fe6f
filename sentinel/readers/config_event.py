"""Settings event: a configuration in one TensorBoard event, as transformers or HParams put it.

transformers writes its arguments as a text of JSON under the tag `args`; the plug-in HParams, used
by torch, Lightning and Accelerate, writes pairs of name and value into what a summary is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from struct import error, unpack
from typing import Any

from sentinel.readers.log_config import LARGEST, Stated, stated
from sentinel.readers.protobuf import fields, inside, text

ARGUMENTS, SESSION = b"args/text_summary", b"_hparams_/session_start_info"
"""Tags of the two."""

_SUMMARY, _VALUE, _TENSOR, _TEXTS, _ABOUT = 5, 1, 8, 8, 9
_PLUGIN, _CONTENT, _STARTED, _PAIRS = 1, 2, 3, 1
_NUMBER, _TEXT, _TRUTH = 2, 3, 4


def settings(payload: bytes) -> Stated | None:
    """What the event says of how the run is configured; None if it says nothing of that."""
    head = payload[:256]
    if len(payload) > LARGEST or not (ARGUMENTS in head or SESSION in head):
        return None
    try:
        return stated(dict(_pairs(payload)))
    except (ValueError, RecursionError, error):
        return None


def _pairs(payload: bytes) -> Iterator[tuple[str, Any]]:
    for value in _at(payload, _SUMMARY, _VALUE):
        for part in _at(value, _TENSOR, _TEXTS):
            told = json.loads(part)
            yield from told.items() if isinstance(told, dict) else ()
        for pair in _at(value, _ABOUT, _PLUGIN, _CONTENT, _STARTED, _PAIRS):
            yield _pair(pair)


def _at(message: bytes, *path: int) -> Iterator[bytes]:
    """Contents of the fields at the end of that path of numbers."""
    for number, content in fields(message):
        if number == path[0] and isinstance(content, bytes):
            if len(path) == 1:
                yield content
            else:
                yield from _at(content, *path[1:])


def _pair(pair: bytes) -> tuple[str, Any]:
    name, value = "", None
    for number, content in fields(pair):
        if number == 1:
            name = text(content)
            continue
        for kind, said in inside(content):
            if kind == _NUMBER and isinstance(said, bytes):
                value = unpack("<d", said)[0]
            elif kind == _TEXT:
                value = text(said)
            elif kind == _TRUTH:
                value = bool(said)
    return name, value
