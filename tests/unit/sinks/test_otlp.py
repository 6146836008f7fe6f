"""What a collector responds to a log record."""

from __future__ import annotations

import pytest

from sentinel.model.delivery import Rejection, Response
from sentinel.sinks.otlp import Otlp


@pytest.mark.parametrize(
    ("response", "is_accepted", "rejection"),
    [
        (Response(200, "{}"), True, None),
        (Response(200, '{"partialSuccess": {"errorMessage": "slow down"}}'), True, None),
        (Response(200, '{"partialSuccess": {"rejectedLogRecords": "0"}}'), True, None),
        (
            Response(200, '{"partialSuccess": {"rejectedLogRecords": "1"}}'),
            False,
            Rejection.PERMANENT,
        ),
        (Response(503, ""), False, None),
    ],
)
def test_a_record_that_is_rejected_is_not_sent_again(response, is_accepted, rejection):
    sink = Otlp("http://127.0.0.1:4318/v1/logs")

    assert (sink.is_accepted(response), sink.rejection(response)) == (is_accepted, rejection)
