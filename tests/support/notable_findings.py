"""The first finding of a detector that is at the detector's own severity."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.model.finding import Detector, Finding
from sentinel.model.record import Record
from sentinel.testing import update_detector


def first_notable(
    detector: Detector, records: Iterable[Record]
) -> tuple[Record, Finding] | tuple[None, None]:
    """The first record with a finding whose severity is not lowered, and that finding."""
    for record in records:
        output = update_detector(detector, record)
        if isinstance(output, Finding) and output.severity is None:
            return record, output
    return None, None
