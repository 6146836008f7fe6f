"""A family of Prometheus metrics whose samples are made only where they are read one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

LabelValues = str | tuple[str, ...]
"""The value of the only label, or those of all labels; `()` without labels."""

_SUFFIXES = {"counter": "_total", "info": "_info"}


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


_TOTALS = ("count", "sum")


class HistogramFamily(Family):
    """Values by the bound of a bucket, the label `le`, and those of `count` and `sum`."""

    def series_name(self, label_values: LabelValues) -> str:
        """The name of the series of a bucket, of the sum or of the count."""
        return f"{self.name}_{label_values if label_values in _TOTALS else 'bucket'}"

    def labels_of(self, label_values: LabelValues) -> dict[str, str]:
        """All labels: of a bucket with its bound."""
        run = {} if self.run is None else {"run": self.run}
        return run if label_values in _TOTALS else {**run, "le": str(label_values)}
