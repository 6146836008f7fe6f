"""Series, bytes and processor time of /metrics, for runs of several sizes.

    python benchmarks/capacity.py [--ranks 8] [--sizes 64x8 1024x8] [--scrapes 480] [--series 20000]

A run on one node, and the heads of runs on several (ranks, and ranks of a node), are real agents
whose loop is turned by hand, as in agent_steps.py and head.py. Runs have a step a second. A scrape
is the text of all series, compressed as Prometheus requests it. Processor time is that of this
thread: the median of a scrape, and the mean of a step. The series of a follower on a node with
eight GPUs are counted, since the machine may have none. promtool writes the samples of the run on
one node, one scrape every 15 s, into blocks, whose size gives the bytes of a sample. Last, a client
scrapes that many series over HTTP, with pauses. Garbage is collected as in an agent.

On a busy machine the times of these scrapes need `chrt --rr 10` before the command. Writes
results/capacity.json, and prints Markdown.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from agent_steps import running_agent, turn_seconds
from exposition import FORMATS, exposition
from head import head_costs
from prometheus_client import CollectorRegistry
from scale_page import SCRAPE_SECONDS, capacity_table, capacity_text
from support.web_servers import make_site

from sentinel.__main__ import OBJECTS_PER_COLLECTION
from sentinel.agent.main import Agent
from sentinel.metrics.encoder import MetricsEncoder
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.web.server import WebServer
from tools.generate.sample_exposition import FOLLOWER_STATUS, SAMPLE_NODE

RESULTS = Path(__file__).parent / "results" / "capacity.json"
GPUS = 8
SCRAPES = 20
PAUSE_SECONDS = 0.1
BLOCK_SECONDS = 7200
"""Length of a block of Prometheus, to whose multiples it is aligned."""


def page_costs(registry: CollectorRegistry) -> dict[str, float]:
    """Series and bytes of a page, and the CPU of a scrape after the first."""
    encoder, costs = MetricsEncoder(), list[float]()
    for _ in range(SCRAPES + 1):
        began = time.thread_time()
        page, _ = encoder.encode("", registry)
        compressed = gzip.compress(page, 1)
        costs.append(time.thread_time() - began)
    return {
        "series": sum(not line.startswith(b"#") for line in page.splitlines()),
        "bytes": len(page),
        "compressed_bytes": len(compressed),
        "scrape_ms": round(1e3 * median(costs[1:]), 2),
    }


def agent_page_costs(agent: Agent) -> dict[str, float]:
    """Those of the agent's page."""
    return page_costs(agent.processor.exposition.registry)


def node_costs() -> dict[str, float]:
    """Those of the page of a follower, of a machine with eight GPUs."""
    gpu = SAMPLE_NODE.gpus[0]
    gpus = tuple(replace(gpu, index=index, uuid=f"GPU-{index}") for index in range(GPUS))
    ranks = {index: (index,) for index in range(GPUS)}
    machine = replace(SAMPLE_NODE, gpus=gpus, ranks_by_gpu=ranks)
    exposed = Exposition(
        Counters(), {}, run="bench", machine=lambda: machine, cluster_status=lambda: FOLLOWER_STATUS
    )
    return page_costs(exposed.registry)


def single_run(ranks: int, scrapes: int) -> tuple[dict[str, float], float | None]:
    """Costs of a run on one node, and the bytes that Prometheus needs for a sample of it."""
    start = time.time() // BLOCK_SECONDS * BLOCK_SECONDS - BLOCK_SECONDS
    samples, seconds, encoder = dict[str, list[str]](), list[float](), MetricsEncoder()
    steps = int(scrapes * SCRAPE_SECONDS)
    with running_agent(ranks, steps) as (agent, trainers, clock):
        for step in range(steps):
            clock.now += 1.0
            trainers.write_step()
            seconds.append(turn_seconds(agent))
            if step % SCRAPE_SECONDS == 0:
                registry = agent.processor.exposition.registry
                page, _ = encoder.encode(FORMATS["OpenMetrics"], registry)
                add_samples(samples, page.decode(), start + step)
        costs = agent_page_costs(agent)
    step_ms = round(1e3 * mean(seconds[steps // 4 :]), 2)
    return {"ranks": ranks, "nodes": 1, "step_ms": step_ms, **costs}, bytes_per_sample(samples)


def add_samples(samples: dict[str, list[str]], page: str, moment: float) -> None:
    """Add the series of a page to those of their families, by header, with this time."""
    for line in page.splitlines()[:-1]:
        if line.startswith("#"):
            family = samples.setdefault(line, [])
        else:
            family.append(f"{line} {moment:.3f}")


def bytes_per_sample(samples: dict[str, list[str]]) -> float | None:
    """Size of the blocks that promtool makes of the samples, for each; None without promtool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return None
    lines = [text for header, family in samples.items() for text in (header, *family)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "samples").write_text("\n".join([*lines, "# EOF\n"]))
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "samples", "blocks"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        files = [path for path in Path(folder, "blocks").rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    return round(size / sum(map(len, samples.values())), 2)


def large_scrapes(series: int, scrapes: int) -> dict[str, float]:
    """Wall time of scrapes of a page with that many series over HTTP, and their CPU."""
    ranks, page = series // 20, dict[str, float]()
    while page.get("series", 0) < series:
        ranks += series // 20
        exposed = exposition(ranks)
        page = page_costs(exposed.registry)
    server = WebServer(lambda: make_site(exposed.state, registry=exposed.registry))
    client = http.client.HTTPConnection("127.0.0.1", server.start())
    durations, processor = list[float](), list[float]()
    for _ in range(scrapes + 1):
        time.sleep(PAUSE_SECONDS)
        start, cpu = time.perf_counter(), time.process_time()
        client.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        client.getresponse().read()
        durations.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - cpu))
    server.stop()
    return {
        **page,
        "scrapes": scrapes,
        "p50_ms": round(median(durations[1:]), 1),
        "p99_ms": round(quantiles(durations[1:], n=100)[98], 1),
        "cpu_ms": round(mean(processor[1:]), 1),
    }


def head_run(size: str, steps: int) -> dict[str, float]:
    """Costs of the head of a run on several nodes."""
    world, local = map(int, size.split("x"))
    inspect: Callable[[Agent], dict[str, float]] = agent_page_costs
    costs = head_costs(world, local, steps, None, inspect)
    step_ms = round(costs.pop("server") + costs.pop("loop"), 2)
    return {"ranks": world, "nodes": world // local, "step_ms": step_ms, **costs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--sizes", nargs="*", default=["64x8", "1024x8"])
    parser.add_argument("--scrapes", type=int, default=480)
    parser.add_argument("--series", type=int, default=20_000)
    parser.add_argument("--large-scrapes", type=int, default=300)
    args = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    run, sample_bytes = single_run(args.ranks, args.scrapes)
    results: dict[str, Any] = {
        "load": load,
        "rows": [run, *(head_run(size, 12) for size in args.sizes)],
        "node": node_costs(),
        "bytes_per_sample": sample_bytes,
        "large": large_scrapes(args.series, args.large_scrapes),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(capacity_table(results), capacity_text(results), sep="\n\n")


if __name__ == "__main__":
    main()
