"""Builders of Prometheus metric families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.metrics.family import Family

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

    def info(self, name: str, help_: str, rows: Iterable[tuple[str, ...]], *labels: str) -> Family:
        """A sample of value 1 for each row of label values; `name` is without `_info`."""
        return Family(name, help_, "info", self.run, labels, dict.fromkeys(rows, 1.0))

    def _build(
        self, name: str, help_: str, typ: str, samples: Any, labels: tuple[str, ...]
    ) -> Family:
        values = samples if isinstance(samples, Mapping) else {(): samples}
        return Family(name, help_, typ, self.run, labels, values)
