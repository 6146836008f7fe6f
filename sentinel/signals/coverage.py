"""Which signals of a run are monitored, and which of its keys look like signals but are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sentinel.signals.catalogue import POSITION_KEYS, SIGNAL_GROUPS, SIGNALS, WEIGHT_KEY, eval_name
from sentinel.signals.key_words import nearest_signal

SETTLED_RECORDS = 32
"""Records after which the keys of a running run are judged: some are logged only now and then."""

MAX_KEYS = 1024
"""Keys of a run that are examined; the first ones seen."""

MAX_NAMED_KEYS = 8
"""Keys that are named in a text."""

_OUTCOMES = frozenset(
    name
    for title in ("Loss", "KL divergence", "Reward and preference", "Objective",
                  "Completions and samples")
    for signal in SIGNAL_GROUPS[title]
    for name in (signal.name, eval_name(signal.name))
) | {"grad_norm"}  # fmt: skip
"""Signals that show how well a model learns; a learning rate or a speed does not."""

_NO_TRAINING_KEYS = POSITION_KEYS | {WEIGHT_KEY}


class UnmonitoredKey(NamedTuple):
    """A logged key that no detector reads; `signal` is the nearest signal, empty if none is."""

    key: str
    signal: str = ""


@dataclass(slots=True)
class Coverage:
    """The keys of one run; `readable` are the signals that the enabled detectors read."""

    readable: frozenset[str] = frozenset()
    names: dict[str, None] = field(default_factory=dict)
    record_count: int = 0

    def update(self, values: Mapping[str, float]) -> None:
        """Take note of the names of a training step or an evaluation of the run."""
        self.record_count += 1
        if values.keys() <= self.names.keys() or len(self.names) >= MAX_KEYS:
            return
        self.names.update(dict.fromkeys(values))

    def copy(self) -> Coverage:
        """A copy that later updates do not change."""
        return Coverage(self.readable, self.names.copy(), self.record_count)

    @property
    def is_settled(self) -> bool:
        """Whether enough records were seen for a statement about a run that continues."""
        return self.record_count >= SETTLED_RECORDS

    @property
    def monitored(self) -> list[str]:
        """The signals of the run that show how well it learns and that detectors read."""
        return [name for name in self.names if name in self.readable and name in _OUTCOMES]

    @property
    def is_blind(self) -> bool:
        """Whether no monitored signal shows how well the run learns."""
        return bool(self.names) and not self.monitored

    @property
    def unmonitored(self) -> list[UnmonitoredKey]:
        """Keys that look like a signal which the run has under no other key.

        If nothing is monitored, every key that could be one.
        """
        found = [*self._candidates()]
        if found or not self.is_blind:
            return found
        return [UnmonitoredKey(key) for key in self.names if self._is_unknown(key)]

    def _candidates(self) -> Iterator[UnmonitoredKey]:
        is_blind = self.is_blind
        for key in self.names:
            if self._is_unknown(key) or (is_blind and key in _OUTCOMES):
                signal = nearest_signal(key)
                # In a run with another outcome, a score is any metric.
                is_doubtful = not is_blind and "score" in key.lower()
                if signal in self.readable and signal not in self.names and not is_doubtful:
                    yield UnmonitoredKey(key, signal)

    def _is_unknown(self, key: str) -> bool:
        return not (
            key in SIGNALS
            or key in _NO_TRAINING_KEYS
            or key.removeprefix("eval_").removeprefix("test_") in SIGNALS
            or key.startswith("rewards/")
        )


def coverage_text(is_blind: bool, unmonitored: Iterable[UnmonitoredKey]) -> str:
    """What is not monitored and the setting that maps it, for people; empty if nothing is amiss.

    >>> print(coverage_text(False, [UnmonitoredKey("ploss_0", "loss")]))
    no detector reads "ploss_0" (nearest signal: loss); map it in the settings: [keys] \
"ploss_0" = "loss"
    """
    keys = [*unmonitored]
    named = ", ".join(
        f'"{each.key}"' + (f" (nearest signal: {each.signal})" if each.signal else "")
        for each in keys[:MAX_NAMED_KEYS]
    )
    if len(keys) > MAX_NAMED_KEYS:
        named += f" and {len(keys) - MAX_NAMED_KEYS} more"
    blind = (
        "nothing of this run is monitored except for NaN and infinity: it has no loss, reward, "
        "gradient norm or KL under a key that is known"
    )
    parts = [blind] if is_blind else []
    if keys:
        unknown = UnmonitoredKey(keys[0].key, "<signal>")
        example = next((each for each in keys if each.signal), unknown)
        them = "it" if len(keys) == 1 else "them"
        parts.append(
            f"no detector reads {named}; map {them} in the settings: "
            f'[keys] "{example.key}" = "{example.signal}"'
        )
    return "; ".join(parts)
