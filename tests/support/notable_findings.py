"""What is found worth a word to people: quiet findings are passed over."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.model.finding import Detector, Finding
from sentinel.model.record import Record
from sentinel.testing import update_detector


def first_loud(
    detector: Detector, records: Iterable[Record]
) -> tuple[Record, Finding] | tuple[None, None]:
    """The first record with a finding as loud as its detector, and what was found."""
    for record in records:
        opinion = update_detector(detector, record)
        if isinstance(opinion, Finding) and opinion.severity is None:
            return record, opinion
    return None, None
