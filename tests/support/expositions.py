"""Exposed: an exposition that took some verdicts, and its series as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity

DETECTORS = {"kl_blowup": Severity.CRITICAL, "loss_plateau": Severity.WARNING}


def exposition(*verdicts, tally=None, **settings):
    shown = Exposition(tally or Counters(), DETECTORS, **settings)
    for verdict in verdicts:
        shown.update(verdict)
    return shown


def samples(shown):
    """Value by family and labels, the run's label left out."""
    text = generate_latest(shown.registry).decode()
    return {
        (s.name, *(s.labels[name] for name in sorted(s.labels.keys() - {"run"}))): s.value
        for family in parse(text)
        for s in family.samples
    }
