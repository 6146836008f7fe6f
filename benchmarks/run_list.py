"""Cost of `sentinel serve` over many runs: time of the list, and memory. No pass or fail."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import requests

RUNS = 10_000
QUERIES = {
    "newest": "",
    "filter": "?filter=ablation+critical",
    "order by health": "?sort=-health",
    "group by tag": "?group=tag",
    "page 100": "?offset=9900",
}


def write_home(home: Path, count: int) -> None:
    """Write the summaries of that many runs that ended."""
    rng, now = random.Random(1), time.time()
    for number in range(count):
        name = f"{rng.choice(['grpo', 'sft', 'dpo'])}-{number:05d}"
        health = rng.choices(["ok", "warning", "critical"], [8, 1, 1])[0]
        written = now - rng.random() * 90 * 86_400
        case = {"subject": "Policy collapse: entropy fell from 2.1 to 0.03", "severity": health}
        summary = {
            "run": name,
            "state": rng.choice(["finished", "failed"]),
            "health": health,
            "step": rng.randrange(100_000),
            "attempt": 0,
            "last_written": written,
            "started": written - 3600.0,
            "ended": written,
            "host": f"gpu-{rng.randrange(16)}",
            "framework": "trl",
            "algorithm": "grpo",
            "model": "Qwen/Qwen3-8B",
            "project": rng.choice(["math", "code", "chat"]),
            "tags": rng.sample(["ablation", "long", "baseline", "seed 1"], 2),
            "worst_case": None if health == "ok" else case,
            "sparkline": {"name": "reward", "values": [round(rng.random(), 4) for _ in range(64)]},
        }
        directory = home / "runs" / name
        directory.mkdir(parents=True)
        (directory / "summary.json").write_text(json.dumps(summary))


def memory_mb(pid: int) -> float:
    """Largest resident memory of a process so far."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


def measure(home: Path) -> None:
    """Print the times and the memory of a server of the home directory."""
    environ = {**os.environ, "SENTINEL_HOME": str(home), "SENTINEL_RUNTIME_DIR": f"{home}/shared"}
    command = [sys.executable, "-m", "sentinel", "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().rpartition(" ")[2].strip()
        began = time.perf_counter()
        total = requests.get(f"{url}api/runs", timeout=60).json()["total"]
        print(f"first list of {total:,} runs: {1000 * (time.perf_counter() - began):.0f} ms")
        with requests.Session() as session:
            for name, query in QUERIES.items():
                times = []
                for _ in range(20):
                    began = time.perf_counter()
                    session.get(f"{url}api/runs{query}", timeout=60).raise_for_status()
                    times.append(1000 * (time.perf_counter() - began))
                    # The list is read again meanwhile.
                    time.sleep(0.1)
                print(f"{name}: median {statistics.median(times):.0f} ms, max {max(times):.0f} ms")
        print(f"memory: {memory_mb(server.pid):.0f} MB")
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_home(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
        measure(Path(folder))
