"""Families of Prometheus metrics, whose samples are made only where they are read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from sentinel.stats.histogram import Histogram

LabelValues = str | tuple[str, ...]
"""The value of the only label, or those of all labels; `()` without labels."""

_SUFFIXES = {"counter": "_total", "info": "_info"}
_TOTALS = ("count", "sum")
Samples = (
    float
    | Mapping[str, float]
    | Mapping[tuple[str, str], float]
    | Mapping[tuple[str, str, str, str], float]
)
"""A single value, or values by the value of one label or of several."""


@dataclass(eq=False)
class Family(Metric):
    """Values by the values of `labels`; all have the label `run` too, unless that is None.

    `type` is "gauge", "counter", "info" or, in a subclass, "histogram", and `name` is without the
    suffix of its samples. Making
    a `Sample` of each value takes longer than writing it, so the encoder reads `values`. The name,
    a constant, is not validated at each scrape.
    """

    name: str
    documentation: str
    type: str
    run: str | None
    labels: tuple[str, ...]
    values: Mapping[LabelValues, float]
    unit: str = ""

    def has_same_text(self, other: Family) -> bool:
        """Whether equal label values of both are the same series, with the same documentation."""
        return (
            self.run == other.run
            and self.labels == other.labels
            and self.type == other.type
            and self.documentation == other.documentation
        )

    @property
    def sample_name(self) -> str:
        """The name of each sample."""
        return self.name + _SUFFIXES.get(self.type, "")

    def series_name(self, label_values: LabelValues) -> str:  # noqa: ARG002 - of a histogram it differs
        """The name of the sample with these values."""
        return self.sample_name

    def labels_of(self, label_values: LabelValues) -> dict[str, str]:
        """All labels of the sample with these values."""
        texts = (label_values,) if isinstance(label_values, str) else label_values
        run = {} if self.run is None else {"run": self.run}
        return run | dict(zip(self.labels, texts, strict=True))

    # A list that is made when it is read, and can be replaced.
    @cached_property
    def samples(self) -> list[Sample]:  # type: ignore[override]
        """The samples, for readers other than the encoder."""
        return [
            Sample(self.series_name(key), self.labels_of(key), value)
            for key, value in self.values.items()
        ]


class HistogramFamily(Family):
    """Values by the bound of a bucket, the label `le`, and those of `count` and `sum`."""

    def series_name(self, label_values: LabelValues) -> str:
        """The name of the series of a bucket, of the sum or of the count."""
        return f"{self.name}_{label_values if label_values in _TOTALS else 'bucket'}"

    def labels_of(self, label_values: LabelValues) -> dict[str, str]:
        """All labels: of a bucket with its bound."""
        run = {} if self.run is None else {"run": self.run}
        return run if label_values in _TOTALS else {**run, "le": str(label_values)}


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
