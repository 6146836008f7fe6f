"""Collects the rows of the data set behind an incident that opens, from the ranks of this node."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from sentinel.model.incident import Incident
from sentinel.model.notification import NotificationReason
from sentinel.model.record import STEP, WHOLE_RUN, Record
from sentinel.pipeline.engine import Result
from sentinel.store.incident_rows import (
    IncidentRows,
    RankRows,
    load_incident_rows,
    store_incident_rows,
)
from sentinel.transport.command_page import CommandPage, command_page_path
from sentinel.transport.row_page import MIN_STEPS, StepRows, read_row_page, row_page_path

ROW_DETECTORS = frozenset({
    "grad_explosion", "kl_blowup", "layer_gradient_exploding", "loss_divergence", "loss_spike",
    "nan_or_inf", "reward_explosion",
})  # fmt: skip
"""Detectors whose problem may be that of the rows of a step."""
MAX_STEPS = 4
"""Steps of an incident whose rows are stored, from the one before its onset on: some loops fetch a
batch ahead, and some incidents open later."""
MAX_KNOWN_STEPS = 4096

SWITCHED_OFF = "the setting rows of [capture] is false"
NO_RANKS = "no rank of the run trains on this node, or it is read from a log"
NO_LOADER = "no DataLoader of PyTorch gave the batches of the training"
TOO_OLD = f"the ranks are past the step: at least the last {MIN_STEPS} are known"
OTHER_NODES = "those of ranks on other nodes are not read"


class _KnownStep(NamedTuple):
    """Number and index of a step, and the ranks whose loss departed in it, these first."""

    step: int
    step_index: int
    ranks: tuple[int, ...]


class RowCollector:
    """Stores the rows of each incident that opens, in the caller's transaction.

    `ring_paths` gives the rings of the newest attempt's ranks on this node, by rank. With `is_on`
    False the ranks are asked to note none.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        ring_paths: Callable[[], Mapping[int, Path]],
        *,
        is_on: bool = True,
    ) -> None:
        self._connection, self._ring_paths, self._is_on = connection, ring_paths, is_on
        self._steps: deque[_KnownStep] = deque(maxlen=MAX_KNOWN_STEPS)
        self._world_size = 1.0
        self._switched_off: set[Path] = set()

    def update(self, result: Result) -> None:
        """Note a step of the run, and store the rows of the incidents that opened at a record."""
        record = result.record
        if record.rank != WHOLE_RUN:
            return
        if record.event is STEP:
            loss = record.spread.get("loss")
            ranks = () if loss is None else (*loss.bad_ranks, loss.max_rank)
            self._steps.append(_KnownStep(record.step, record.step_index, ranks))
        self._world_size = record.values.get("world_size", self._world_size)
        for notification in result.notifications:
            incident = notification.incident
            if (
                notification.reason is NotificationReason.OPENED
                and incident.key.detector in ROW_DETECTORS
            ):
                self._store(incident, record)

    def poll(self) -> None:
        """Ask the ranks to note no rows, if these are switched off."""
        if self._is_on:
            return
        for ring in self._ring_paths().values():
            attempt = int(ring.name.partition("-")[0])
            path = command_page_path(ring, attempt)
            if path not in self._switched_off:
                # The rank makes the page.
                with suppress(OSError, ValueError), closing(CommandPage(path)) as page:
                    page.switch_rows_off()
                    self._switched_off.add(path)

    def _store(self, incident: Incident, record: Record) -> None:
        known = load_incident_rows(self._connection, [incident.name])
        if not any(each.ranks for each in known.values()):
            found = self._collect(incident, record)
            store_incident_rows(self._connection, incident.name, found)

    def _collect(self, incident: Incident, record: Record) -> IncidentRows:
        rings = self._ring_paths() if self._is_on else {}
        if not rings:
            return IncidentRows(gap=NO_RANKS if self._is_on else SWITCHED_OFF)
        onset = self._find_step(incident.onset_step, record)
        last = max(onset.step_index, record.step_index)
        others = [onset.step_index - 1, *range(onset.step_index + 1, last + 1)]
        indices = [onset.step_index, *others[: MAX_STEPS - 1]]
        first_ranks = [incident.key.rank, incident.finding.rank, *onset.ranks]
        order = {rank: place for place, rank in reversed([*enumerate(first_ranks)])}
        ranks = sorted(rings, key=lambda rank: (order.get(rank, len(order)), rank))
        pages = {rank: read_row_page(rings[rank], indices) for rank in ranks}
        found = [
            RankRows(rank, *_renumbered(steps[index], onset, index))
            for index in indices
            for rank, (steps, _) in pages.items()
            if index in steps
        ]
        if not found or found[0].step != onset.step:
            gaps = [gap for _, gap in pages.values() if gap]
            has_page = any(row_page_path(ring).exists() for ring in rings.values())
            return IncidentRows(gap=(gaps or [TOO_OLD if has_page else NO_LOADER])[0])
        return IncidentRows(found, OTHER_NODES if self._world_size > len(rings) else "")

    def _find_step(self, step: int, record: Record) -> _KnownStep:
        """The last step of that number; else as if each step had the next number."""
        known = next((each for each in reversed(self._steps) if each.step == step), None)
        return known or _KnownStep(step, record.step_index - record.step + step, ())


def _renumbered(rows: StepRows, onset: _KnownStep, index: int) -> StepRows:
    """The rows with the number of the step in the records, which may be known only after it."""
    return rows._replace(step=onset.step) if index == onset.step_index else rows
