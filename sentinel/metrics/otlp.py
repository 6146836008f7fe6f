"""Sends the metrics of a run to an OpenTelemetry collector, with the official exporter.

Endpoint, headers, certificates, compression and timeout are the variables `OTEL_EXPORTER_OTLP_*`,
the interval is `OTEL_METRIC_EXPORT_INTERVAL`, and `OTEL_RESOURCE_ATTRIBUTES` adds attributes of the
resource. A name becomes `sentinel.` and the rest of the Prometheus name without its unit, which is
that of the metric: a collector or Prometheus that adds units gives the names of `/metrics` again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import inf
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from requests import Session

from sentinel.metrics.family import Family
from sentinel.model.counters import Counters

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

log = logging.getLogger(__name__)

_INSTALL_HINT = "Install the exporter: pip install 'train-sentinel[otlp]'."
INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_INTERVAL_MS = 60_000.0
_MIN_INTERVAL_SECONDS = 0.1
_STOP_SECONDS = 2.0
"""How long the end of an agent waits for the last export."""
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "celsius": "Cel", "watts": "W"}
"""Units of OpenTelemetry by the suffix of a Prometheus name."""
_COUNTER = "sentinel_otlp_exports_total"


def otlp_name(family: Family) -> tuple[str, str]:
    """Name and unit of the metric of a family.

    >>> otlp_name(Family("sentinel_run_time_seconds", "", "counter", "a", (), {}))
    ('sentinel.run_time', 's')
    """
    stem = family.name.removeprefix("sentinel_")
    start, _, suffix = stem.rpartition("_")
    unit = _UNITS.get(suffix, "") if start else ""
    if unit:
        return f"sentinel.{start}", unit
    return f"sentinel.{stem}{'_info' if family.type == 'info' else ''}", ""


def to_otlp(families: Iterable[Family], resource: Any) -> MetricsData:
    """The families as metrics of one resource.

    Counters are cumulative since an unknown time, 0: some continue those of an earlier agent.
    """
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - an optional package
        MetricsData,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    span = 0, time.time_ns()
    metrics = [_metric(family, span) for family in families if family.values]
    scope_metrics = ScopeMetrics(InstrumentationScope("sentinel"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope_metrics], "")])


def _metric(family: Family, span: tuple[int, int]) -> Metric:
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        NumberDataPoint,
        Sum,
    )

    name, unit = otlp_name(family)
    data: Any
    if family.type == "histogram":
        *cumulative, count, total = family.values.values()
        counts = [int(each - before) for before, each in pairwise((0.0, *cumulative))]
        bounds = [
            float(str(each)) for each in family.values if each not in {"+Inf", "count", "sum"}
        ]
        attributes = family.labels_of("count")
        # The SDK writes an unknown minimum and maximum so.
        point = HistogramDataPoint(
            attributes, *span, int(count), total, counts, bounds, min=inf, max=-inf
        )
        data = Histogram([point], AggregationTemporality.CUMULATIVE)
    else:
        points = [
            NumberDataPoint(family.labels_of(key), *span, float(value))
            for key, value in family.values.items()
        ]
        data = (
            Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if family.type == "counter"
            else Gauge(points)
        )
    return Metric(name, family.documentation, unit, data)


class OtlpExporter:
    """Exports the metrics of a registry from a thread of its own, and once more at the end.

    A collector that does not answer delays nothing but the next export. Outcomes are counted in
    `counters`. `make_exporter` is that of the official package.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        counters: Counters,
        run: str,
        make_exporter: Callable[[], Any] | None = None,
    ) -> None:
        self._registry, self._counters, self._run = registry, counters, run
        self._make_exporter = make_exporter or _make_exporter
        self._stopping = Event()
        self._thread = Thread(target=self._run_loop, name="otlp", daemon=True)

    def start(self) -> None:
        """Begin to export."""
        self._thread.start()

    def stop(self) -> None:
        """Export the last state, and wait for that for `_STOP_SECONDS` at most."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run_loop(self) -> None:
        try:
            exporter, resource = self._make_exporter(), _make_resource(self._run)
        except Exception as error:
            if isinstance(error, ImportError):
                log.warning("Metrics are not exported over OTLP (%s). %s", error, _INSTALL_HINT)
            else:
                log.exception("Metrics are not exported over OTLP")
            self._counters.add(_COUNTER, type(error).__name__)
            return
        interval = _interval()
        is_stopping = False
        while not is_stopping:
            is_stopping = self._stopping.wait(interval)
            self._export(exporter, resource)

    def _export(self, exporter: Any, resource: Any) -> None:
        try:
            families = [each for each in self._registry.collect() if isinstance(each, Family)]
            result = exporter.export(to_otlp(families, resource))
            outcome = str(result.name).lower()
        except Exception as error:
            log.exception("An export over OTLP failed")
            outcome = type(error).__name__
        self._counters.add(_COUNTER, outcome)


def _make_exporter() -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
        OTLPMetricExporter,
    )

    return OTLPMetricExporter(session=_Session())


class _Session(Session):
    """Prefers the certificate of OTEL_EXPORTER_OTLP_CERTIFICATE to that of REQUESTS_CA_BUNDLE."""

    def merge_environment_settings(
        self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
    ) -> Any:
        own = self.verify if verify is None else verify
        return super().merge_environment_settings(url, proxies, stream, own, cert)


def _make_resource(run: str) -> Any:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

    name = os.environ.get("OTEL_SERVICE_NAME", "sentinel")
    return Resource.create({"service.name": name, "service.instance.id": run})


def _interval() -> float:
    """Seconds between two exports."""
    try:
        interval = float(os.environ.get(INTERVAL_VARIABLE, _DEFAULT_INTERVAL_MS)) / 1000.0
    except ValueError:
        log.warning("%s is not a number of milliseconds; 60000 is used", INTERVAL_VARIABLE)
        interval = _DEFAULT_INTERVAL_MS / 1000.0
    return max(_MIN_INTERVAL_SECONDS, interval)
