"""Overhead of monitoring on a GPU, and proofs that monitoring never waits for one.

    python benchmarks/gpu.py [--dry] [--blocks 12] [--steps 10]

Four proofs, then a measurement, on the first CUDA or ROCm device:

1. reads: `torch.cuda.set_sync_debug_mode("error")` around every step of a monitored run, so that
   PyTorch raises where anything waits for the device.
2. kernel: while a kernel keeps the device busy for seconds, patches and `log` return at once.
3. pinned: the rows that values are copied to are page-locked; a copy to other memory would wait.
4. graph: a step is captured as a CUDA graph with patches, and replayed, with the same losses.
5. step time: a transformer of a billion parameters in bfloat16, in blocks of steps, alternately
   with and without the monitor; the median of the paired ratios, and their spread.

Without a GPU it measures nothing and exits with 0. `--dry` runs everything that works on a host
with a tiny model, to test the script; its figures are not meaningful.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import sentinel
from sentinel.client.session import current_session

FOLDER = Path(__file__).parent
BUSY_CYCLES = 4_000_000_000
"""Size of the kernel that keeps the device busy: about two seconds."""
MAX_CALL_SECONDS = 0.5
"""Seconds, a quarter of that kernel: a call that waits for it takes longer."""


@dataclass(frozen=True)
class Size:
    """Size of the transformer: `batch` sequences of `length` tokens per step."""

    width: int
    layers: int
    heads: int
    length: int
    batch: int


BILLION = Size(width=2048, layers=20, heads=16, length=1024, batch=4)
TINY = Size(width=32, layers=2, heads=2, length=16, batch=2)
TOKENS = 512


class Model(nn.Module):
    """A minimal decoder with the cost of a language-model training step."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.head = nn.Linear(size.width, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Cross entropy of the next token."""
        logits = self.head(self.body(self.embed(tokens[:, :-1])))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Bench:
    """A model, its optimizer, and one step of both."""

    def __init__(self, size: Size, device: torch.device) -> None:
        torch.manual_seed(0)
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.device = device
        self.net = Model(size).to(device, kind)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, foreach=True)
        self.tokens = torch.randint(TOKENS, (size.batch, size.length), device=device)
        self.step_number = 0

    def step(self, *, clip: bool = True) -> torch.Tensor:
        """One training step; the loss stays on the device."""
        self.step_number += 1
        loss = self.net(self.tokens)
        loss.backward()
        if clip:
            clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        sentinel.log({"loss": loss, "kl": 0.1}, step=self.step_number)
        return loss.detach()

    def wait(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.net.parameters())


