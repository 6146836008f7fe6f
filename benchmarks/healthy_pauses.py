"""Healthy runs with long pauses, and the notifications that they raise; there should be none.

    python benchmarks/healthy_pauses.py --minutes 15 [--only evaluation,compile]

All kinds run at once, each under the decorator with an agent of its own: loops of 0.1 s a step that
evaluate, save, compile, generate or load data for up to two minutes without declaring it. Runs on
CPU; the loops mostly sleep, so eight of them fit on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.1
STEPS_BETWEEN_PAUSES = 300
"""Steps from one pause to the next: about half a minute."""
START_SECONDS = 120.0
"""Time for the imports and the first step of all kinds."""


class Loop:
    """A tiny model that trains until `ends_at`, and pauses after every 300 steps."""

    def __init__(self, ends_at: float) -> None:
        import torch

        self.ends_at = ends_at
        self.torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.pauses = 0

    def train(self, pause: Callable[[Loop], None], forward: Any = None) -> None:
        """Steps and pauses until the time is over."""
        step = 0
        while time.time() < self.ends_at:
            step += 1
            x = self.torch.randn(32, 8)
            target = x.sum(1, keepdim=True) + self.torch.randn(32, 1)
            loss = ((forward or self.model)(x) - target).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            time.sleep(STEP_SECONDS)
            if step % STEPS_BETWEEN_PAUSES == 0:
                self.pauses += 1
                pause(self)

    def longest(self, seconds: float) -> float:
        """Pauses grow to `seconds` over the first four, so that none equals the one before."""
        return seconds * min(1.0, 0.25 + 0.25 * self.pauses)


def evaluate(loop: Loop, seconds: float = 100.0) -> None:
    """`model.eval()` and forward passes without gradients."""
    loop.model.eval()
    with loop.torch.no_grad():
        until = time.time() + loop.longest(seconds)
        while time.time() < until:
            loop.model(loop.torch.randn(256, 8))
            time.sleep(0.05)
    loop.model.train()


def generate(loop: Loop) -> None:
    """Forward passes under `inference_mode` in training mode, as a rollout of a policy."""
    with loop.torch.inference_mode():
        until = time.time() + loop.longest(60.0)
        while time.time() < until:
            for _ in range(100):
                loop.model(loop.torch.randn(16, 8))
            time.sleep(0.02)


def save(loop: Loop) -> None:
    """Shards that are written one after the other to a slow disk."""
    with tempfile.TemporaryDirectory() as folder:
        until, shard = time.time() + loop.longest(60.0), 0
        while time.time() < until:
            shard += 1
            loop.torch.save(loop.model.state_dict(), f"{folder}/shard-{shard}.pt")
            time.sleep(2.0)


def load(loop: Loop) -> None:
    """A data loader that skips to a position, sample by sample."""

    class Slow(loop.torch.utils.data.Dataset):  # type: ignore[name-defined, misc]
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.5)
            return loop.torch.randn(8)

    until = time.time() + loop.longest(60.0)
    for _ in loop.torch.utils.data.DataLoader(Slow(), batch_size=4):
        if time.time() >= until:
            break


def compute(loop: Loop) -> None:
    """A metric computed on the CPU in plain Python, without any call of torch."""
    until, total = time.time() + loop.longest(45.0), 0
    while time.time() < until:
        total += sum(range(1000))


def none(_: Loop) -> None:
    """No pause."""


def run_compiled(loop: Loop) -> None:
    """A compiled model, compiled again for other shapes."""
    loop.train(none, loop.torch.compile(loop.model))


def run_ranks(loop: Loop) -> None:
    """Two ranks; rank 0 evaluates while rank 1 waits in a collective."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    replica = loop.torch.nn.parallel.DistributedDataParallel(loop.model)
    ends_at, loop.ends_at = loop.ends_at, float("inf")

    def pause(loop: Loop) -> None:
        if dist.get_rank() == 0:
            evaluate(loop, 60.0)
        # All ranks stop at the same step.
        is_over = loop.torch.tensor(float(time.time() >= ends_at))
        dist.broadcast(is_over, 0)
        if is_over:
            loop.ends_at = 0.0

    loop.train(pause, replica)
    dist.destroy_process_group()


KINDS: dict[str, Callable[[Loop], None]] = {
    "evaluation": lambda loop: loop.train(evaluate),
    "generation": lambda loop: loop.train(generate),
    "save": lambda loop: loop.train(save),
    "loading": lambda loop: loop.train(load),
    "computation": lambda loop: loop.train(compute),
    "compile": run_compiled,
    "ranks": run_ranks,
    "steady": lambda loop: loop.train(none),
}


def run_kind(kind: str, minutes: float) -> None:
    """Train one kind in this process, monitored."""
    import sentinel

    @sentinel.monitor(run=f"healthy-{kind}")
    def train() -> None:
        import torch

        torch.set_num_threads(1)
        KINDS[kind](Loop(time.time() + 60 * minutes))

    train()


class Receiver(ThreadingHTTPServer):
    """Stores the headline of each notification, with the run."""

    def __init__(self) -> None:
        self.notifications: list[tuple[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                labels = body["commonLabels"]
                text = f"{body['status']} {labels['severity']} {labels['alertname']}"
                receiver.notifications.append((labels["run"], text))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


def start(kind: str, minutes: float, home: Path, url: str) -> subprocess.Popen[bytes]:
    """Start one kind with a state directory of its own."""
    directory = home / kind
    directory.mkdir()
    environ = {
        **os.environ,
        "SENTINEL_HOME": str(directory),
        "SENTINEL_RUNTIME_DIR": str(directory / "rings"),
        "SENTINEL_LINGER_SECONDS": "5",
        "SENTINEL_SINKS__WEBHOOK__URL": url,
    }
    launcher = [sys.executable]
    if kind == "ranks":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, __file__, "--minutes", str(minutes), "--kind", kind]
    with (directory / "output").open("wb") as output:
        return subprocess.Popen(command, env=environ, stdout=output, stderr=output)


def main() -> None:
    """Run every kind, and print what each notified."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        run_kind(arguments.kind, arguments.minutes)
        return
    receiver = Receiver()
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    kinds = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="healthy-") as home:
        processes = {kind: start(kind, arguments.minutes, Path(home), url) for kind in kinds}
        # Two ranks share a core with other kinds, and end after a whole pause.
        limit = 120 * arguments.minutes + 2 * START_SECONDS
        try:
            codes = {kind: process.wait(limit) for kind, process in processes.items()}
        finally:
            for process in processes.values():
                process.terminate()
        time.sleep(20.0)  # what an agent sends after the end of its run
        for kind in kinds:
            texts = [text for run, text in receiver.notifications if f"healthy-{kind}" in run]
            print(f"{kind:12} exit {codes[kind]}  {len(texts)} notifications  {'; '.join(texts)}")
            if codes[kind]:
                print((Path(home) / kind / "output").read_text()[-2000:])
    hours = len(kinds) * arguments.minutes / 60
    print(f"{len(receiver.notifications)} notifications in {hours:.1f} hours of healthy runs")


if __name__ == "__main__":
    main()
