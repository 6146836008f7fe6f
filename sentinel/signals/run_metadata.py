"""About: what a run says of itself, or gives away, that decides what its keys mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.model.record import COLLECTIVE_KEY, UNKNOWN_OUTCOME, Record
from sentinel.signals.key_map import FRAMEWORK_FACTS, KeyMap, detect_framework, select_key_map
from sentinel.signals.kl import KL_FACTS

MAX_DETECTION_KEYS = 1024
"""Keys of a run whose framework nobody told that are looked at; by then it is none of ours."""


@dataclass(slots=True)
class RunMetadata:
    """`facts` are those of `ABOUT` that are known; `keys` are looked at while they tell nothing.

    `hosts` are those of ranks that told theirs.
    """

    metadata: dict[str, str] = field(default_factory=dict)
    observed_keys: set[str] = field(default_factory=set)
    host_by_rank: dict[int, str] = field(default_factory=dict)

    @property
    def key_map(self) -> KeyMap:
        """How the run speaks."""
        return select_key_map(self.metadata)

    def update_metadata(
        self, metadata: Mapping[str, str], *, fill_missing_only: bool = False
    ) -> None:
        """Take facts over; `late` ones say nothing against those that are known.

        Nor does a framework that others are built on unsay the one that is built on it.
        """
        news = {name: metadata[name] for name in KL_FACTS if name in metadata}
        if self.key_map.framework and not select_key_map(news).framework:
            news = {name: fact for name, fact in news.items() if name not in FRAMEWORK_FACTS}
        self.metadata = (
            {**news, **self.metadata} if fill_missing_only else {**self.metadata, **news}
        )

    def update_from_start(self, start: Record) -> None:
        """Take over what a rank says of itself, and of the run, when it starts."""
        self.update_metadata(start.attributes, fill_missing_only=True)
        if "host" in start.attributes:
            self.host_by_rank[start.rank] = start.attributes["host"]

    def detect_framework(self, keys: Iterable[str]) -> None:
        """Look for a framework in the keys of a record, and of those before it."""
        if (
            self.key_map.framework
            or len(self.observed_keys) >= MAX_DETECTION_KEYS
            or self.observed_keys.issuperset(keys)
        ):
            return
        self.observed_keys.update(keys)
        self.update_metadata(detect_framework(self.observed_keys))
        if self.key_map.framework:
            self.keys.clear()


def is_collective_turned_off(record: Record) -> bool:
    """Whether it is said of a collective that from now on each node's own agent tells of its ranks.

    They are to be waited for as at a start.
    """
    return record.rank == 0 and record.attributes.get(COLLECTIVE_KEY, "").startswith("off")


def is_collective_handover(stop: Record) -> bool:
    """Whether a rank ended for the collective alone, as far as anybody knows."""
    return COLLECTIVE_KEY in stop.attributes and stop.attributes.get("outcome") in (
        "finished",
        UNKNOWN_OUTCOME,
    )


def is_provisional_stop(stop: Record) -> bool:
    """Whether a rank's own node may yet tell more of that end; or that it is none."""
    return stop.attributes.get("outcome") == UNKNOWN_OUTCOME or is_collective_handover(stop)


MAX_METADATA_KEYS = 200
"""Texts, and as many numbers, that a run may say of itself; the first ones seen."""


MAX_METADATA_CHARS = 1000
"""Characters kept of one text that a run says of itself."""


MAX_PATCHES = 10_000
"""Taps that are followed, each rank's counted; the first ones seen."""


PATCH_KEY_PREFIX = "tap/"
"""What begins the name of a fact that tells how an integration's tap is."""
