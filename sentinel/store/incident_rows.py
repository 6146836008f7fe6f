"""The rows of the data set behind an incident: the indices that each rank drew for its step."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from math import isfinite, isnan
from struct import pack, unpack
from typing import NamedTuple

from sentinel.model.json_safe import JsonObject

MAX_INCIDENTS = 50
"""Incidents whose rows are stored; those of the oldest are deleted."""
MAX_TEXT_RANKS, MAX_TEXT_ROWS, MAX_TOP_ROWS = 3, 8, 5
"""Ranks, and rows of each, in a text; and rows of the highest losses."""


class RankRows(NamedTuple):
    """The first rows that a rank drew for a step, of `drawn`, and their losses, or no losses.

    The loss of a row that was not measured is minus infinity.
    """

    rank: int
    step: int
    drawn: int
    rows: Sequence[int]
    losses: Sequence[float] = ()

    @property
    def top(self) -> list[tuple[int, float]]:
        """Up to `MAX_TOP_ROWS` rows with the highest losses, and these; one of NaN is highest."""
        measured = (pair for pair in zip(self.rows, self.losses, strict=False) if pair[1] != -_INF)
        ordered = sorted(measured, key=lambda pair: (isnan(pair[1]), pair[1]))
        return ordered[: -MAX_TOP_ROWS - 1 : -1]

    def to_dict(self) -> JsonObject:
        """The rows as JSON; a loss that is not finite is a text, and `losses` may be null."""
        losses = [None if each == -_INF else _json_loss(each) for each in self.losses]
        return {
            "rank": self.rank,
            "step": self.step,
            "drawn": self.drawn,
            "rows": [*self.rows],
            "losses": losses or None,
            "top": [{"row": row, "loss": _json_loss(loss)} for row, loss in self.top],
        }


class IncidentRows(NamedTuple):
    """The rows of an incident: those of its step first, by rank, then those of steps beside it.

    `gap` is why there are none, or none of some ranks, as the end of a sentence; else empty.
    """

    ranks: Sequence[RankRows] = ()
    gap: str = ""

    @property
    def of_step(self) -> list[RankRows]:
        """The rows of the step of the incident."""
        return [each for each in self.ranks if each.step == self.ranks[0].step]

    @property
    def text(self) -> str:
        """The rows of its step as a sentence, of a few ranks; empty if there are none.

        >>> IncidentRows([RankRows(3, 412, 2, [88, 1203])]).text
        'Rows of step 412: 88, 1203 on rank 3.'
        """
        found = self.of_step
        if not found:
            return ""
        parts = [_rank_text(each) for each in found[:MAX_TEXT_RANKS]]
        further = len(found) - len(parts)
        parts += [f"and those of {further} further rank{'s'[: further > 1]}"] if further else []
        by_loss = ", those of the highest losses" if found[0].top else ""
        return f"Rows of step {found[0].step}{by_loss}: {'; '.join(parts)}."


_INF = float("inf")


def store_incident_rows(connection: sqlite3.Connection, incident: str, found: IncidentRows) -> None:
    """Store the rows of an incident in the caller's transaction."""
    connection.execute("delete from drawn_rows where incident = ?", [incident])
    connection.executemany(
        "insert into drawn_rows(incident, rank, step, drawn, indices, losses, gap)"
        " values(?, ?, ?, ?, ?, ?, ?)",
        [
            *((incident, *each[:3], *_packed(each), "") for each in found.ranks),
            (incident, -1, 0, 0, b"", b"", found.gap),
        ],
    )
    connection.execute(
        "delete from drawn_rows where incident not in (select incident from drawn_rows"
        " group by incident order by max(id) desc limit ?)",
        [MAX_INCIDENTS],
    )


def load_incident_rows(
    connection: sqlite3.Connection, incidents: Iterable[str]
) -> dict[str, IncidentRows]:
    """What is stored of these incidents, by their names, in their order."""
    found = {}
    for incident in incidents:
        ranks, gap = [], None
        for rank, step, drawn, indices, losses, stored_gap in connection.execute(
            "select rank, step, drawn, indices, losses, gap from drawn_rows"
            " where incident = ? order by id",
            [incident],
        ):
            if rank < 0:
                gap = str(stored_gap)
                continue
            rows = unpack(f"<{len(indices) // 8}q", indices)
            ranks.append(RankRows(rank, step, drawn, rows, unpack(f"<{len(losses) // 4}f", losses)))
        if gap is not None:
            found[incident] = IncidentRows(ranks, gap)
    return found


def case_incidents(connection: sqlite3.Connection, case: str) -> list[str]:
    """The names of the incidents of a stored case."""
    row = connection.execute("select body from case_history where name = ?", [case]).fetchone()
    return [*map(str, json.loads(row[0])["incidents"])] if row else []


def rows_text(connection: sqlite3.Connection, incidents: Iterable[str]) -> str:
    """The rows of the first of these incidents that has some, as a sentence; else empty."""
    found = load_incident_rows(connection, incidents)
    return next((each.text for each in found.values() if each.text), "")


def _packed(rank: RankRows) -> tuple[bytes, bytes]:
    rows, losses = rank.rows, rank.losses
    return pack(f"<{len(rows)}q", *rows), pack(f"<{len(losses)}f", *losses)


def _rank_text(rank: RankRows) -> str:
    """Its rows of the highest losses if these are known, else the first ones."""
    top = rank.top
    shown = [f"{row} (loss {loss:.4g})" for row, loss in top]
    shown = shown or [*map(str, rank.rows[:MAX_TEXT_ROWS])]
    further = rank.drawn - len(shown)
    more = f" and {further} more" if further else ""
    return f"{', '.join(shown)}{more} on rank {rank.rank}"


def _json_loss(loss: float) -> float | str:
    return loss if isfinite(loss) else str(loss)
