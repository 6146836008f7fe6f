"""Encodes metric families in the text formats of Prometheus and OpenMetrics.

The output is that of prometheus_client. The help of a family, and the name and labels of a series,
are the same at each scrape, so their text is cached; only the values are formatted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from sentinel.metrics.family import Family, LabelValues

_ESCAPINGS = (None, "underscores", "allow-utf-8")
"""Schemes that leave names of letters, digits and underscores as they are, as ours are."""
_MIN_EXPONENT_VALUE = 1e6
"""Values below are written as Python writes them."""
_format_as_go: Callable[[float], str] = floatToGoString
_SPARE_SERIES = 64
"""Number of series that no longer exist whose text is cached."""


@dataclass(slots=True)
class _FamilyText:
    """The text of a family without values; `series` is the text before each value."""

    family: Family
    header: str
    openmetrics_header: str
    series: dict[LabelValues, str] = field(default_factory=dict)


class MetricsEncoder:
    """Encodes the families of one registry. `encode` may be called from several threads."""

    def __init__(self) -> None:
        self._texts: dict[str, _FamilyText] = {}

    def encode(self, accept: str, registry: CollectorRegistry) -> tuple[bytes, str]:
        """The metrics in the format that an Accept header prefers, and their content type."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):
            # A malformed Accept header must not fail the scrape.
            encode, content_type = choose_encoder("")
        families = list(registry.collect())
        ours = [family for family in families if isinstance(family, Family)]
        escaping = getattr(encode, "keywords", {}).get("escaping")
        if escaping not in _ESCAPINGS or len(ours) < len(families):
            return encode(registry), content_type
        is_openmetrics = content_type.startswith("application/openmetrics-text")
        return self._encode(ours, is_openmetrics=is_openmetrics).encode(), content_type

    def _encode(self, families: Iterable[Family], *, is_openmetrics: bool) -> str:
        parts: list[str] = []
        for family in families:
            text = self._texts.get(family.name)
            if text is None or not text.family.has_same_text(family):
                text = self._texts[family.name] = _family_text(family)
            parts.append(text.openmetrics_header if is_openmetrics else text.header)
            series = text.series
            if len(series) > len(family.values) + _SPARE_SERIES:
                series.clear()
            for label_values, value in family.values.items():
                start = series.get(label_values)
                if start is None:
                    start = series[label_values] = _series_text(family, label_values)
                number = float(value)
                parts.append(
                    f"{start}{number!r}\n"
                    if -_MIN_EXPONENT_VALUE < number < _MIN_EXPONENT_VALUE
                    else f"{start}{_format_as_go(number)}\n"
                )
        return "".join(parts) + ("# EOF\n" if is_openmetrics else "")


def _family_text(family: Family) -> _FamilyText:
    typ = "gauge" if family.type == "info" else family.type
    documentation = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    quoted = documentation.replace('"', r"\"")
    name, sample_name = family.name, family.sample_name
    return _FamilyText(
        family,
        f"# HELP {sample_name} {documentation}\n# TYPE {sample_name} {typ}\n",
        f"# HELP {name} {quoted}\n# TYPE {name} {family.type}\n",
    )


def _series_text(family: Family, label_values: LabelValues) -> str:
    labels = ",".join(
        f'{name}="{_escape(value)}"'
        for name, value in sorted(family.labels_of(label_values).items())
    )
    name = family.series_name(label_values)
    return f"{name}{{{labels}}} " if labels else f"{name} "


def _escape(label_value: str) -> str:
    return label_value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
