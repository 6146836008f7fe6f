"""Metadata, settings and patch states that the ranks of a run reported."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from sentinel.model.record import WHOLE_RUN, Record
from sentinel.signals.run_metadata import (
    MAX_METADATA_CHARS,
    MAX_METADATA_KEYS,
    MAX_PATCHES,
    PATCH_KEY_PREFIX,
)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

PATCH_STATES = ("on", "partial", "off")
"""A patch is on; on, but without a part that this version of its framework lacks; or off."""


@dataclass(slots=True)
class ReportedMetadata:
    """The newest value of each key, bounded in the number of keys and the length of texts."""

    texts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    patches: dict[tuple[str, int], str] = field(default_factory=dict)
    """The last reported status of the patch, by integration and rank."""

    def copy(self) -> ReportedMetadata:
        """A copy that later updates do not change."""
        return replace(
            self,
            texts=self.texts.copy(),
            settings=self.settings.copy(),
            patches=self.patches.copy(),
        )

    def update(self, record: Record) -> None:
        """Store the metadata of a record; it replaces older values."""
        for name, text in record.attributes.items():
            if not name.startswith(PATCH_KEY_PREFIX):
                _put_bounded(self.texts, name, text[:MAX_METADATA_CHARS], MAX_METADATA_KEYS)
            elif record.rank != WHOLE_RUN:
                patch = name.removeprefix(PATCH_KEY_PREFIX), record.rank
                _put_bounded(self.patches, patch, text[:MAX_METADATA_CHARS], MAX_PATCHES)
        for name, value in record.values.items():
            if name != "global_step":
                _put_bounded(self.settings, name, value, MAX_METADATA_KEYS)

    def add_missing(self, record: Record) -> None:
        """Store the metadata of a record for which no value is known yet."""
        attributes = {key: text for key, text in record.attributes.items() if key not in self.texts}
        values = {key: n for key, n in record.values.items() if key not in self.settings}
        self.update(replace(record, attributes=attributes, values=values))


def patch_state(text: str) -> str:
    """One of `PATCH_STATES`, from the status that a patch reports.

    >>> patch_state("on, without Trainer.step"), patch_state("off: TypeError in before_step")
    ('partial', 'off')
    """
    if text == "on":
        return text
    return "partial" if text.startswith("on,") else "off"


def _put_bounded(mapping: dict[KeyT, ValueT], key: KeyT, value: ValueT, max_size: int) -> None:
    """Replace the value of a known key; add a new key while there are less than `max_size`."""
    if key in mapping or len(mapping) < max_size:
        mapping[key] = value
