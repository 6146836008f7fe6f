"""A Prometheus histogram of observations, as a family that the encoder writes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from sentinel.metrics.family import Family, LabelValues

STEP_TIME_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(25.0, 50.0, 100.0, 250.0, 500.0, 1000.0),
)
"""Upper bounds in seconds: from a small model to a step of RL with long generations."""


class HistogramFamily(Family):
    """Values by the bound of a bucket, and `sum` and `count`; the label is `le`."""

    def series_name(self, label_values: LabelValues) -> str:
        """The name of the series of a bucket, of the sum or of the count."""
        return f"{self.name}_{label_values if label_values in _TOTALS else 'bucket'}"

    def labels_of(self, label_values: LabelValues) -> dict[str, str]:
        """All labels: of a bucket with its bound."""
        run = {} if self.run is None else {"run": self.run}
        return run if label_values in _TOTALS else {**run, "le": str(label_values)}


_TOTALS = ("count", "sum")


@dataclass(slots=True)
class Histogram:
    """Counts of observations up to each of `bounds`, in ascending order, and their sum."""

    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)
    """Of each bucket alone; the last one has no bound."""

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Add a finite observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """A copy that later observations do not change."""
        return Histogram(self.bounds, self.total, self.counts.copy())

    def family(self, name: str, help_: str, run: str) -> HistogramFamily:
        """The family of that name, whose series have the label `run`."""
        bounds = [*map(floatToGoString, self.bounds), "+Inf"]
        values: dict[LabelValues, float] = dict(zip(bounds, accumulate(self.counts), strict=True))
        values |= {"count": sum(self.counts), "sum": self.total}
        return HistogramFamily(name, help_, "histogram", run, ("le",), values)
