"""Tests of the detector store_flooded."""

from __future__ import annotations

from sentinel.detectors.store_flooded import StoreFlooded
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.testing import first_finding


def heartbeat(second, flood=""):
    values = {"store_flooded": float(bool(flood))}
    attributes = {"store_flood": flood} if flood else {}
    return Record("run", WHOLE_RUN, 7, float(second), Event.HEARTBEAT, values, attributes)


def test_a_store_that_was_closed_is_found_with_the_reason():
    text = "The message store was closed and opened again. It had 1,001 keys of no agent."
    records = [heartbeat(second, text if second >= 5 else "") for second in range(9)]
    record, finding = first_finding(StoreFlooded(), records)

    assert record.time == 5.0
    assert finding.summary.endswith(text)
    assert (finding.severity or StoreFlooded.severity) is Severity.WARNING


def test_a_store_without_a_flood_is_clear():
    assert isinstance(StoreFlooded().update(heartbeat(1)), Clear)
