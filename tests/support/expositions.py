"""An exposition with some results, and its samples as Prometheus parses them."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity

DETECTORS = {"kl_blowup": Severity.CRITICAL, "loss_plateau": Severity.WARNING}


def make_exposition(*results, counters=None, **arguments):
    """An exposition updated with these results; `arguments` are further ones of `Exposition`."""
    exposition = Exposition(counters or Counters(), DETECTORS, **arguments)
    for result in results:
        exposition.update(result)
    return exposition


def samples(exposition):
    """Values by name and label values, without the label of the run."""
    text = generate_latest(exposition.registry).decode()
    return {
        (s.name, *(s.labels[name] for name in sorted(s.labels.keys() - {"run"}))): s.value
        for family in parse(text)
        for s in family.samples
    }
