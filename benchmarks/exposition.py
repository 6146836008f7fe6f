"""Cost of a scrape: time per series, and response times under load. No pass or fail."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path

import requests

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.results import make_result, make_spread, step_result
from support.web_servers import make_site

from sentinel.metrics.encoder import MetricsEncoder
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.signals.catalogue import SIGNALS
from sentinel.web.server import WebServer

FORMATS = {"text": "", "OpenMetrics": "application/openmetrics-text;version=1.0.0"}
DETECTORS = {f"detector_{i}": Severity.WARNING for i in range(12)}


def exposition(ranks: int) -> Exposition:
    """The exposition of a run with that many ranks, every signal and a hundred other keys."""
    exposed = Exposition(Counters(), DETECTORS, per_rank_limit=ranks)
    for rank in range(ranks):
        exposed.update(step_result(rank=rank, step_time=0.5))
    own = {f"key{i}": 1.5 for i in range(100)}
    spreads = {name: make_spread(1.0, 2.0) for name in SIGNALS}
    exposed.update(make_result(values=dict.fromkeys(SIGNALS, 1.5) | own, spread=spreads))
    return exposed


def render_cost(ranks: int, times: int = 20) -> str:
    """CPU time of one scrape after the first one, in both formats."""
    exposed, encoder, costs = exposition(ranks), MetricsEncoder(), []
    for name, accept in FORMATS.items():
        page, _ = encoder.encode(accept, exposed.registry)
        series = sum(not line.startswith(b"#") for line in page.splitlines())
        durations = []
        for _ in range(times):
            start = time.thread_time()
            encoder.encode(accept, exposed.registry)
            durations.append(time.thread_time() - start)
        seconds = statistics.median(durations)
        costs.append(f"{name} {seconds * 1e3:8.2f} ms {seconds / series * 1e6:6.2f} us/series")
    return f"{ranks:5} ranks {series:6} series: {', '.join(costs)}"


def update_cost(times: int = 20_000) -> str:
    """CPU time of adding one rank's step."""
    exposed, result = exposition(8), step_result(rank=3, step_time=0.5)
    start = time.process_time()
    for _ in range(times):
        exposed.update(result)
    return f"one rank's step added in {(time.process_time() - start) / times * 1e6:.1f} us"


def load_test(clients: int = 10, scrapes_per_client: int = 50) -> str:
    """Wall time of scrapes by several clients at once."""
    exposed = exposition(8)
    server = WebServer(lambda: make_site(exposed.state, registry=exposed.registry))
    url = f"http://127.0.0.1:{server.start()}/metrics"
    durations: list[float] = []

    def scrape() -> None:
        with requests.Session() as session:
            for _ in range(scrapes_per_client):
                start = time.perf_counter()
                session.get(url, timeout=30).raise_for_status()
                durations.append(time.perf_counter() - start)

    threads = [threading.Thread(target=scrape) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.stop()
    p50, p99 = statistics.median(durations) * 1e3, statistics.quantiles(durations, n=100)[98] * 1e3
    return (
        f"{clients} clients at once, {len(durations)} scrapes: p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    )


if __name__ == "__main__":
    for ranks in (8, 64, 512):
        print(render_cost(ranks))
    print(update_cost())
    print(load_test())
