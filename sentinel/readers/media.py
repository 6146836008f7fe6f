"""Images and histograms that a log holds, as readers find them between the numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Literal

MAX_BINS = 512
"""Bins of a histogram that are kept; neighbours of a finer one are added up."""


@dataclass(frozen=True, slots=True)
class LoggedMedia:
    """One image or histogram of a log; `time` is in seconds since the epoch.

    An image is `length` bytes of the file `source` from `offset` on; a histogram is the JSON text
    `body`.
    """

    name: str
    step: int
    time: float
    kind: Literal["image", "histogram"]
    source: Path | None = None
    offset: int = 0
    length: int = 0
    body: str = ""


def histogram_body(edges: Sequence[float], counts: Sequence[float]) -> str:
    """A histogram as JSON, `{"edges": [...], "counts": [...]}` with one edge more than counts.

    "" if it is none: numbers that are not finite, no bin, or edges that do not rise.
    """
    if len(edges) != len(counts) + 1 or not counts:
        return ""
    if not all(map(isfinite, (*edges, *counts))) or min(counts) < 0:
        return ""
    if any(right < left for left, right in pairwise(edges)):
        return ""
    while len(counts) > MAX_BINS:
        counts = [sum(counts[at : at + 2]) for at in range(0, len(counts), 2)]
        edges = [*edges[:-1:2], edges[-1]]
    return json.dumps({"edges": list(edges), "counts": list(counts)})
