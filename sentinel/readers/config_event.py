"""Configuration in a TensorBoard event, as written by transformers or the HParams plugin.

transformers writes its arguments as JSON text under the tag `args`. HParams, used by torch,
Lightning and Accelerate, writes pairs of name and value into the metadata of a summary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from struct import error, unpack
from typing import Any

from sentinel.readers.log_config import MAX_CONFIG_BYTES, LoggedConfig, extract_config
from sentinel.readers.protobuf import decode_text, fields, subfields

ARGUMENTS_TAG, HPARAMS_TAG = b"args/text_summary", b"_hparams_/session_start_info"
"""Tags of these events."""

_SUMMARY, _VALUE, _TENSOR, _STRINGS, _METADATA = 5, 1, 8, 8, 9
_PLUGIN, _CONTENT, _SESSION_START, _PAIRS = 1, 2, 3, 1
_NUMBER, _TEXT, _BOOL = 2, 3, 4


def decode_config(payload: bytes) -> LoggedConfig | None:
    """The configuration in an event; None if there is none."""
    head = payload[:256]
    if len(payload) > MAX_CONFIG_BYTES or not (ARGUMENTS_TAG in head or HPARAMS_TAG in head):
        return None
    try:
        return extract_config(dict(_config_items(payload)))
    except (ValueError, RecursionError, error):
        return None


def _config_items(payload: bytes) -> Iterator[tuple[str, Any]]:
    for value in _find_fields(payload, _SUMMARY, _VALUE):
        for part in _find_fields(value, _TENSOR, _STRINGS):
            arguments = json.loads(part)
            yield from arguments.items() if isinstance(arguments, dict) else ()
        for pair in _find_fields(value, _METADATA, _PLUGIN, _CONTENT, _SESSION_START, _PAIRS):
            yield _decode_pair(pair)


def _find_fields(message: bytes, *path: int) -> Iterator[bytes]:
    """Contents of the nested fields at that path of field numbers."""
    for number, content in fields(message):
        if number == path[0] and isinstance(content, bytes):
            if len(path) == 1:
                yield content
            else:
                yield from _find_fields(content, *path[1:])


def _decode_pair(pair: bytes) -> tuple[str, Any]:
    name, value = "", None
    for number, content in fields(pair):
        if number == 1:
            name = decode_text(content)
            continue
        for kind, raw in subfields(content):
            if kind == _NUMBER and isinstance(raw, bytes):
                value = unpack("<d", raw)[0]
            elif kind == _TEXT:
                value = decode_text(raw)
            elif kind == _BOOL:
                value = bool(raw)
    return name, value
