"""The exporter of metrics over OTLP, without a collector."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from sentinel.metrics.otlp import OtlpExporter
from sentinel.model.counters import Counters


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_an_exporter_that_cannot_be_made_is_logged_and_counted(error, caplog):
    def make_exporter():
        raise error

    counters = Counters()
    exporter = OtlpExporter(CollectorRegistry(), counters, "run", make_exporter)
    with caplog.at_level(logging.WARNING):
        exporter.start()
        exporter.stop()

    (record,) = caplog.records
    has_hint = "pip install 'train-sentinel[otlp]'" in record.getMessage()
    assert has_hint is (error is ImportError)
    assert counters.values == {("sentinel_otlp_exports_total", error.__name__): 1.0}
