"""What other settings change in the incidents of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from sentinel.backtest.run_replay import FoundIncident


@dataclass(frozen=True, slots=True)
class IncidentChanges:
    """The incidents that appear, those that go, and pairs of those that both settings find.

    Of the pairs, those that are equal are left out.
    """

    appeared: list[FoundIncident] = field(default_factory=list)
    gone: list[FoundIncident] = field(default_factory=list)
    changed: list[tuple[FoundIncident, FoundIncident]] = field(default_factory=list)


def compare_incidents(
    before: Iterable[FoundIncident], after: Iterable[FoundIncident]
) -> IncidentChanges:
    """Pair the incidents of a detector and rank that are there at the same steps, in order."""
    changes = IncidentChanges()
    old, new = _by_detector(before), _by_detector(after)
    for key in dict.fromkeys([*old, *new]):
        _pair(old.get(key, []), new.get(key, []), changes)
    for found in (changes.appeared, changes.gone):
        found.sort(key=lambda each: each.opened_step)
    return changes


def _by_detector(
    incidents: Iterable[FoundIncident],
) -> dict[tuple[str, int | None], list[FoundIncident]]:
    found = defaultdict(list)
    for each in incidents:
        found[each.detector, each.rank].append(each)
    return {
        key: sorted(several, key=lambda each: each.opened_step) for key, several in found.items()
    }


def _pair(
    before: Sequence[FoundIncident], after: Sequence[FoundIncident], changes: IncidentChanges
) -> None:
    left = [*before]
    for incident in after:
        match = next((each for each in left if _overlap(each, incident)), None)
        if match is None:
            changes.appeared.append(incident)
            continue
        left.remove(match)
        if match != incident:
            changes.changed.append((match, incident))
    changes.gone.extend(left)


def _overlap(one: FoundIncident, other: FoundIncident) -> bool:
    return _first(one) <= _last(other) and _first(other) <= _last(one)


def _first(incident: FoundIncident) -> float:
    return min(incident.onset_step, incident.opened_step)


def _last(incident: FoundIncident) -> float:
    return inf if incident.resolved_step is None else incident.resolved_step
