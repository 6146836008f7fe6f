"""One hour of a failing run, as Prometheus would have scraped it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.utils import floatToGoString
from support.results import DIAGNOSIS, RUN, make_incident, make_result, make_spread, step_result

from sentinel.config.plugins import load_classes
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event, Record
from sentinel.pipeline.engine import Result
from sentinel.signals.catalogue import SIGNALS
from tools.generate.sample_exposition import HEAD_STATUS, SAMPLE_NODE

START = 1_700_000_000.0
SCRAPE_SECONDS = 30.0
SCRAPES = 120
END = START + SCRAPE_SECONDS * (SCRAPES - 1)


def openmetrics() -> str:
    """The hour as one OpenMetrics text with timestamps."""
    lines: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    counters = Counters()
    detectors = {name: kind.severity for name, kind in load_classes("detectors").items()}
    exposition = Exposition(
        counters, detectors, machine=lambda: SAMPLE_NODE, cluster_status=lambda: HEAD_STATUS
    )
    for scrape in range(SCRAPES):
        for result in _results(scrape, counters):
            exposition.update(result)
        for family in exposition.collect():
            key = family.name, family.type, family.documentation
            lines[key] += [
                _line(sample, START + SCRAPE_SECONDS * scrape) for sample in family.samples
            ]
    return "\n".join([*_families(lines), "# EOF\n"])


def _results(scrape: int, counters: Counters) -> Iterator[Result]:
    """Two ranks train; in the second half KL blows up, with a cause, and one rank dies."""
    time = START + SCRAPE_SECONDS * scrape
    if scrape == 0:
        yield make_result(Event.START, rank=0, values={"world_size": 2.0}, time=time)
    for count in COUNTER_FAMILIES:
        counters.add(count.family, f"a {count.label}", scrape % 3)
    values = {name: scrape / 10 for name in SIGNALS if name != "global_step"}
    ranges = {name: make_spread(value / 2, value * 2) for name, value in values.items()}
    yield make_result(step=scrape, time=time, values={**values, "mine": 1.0}, spread=ranges)
    for rank in (0, 1):
        yield step_result(step=scrape, rank=rank, step_time=0.5)
    if scrape % 40 == 39:
        yield make_result(Event.SAVE, step=scrape, time=time)
    if scrape == SCRAPES // 2:
        notification = Notification(
            NotificationReason.OPENED, make_incident(), scrape, time, diagnosis=DIAGNOSIS
        )
        yield Result(
            Record(RUN, -1, scrape, time),
            notifications=(notification,),
            case_notifications=(notification,),
        )
    running = 2.0 if scrape < SCRAPES - 5 else 1.0
    yield make_result(Event.HEARTBEAT, step=scrape, time=time, values={"ranks_running": running})
    if scrape == SCRAPES - 5:
        yield make_result(Event.STOP, step=scrape, rank=1, attributes={"outcome": "died"})


def _line(sample, time: float) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}} {floatToGoString(sample.value)} {time}"


def _families(lines: dict[tuple[str, str, str], list[str]]) -> Iterator[str]:
    for (name, kind, text), samples in lines.items():
        yield f"# TYPE {name} {kind}"
        yield f"# HELP {name} {text}"
        yield from sorted(samples, key=lambda line: line.rpartition("}")[0])