@contextmanager
def monitored_run(**options: Any) -> Iterator[None]:
    """A monitored run in a temporary home, without agent."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
        with sentinel.monitor(agent=False, **options):
            yield


def check_reads(bench: Bench) -> str:
    """Steps in the debug mode that raises where something waits for the device."""
    with monitored_run(strict=True):
        bench.step()
        bench.wait()
        for clip in (True, False, True):
            if bench.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                bench.step(clip=clip)
            finally:
                if bench.device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
    return "no patch reads a value of the device"


def check_kernel(bench: Bench) -> str:
    """Patches while a kernel keeps the device busy."""
    with monitored_run(strict=True):
        for _ in range(3):
            bench.step()
        bench.wait()
        kernel_end = torch.cuda.Event() if bench.device.type == "cuda" else None
        if kernel_end is not None:
            torch.cuda._sleep(BUSY_CYCLES)  # noqa: SLF001 - PyTorch's own tests keep it busy so
        began = time.perf_counter()
        loss = torch.ones((), device=bench.device)
        weight = nn.Parameter(loss.clone())
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight * 2).backward()
        optimizer.step()
        sentinel.log({"loss": loss, "reward": loss}, step=bench.step_number)
        seconds = time.perf_counter() - began
        if kernel_end is not None:
            kernel_end.record()
            assert not kernel_end.query(), "the kernel had ended: make BUSY_CYCLES larger"
            assert seconds < MAX_CALL_SECONDS, (
                f"a step took {seconds:.3f} s while the device was busy"
            )
        bench.wait()
    return f"a whole step returned after {seconds * 1e3:.1f} ms while the device was busy"


def check_pinned(bench: Bench) -> str:
    """Whether the device copies are page-locked."""
    with monitored_run(strict=True):
        bench.step()
        session = current_session()
        queues = session.recorder.device_copies.queues if session is not None else {}
        rows = [host for queue in queues.values() for host, _ in queue.free]
        assert bench.device.type != "cuda" or rows, "no value was copied to the device's rows"
        assert all(row.is_pinned() and row.is_contiguous() for row in rows)
    return f"{len(rows)} rows, every one page-locked and contiguous"


def check_graph(bench: Bench) -> str:
    """A step captured as a graph with patches, compared with one without."""
    if bench.device.type != "cuda":
        return "not without a GPU"
    unmonitored = _graph_losses(bench.device)
    with monitored_run(strict=True):
        monitored = _graph_losses(bench.device)
    assert unmonitored == monitored, f"losses differ: {unmonitored} and {monitored}"
    return f"captured and replayed with patches, to the same {len(monitored)} losses"


def _graph_losses(device: torch.device) -> list[float]:
    torch.manual_seed(0)
    net = nn.Linear(64, 1, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(32, 64, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)
    cuda_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(cuda_graph):
        loss = step()
    losses = []
    for _ in range(4):
        cuda_graph.replay()
        losses.append(loss.item())
    return losses


def step_time(bench: Bench, blocks: int, steps: int) -> dict[str, Any]:
    """Milliseconds of a step with and without monitor, in alternating blocks; paired ratios."""

    def block() -> float:
        for _ in range(2):
            bench.step()
        bench.wait()
        began = time.perf_counter()
        for _ in range(steps):
            bench.step()
        bench.wait()
        return (time.perf_counter() - began) / steps * 1e3

    def monitored_block() -> float:
        with monitored_run():
            return block()

    block()
    unmonitored_ms, monitored_ms = [], []
    for index in range(blocks):
        pair: list[tuple[list[float], Callable[[], float]]] = [
            (unmonitored_ms, block),
            (monitored_ms, monitored_block),
        ]
        random.Random(index).shuffle(pair)
        for times, run in pair:
            times.append(run())
    ratios = sorted(
        with_monitor / without
        for with_monitor, without in zip(monitored_ms, unmonitored_ms, strict=True)
    )
    quarter = len(ratios) // 4
    return {
        "parameters": bench.size,
        "without, ms": statistics.median(unmonitored_ms),
        "with, ms": statistics.median(monitored_ms),
        "ratio": statistics.median(ratios),
        "ratio, middle half": [ratios[quarter], ratios[-1 - quarter]],
        "pairs": len(ratios),
    }


CHECKS: dict[str, Callable[[Bench], str]] = {
    "reads": check_reads,
    "kernel": check_kernel,
    "pinned": check_pinned,
    "graph": check_graph,
}
"""Proofs by name, as listed above."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--dry", action="store_true", help="tiny model on the host; no valid figures"
    )
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    if not args.dry and not torch.cuda.is_available():
        print("No GPU found: nothing measured.")
        return
    device = torch.device("cpu" if args.dry else "cuda")
    bench = Bench(TINY if args.dry else BILLION, device)
    results: dict[str, Any] = {"dry": args.dry, "torch": torch.__version__}
    if not args.dry:
        results["device"] = torch.cuda.get_device_name()
    for name, check in CHECKS.items():
        results[name] = check(bench)
        print(f"{name}: {results[name]}", flush=True)
    results["step time"] = step_time(bench, args.blocks, args.steps)
    print(f"step time: {json.dumps(results['step time'])}")
    if args.dry:
        print("Dry run on the host with a tiny model: the figures are not meaningful.")
        return
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / "results" / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
