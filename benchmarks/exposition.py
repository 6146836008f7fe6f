"""Cost of a scrape: time per series, and response times under load. No pass or fail."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path

import requests
from prometheus_client import generate_latest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.results import make_result, make_spread, step_result

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.signals.catalogue import SIGNALS
from sentinel.web.server import WebServer

DETECTORS = {f"detector_{i}": Severity.WARNING for i in range(12)}


def exposition(ranks: int) -> Exposition:
    """The exposition of a run with that many ranks, every signal and a hundred other keys."""
    shown = Exposition(Counters(), DETECTORS, per_rank_limit=ranks)
    for rank in range(ranks):
        shown.update(step_result(rank=rank, step_time=0.5))
    own = {f"key{i}": 1.5 for i in range(100)}
    spreads = {name: make_spread(1.0, 2.0) for name in SIGNALS}
    shown.update(make_result(values=dict.fromkeys(SIGNALS, 1.5) | own, spread=spreads))
    return shown


def rendering(ranks: int, times: int = 20) -> str:
    """CPU time of one rendering."""
    shown = exposition(ranks)
    page = generate_latest(shown.registry)
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    begun = time.process_time()
    for _ in range(times):
        generate_latest(shown.registry)
    each = (time.process_time() - begun) / times
    cost = f"{each * 1e3:8.2f} ms {each / series * 1e6:6.1f} us/series"
    return f"{ranks:5} ranks {series:6} series {cost}"


def taking(times: int = 20_000) -> str:
    """CPU time of adding one rank's step."""
    shown, verdict = exposition(8), step_result(rank=3, step_time=0.5)
    begun = time.process_time()
    for _ in range(times):
        shown.update(verdict)
    return f"one rank's step taken over in {(time.process_time() - begun) / times * 1e6:.1f} us"


def load(clients: int = 10, each: int = 50) -> str:
    """Wall time of scrapes by several clients at once."""
    shown = exposition(8)
    server = WebServer(shown.registry, shown.state, list)
    url = f"http://127.0.0.1:{server.start()}/metrics"
    waits: list[float] = []

    def scrape() -> None:
        with requests.Session() as session:
            for _ in range(each):
                begun = time.perf_counter()
                session.get(url, timeout=30).raise_for_status()
                waits.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=scrape) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.stop()
    p50, p99 = statistics.median(waits) * 1e3, statistics.quantiles(waits, n=100)[98] * 1e3
    return f"{clients} clients at once, {len(waits)} scrapes: p50 {p50:.1f} ms, p99 {p99:.1f} ms"


if __name__ == "__main__":
    for ranks in (8, 64, 512):
        print(rendering(ranks))
    print(taking())
    print(load())
