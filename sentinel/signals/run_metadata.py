"""Run metadata used to interpret logged keys: framework, algorithm, KL settings, hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.model.record import Record
from sentinel.signals.catalogue import normalize_key
from sentinel.signals.key_assignment import KeyAssignment
from sentinel.signals.key_map import (
    FRAMEWORK_METADATA_KEYS,
    KeyMap,
    detect_framework,
    select_key_map,
    with_assigned,
)
from sentinel.signals.kl import KL_METADATA_KEYS

MAX_DETECTION_KEYS = 1024
"""Keys of a run of unknown framework that are examined; after that it stays unknown."""

MAX_METADATA_KEYS = 200
"""Texts, and as many numbers, that are stored as metadata of a run; the first ones seen."""

MAX_METADATA_CHARS = 1000
"""Characters stored of one text."""

MAX_PATCHES = 10_000
"""Patches whose state is stored, counted per rank; the first ones seen."""

PATCH_KEY_PREFIX = "patch/"
"""Prefix of attributes that hold the state of an integration's patch."""

PROJECT_KEY, TAGS_KEY = "sentinel/project", "sentinel/tags"
"""Metadata with the settings by which the list of runs can be grouped."""

NAME_KEY = "monitor/name"
"""Metadata with the name that the user gave the run, of which its id has letters and digits."""

ACTIVE_DROPOUT_KEY = "active_dropout"
"""Metadata: the modules that drop elements of the trained model in its training mode."""

CHECKS_KEY = "monitor/checks"
"""Metadata that is present if the checks of the training are switched off."""


def join_tags(tags: Iterable[str]) -> str:
    """The tags as one text of the metadata.

    >>> join_tags(["grpo", "ablation, 2"])
    'grpo,ablation 2'
    """
    return ",".join(" ".join(tag.replace(",", " ").split()) for tag in tags)


def split_tags(text: str) -> list[str]:
    """The tags in a text of `join_tags`.

    >>> split_tags("grpo,ablation 2"), split_tags("")
    (['grpo', 'ablation 2'], [])
    """
    return [tag for tag in text.split(",") if tag]


@dataclass(slots=True)
class RunMetadata:
    """What is known of a run: the `metadata` that its keys depend on, and the host of each rank.

    `observed_keys` are collected while the framework is unknown. `assignment` holds the keys that
    stand for signals by the settings or by their words.
    """

    metadata: dict[str, str] = field(default_factory=dict)
    observed_keys: set[str] = field(default_factory=set)
    host_by_rank: dict[int, str] = field(default_factory=dict)
    assignment: KeyAssignment = field(default_factory=KeyAssignment)

    @property
    def key_map(self) -> KeyMap:
        """The key map of the run's framework, with the keys that are the run's own."""
        key_map, assigned = select_key_map(self.metadata), self.assignment.assigned
        return with_assigned(key_map, tuple(assigned.items())) if assigned else key_map

    def configure_keys(self, keys: Mapping[str, str]) -> None:
        """Take over the keys of the settings, with the signals that they stand for."""
        self.assignment.configured = {normalize_key(key): name for key, name in keys.items()}

    def observe_keys(self, keys: Collection[str]) -> bool:
        """Learn from the keys of a record; whether the assignment of keys changed."""
        self.detect_framework(keys)
        return self.assignment.observe(keys, select_key_map(self.metadata))

    def update_metadata(
        self, metadata: Mapping[str, str], *, fill_missing_only: bool = False
    ) -> None:
        """Take over metadata that keys depend on, or only what is not known yet.

        A generic framework does not replace one that is built on it.
        """
        new = {name: metadata[name] for name in KL_METADATA_KEYS if name in metadata}
        if self.key_map.framework and not select_key_map(new).framework:
            new = {
                name: value for name, value in new.items() if name not in FRAMEWORK_METADATA_KEYS
            }
        self.metadata = {**new, **self.metadata} if fill_missing_only else {**self.metadata, **new}

    def update_from_start(self, start: Record) -> None:
        """Take over the metadata and the host that a rank reports when it starts."""
        self.update_metadata(start.attributes, fill_missing_only=True)
        if "host" in start.attributes:
            self.host_by_rank[start.rank] = start.attributes["host"]

    def detect_framework(self, keys: Iterable[str]) -> None:
        """Detect the framework from the keys of a record and of those before it."""
        if (
            self.key_map.framework
            or len(self.observed_keys) >= MAX_DETECTION_KEYS
            or self.observed_keys.issuperset(keys)
        ):
            return
        self.observed_keys.update(keys)
        self.update_metadata(detect_framework(self.observed_keys))
        if self.key_map.framework:
            self.observed_keys.clear()
