"""Builders of Prometheus metric families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.utils import floatToGoString

from sentinel.metrics.family import Family, HistogramFamily, LabelValues
from sentinel.stats.histogram import Histogram

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

    def gauge(self, name: str, help_: str, samples: Samples, *labels: str) -> Family:
        """A gauge whose samples have the label `run` and these labels."""
        return self._build(name, help_, "gauge", samples, labels)

    def counter(self, name: str, help_: str, samples: Samples, *labels: str) -> Family:
        """A counter with these samples; `name` is without `_total`."""
        return self._build(name, help_, "counter", samples, labels)

    def histogram(self, name: str, help_: str, histogram: Histogram) -> Family:
        """The buckets, the sum and the number of observations."""
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        values: dict[LabelValues, float] = dict(
            zip(bounds, histogram.cumulative_counts(), strict=True)
        )
        values |= {"count": sum(histogram.counts), "sum": histogram.total}
        return HistogramFamily(name, help_, "histogram", self.run, ("le",), values)

    def info(self, name: str, help_: str, rows: Iterable[tuple[str, ...]], *labels: str) -> Family:
        """A sample of value 1 for each row of label values; `name` is without `_info`."""
        return Family(name, help_, "info", self.run, labels, dict.fromkeys(rows, 1.0))

    def _build(
        self, name: str, help_: str, typ: str, samples: Any, labels: tuple[str, ...]
    ) -> Family:
        values = samples if isinstance(samples, Mapping) else {(): samples}
        return Family(name, help_, typ, self.run, labels, values)
