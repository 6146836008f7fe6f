"""Builders of Prometheus metric families with their samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

LabelledValue = tuple[tuple[str, ...], float]
FamilyT = TypeVar("FamilyT", GaugeMetricFamily, CounterMetricFamily)


def gauge(
    name: str, help_: str, labels: tuple[str, ...], samples: Iterable[LabelledValue]
) -> Metric:
    """A gauge with these samples: label values in the order of `labels`, and the value."""
    return _with_samples(GaugeMetricFamily(name, help_, labels=labels), samples)


def counter(
    name: str, help_: str, labels: tuple[str, ...], samples: Iterable[LabelledValue]
) -> Metric:
    """A counter with these samples; `name` is without `_total`."""
    return _with_samples(CounterMetricFamily(name, help_, labels=labels), samples)


def run_gauge(name: str, help_: str, run: str, value: float) -> Metric:
    """A gauge with one sample, labelled with the run only."""
    return gauge(name, help_, ("run",), [((run,), value)])


def run_counter(name: str, help_: str, run: str, value: float) -> Metric:
    """A counter with one sample, labelled with the run only."""
    return counter(name, help_, ("run",), [((run,), value)])


def _with_samples(family: FamilyT, samples: Iterable[LabelledValue]) -> FamilyT:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
