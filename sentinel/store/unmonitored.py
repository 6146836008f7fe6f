"""What of a run is not monitored, and why: keys, patches and ranks of its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.json_safe import JsonObject
from sentinel.model.number_ranges import ranges_text

MAX_NAMED_KEYS = 3
"""Keys that are named; the rest is a number."""
_MAX_NAME_CHARS = 120


def unmonitored_parts(state: Mapping[str, Any]) -> list[JsonObject]:
    """What is not monitored: what, why, and the remedy, which may be empty.

    >>> unmonitored_parts({"patches": {"trl": {"off: KeyError in on_log": [1, 2]}}})
    [{'what': 'integration trl on ranks 1-2', 'why': 'its patch is off: KeyError in on_log', \
'remedy': ''}]
    """
    return [
        {"what": clean(what, _MAX_NAME_CHARS), "why": clean(why), "remedy": remedy}
        for what, why, remedy in _parts(state)
    ]


def is_blind(state: Mapping[str, Any]) -> bool:
    """Whether the run logs values, none of which shows how well it learns."""
    return bool(state.get("coverage")) and not state.get("monitored")


def missing_ranks(state: Mapping[str, Any]) -> list[int]:
    """Ranks of the run of which the head has received nothing; none at other agents.

    >>> cluster = {"role": "head", "nodes": [{"host": "gpu-a", "ranks": [0, 1]}]}
    >>> missing_ranks({"metadata": {"world_size": 4.0}, "cluster": cluster})
    [2, 3]
    """
    cluster = state.get("cluster", {})
    if cluster.get("role") != "head":
        return []
    world_size = int(state.get("metadata", {}).get("world_size", 0))
    reported = {rank for node in cluster.get("nodes", []) for rank in node.get("ranks", [])}
    return sorted(set(range(world_size)) - reported)


def failed_patches(
    patches: Mapping[str, Mapping[str, list[int]]],
) -> Iterator[tuple[str, str, list[int]]]:
    """Integration, status and ranks of each patch that is not fully on.

    >>> list(failed_patches({"trl": {"on": [0], "off: KeyError in on_log": [1, 2]}}))
    [('trl', 'off: KeyError in on_log', [1, 2])]
    """
    for integration, ranks_by_status in sorted(patches.items()):
        for status, ranks in sorted(ranks_by_status.items()):
            if status != "on":
                yield integration, status, ranks


def rank_text(ranks: list[int]) -> str:
    """Ranks in words.

    >>> rank_text([3]), rank_text([0, 1, 2])
    ('rank 3', 'ranks 0-2')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges_text(ranks)}"


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if is_blind(state):
        yield (
            "how well the run learns",
            "it has no loss, reward, gradient norm or KL under a key that is known",
            "",
        )
    keys = state.get("unmonitored", [])
    for each in keys[:MAX_NAMED_KEYS]:
        key, signal = each["key"], each.get("signal", "")
        setting = f'map it in the settings: [keys] "{clean(key)}" = "{signal or "<signal>"}"'
        yield f'key "{key}"', "no detector reads it", setting
    if len(keys) > MAX_NAMED_KEYS:
        yield f"{len(keys) - MAX_NAMED_KEYS} further keys", "no detector reads them", ""
    for integration, status, ranks in failed_patches(state.get("patches", {})):
        yield f"integration {integration} on {rank_text(ranks)}", f"its patch is {status}", ""
    if ranks := missing_ranks(state):
        why = "the head receives nothing from there"
        yield rank_text(ranks), why, "`sentinel status` on that node shows why"
