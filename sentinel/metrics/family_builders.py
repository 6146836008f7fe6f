"""Builders of Prometheus metric families with their samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Samples = (
    float
    | Mapping[str, float]
    | Mapping[tuple[str, str], float]
    | Mapping[tuple[str, str, str, str], float]
)
"""A single value, or values by the value of one label or of several."""


@dataclass(frozen=True)
class FamilyBuilder:
    """Builds families whose samples all have the label `run`, here a sanitized one."""

    run: str

    def gauge(self, name: str, help_: str, samples: Samples, *labels: str) -> Metric:
        """A gauge whose samples have the label `run` and these labels."""
        return self._with_samples(GaugeMetricFamily(name, help_, labels=("run", *labels)), samples)

    def counter(self, name: str, help_: str, samples: Samples, *labels: str) -> Metric:
        """A counter with these samples; `name` is without `_total`."""
        family = CounterMetricFamily(name, help_, labels=("run", *labels))
        return self._with_samples(family, samples)

    def _with_samples(
        self, family: GaugeMetricFamily | CounterMetricFamily, samples: Samples
    ) -> Metric:
        by_labels = samples if isinstance(samples, Mapping) else {(): samples}
        for labels, value in by_labels.items():
            values = (labels,) if isinstance(labels, str) else labels
            family.add_metric((self.run, *values), value)
        return family
