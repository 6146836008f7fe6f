"""Cost of `monitor(insight="gradient_flow")` per step, beside two other ways to look at layers.

    python benchmarks/gradient_flow.py [--pairs 20] [--model mlp|transformer] [--cockpit FOLDER]

A model of ten million parameters is trained on one core, with each of:

- nothing: `sentinel.monitor` without `insight`
- sentinel: with `insight="gradient_flow"`, at the stride that it chooses
- item: a loop over the parameters that calls `norm().item()` at each step
- cockpit: Cockpit (Schneider et al. 2021, "Cockpit: A Practical Debugging Tool for the Training of
  Deep Neural Networks") with norms, updates and the signal-to-noise ratio of gradients, at each
  step; FOLDER has cockpit-for-pytorch, backpack-for-pytorch and what they need, which are
  optional

Blocks of as many steps as the stride, with one measurement in each, are timed in random order and
compared with the block of nothing in the same round: median of the ratios with its middle half, of
CPU time of the training thread and of wall time. The CPU time that sentinel itself takes is also
measured, as a share of the step. With CUDA, `--device cuda` runs the same under
`torch.cuda.set_sync_debug_mode("error")`, so that any synchronization of sentinel fails. Prints
Markdown and writes results/gradient_flow.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sentinel
from sentinel.client.capture import gradient_flow
from sentinel.client.session import current_session

FOLDER = Path(__file__).parent
WIDTH, BATCH = 1000, 64
TOKENS, MODEL_WIDTH = 2000, 320


class Training:
    """One step of a model of ten million parameters."""

    def __init__(self, kind: str, device: str, width: int) -> None:
        torch.manual_seed(0)
        self.kind, self.device, self.width = kind, device, width
        self.net = (mlp(width) if kind == "mlp" else transformer()).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.loss = torch.nn.MSELoss() if kind == "mlp" else torch.nn.CrossEntropyLoss()

    def forward(self) -> Any:
        self.optimizer.zero_grad()
        if self.kind == "mlp":
            x = torch.randn(BATCH, self.width, device=self.device)
            return self.loss(self.net(x), torch.zeros_like(x))
        x = torch.randint(0, TOKENS, (2, 64), device=self.device)
        return self.loss(self.net(x).flatten(0, 1), x.flatten())

    def step(self) -> None:
        self.forward().backward()
        self.optimizer.step()


class WithItem(Training):
    """A hand-written log of each parameter's gradient."""

    def step(self) -> None:
        self.forward().backward()
        for parameter in self.net.parameters():
            parameter.grad.norm().item()
            (parameter.grad == 0).float().mean().item()
        self.optimizer.step()


class WithCockpit(Training):
    """Cockpit, at each step."""

    def __init__(self, kind: str, device: str, width: int) -> None:
        super().__init__(kind, device, width)
        from backpack import extend
        from cockpit import Cockpit, quantities
        from cockpit.utils.schedules import linear

        extend(self.net), extend(self.loss)
        # Its histograms need the gradients of all samples at once, which are 2.6 GB here.
        kinds = (quantities.GradNorm, quantities.UpdateSize, quantities.MeanGSNR)
        every = linear(1)
        self.cockpit = Cockpit(
            self.net.parameters(), quantities=[each(track_schedule=every) for each in kinds]
        )
        self.steps = 0

    def step(self) -> None:
        loss = self.forward()
        info = {"batch_size": BATCH, "individual_losses": None, "loss": loss}
        with self.cockpit(self.steps, info=info | {"optimizer": self.optimizer}):
            loss.backward(create_graph=self.cockpit.create_graph(self.steps))
        self.optimizer.step()
        self.steps += 1


def mlp(width: int) -> torch.nn.Module:
    layers = [torch.nn.Linear(width, width) for _ in range(10)]
    return torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))


def transformer() -> torch.nn.Module:
    blocks = (
        torch.nn.TransformerEncoderLayer(
            MODEL_WIDTH, 4, 4 * MODEL_WIDTH, 0.0, batch_first=True, norm_first=True
        )
        for _ in range(7)
    )
    return torch.nn.Sequential(
        torch.nn.Embedding(TOKENS, MODEL_WIDTH), *blocks, torch.nn.Linear(MODEL_WIDTH, TOKENS)
    )


class OwnTime:
    """CPU time of the training thread inside sentinel's measurement, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - began

        setattr(owner, name, timed)


def block(training: Training, steps: int) -> tuple[float, float]:
    """CPU time of this thread and wall time per step, in seconds."""
    for _ in range(2):
        training.forward().backward()
    synchronize(training.device)
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(steps):
        training.step()
    synchronize(training.device)
    return (time.thread_time() - cpu) / steps, (time.perf_counter() - wall) / steps


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def compare(args: argparse.Namespace) -> dict[str, Any]:
    kinds: dict[str, type[Training]] = {"nothing": Training, "sentinel": Training, "item": WithItem}
    if args.cockpit is not None:
        sys.path.append(str(args.cockpit))
        kinds["cockpit"] = WithCockpit
    trainings = {name: kind(args.model, args.device, args.width) for name, kind in kinds.items()}
    loop = current_session().loop
    flow, own = loop.gradient_flow, OwnTime()
    for name in ("before_clip", "before_step", "after_step", "end_step"):
        own.time(flow, name)
    # The first measurements, which are more frequent, are not part of the comparison.
    gradient_flow.WARM_UP_MEASUREMENTS = 4
    steps = 0
    while flow.measurement_count < 6 and steps < 2000:
        trainings["sentinel"].step()
        steps += 1
    stride = flow.stride()
    if args.device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3 * stride):
            trainings["sentinel"].step()
        torch.cuda.set_sync_debug_mode("default")
    flow.every = stride
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in trainings}
    shares, seconds, measured = [], [], flow.measurement_count
    for index in range(args.pairs):
        times = {}
        for name in random.Random(index).sample(sorted(trainings), len(trainings)):
            loop.gradient_flow = flow if name == "sentinel" else None
            loop.primary_ref = lambda owner=trainings[name].optimizer: owner
            own.seconds = 0.0
            times[name] = block(trainings[name], stride)
            if name == "sentinel":
                shares.append(own.seconds / stride / times[name][0])
        base = times["nothing"]
        seconds.append(base)
        for name, each in times.items():
            ratios[name].append((each[0] / base[0], each[1] / base[1]))
    return {
        "parameters": sum(p.numel() for p in trainings["nothing"].net.parameters()),
        "stride": stride,
        "measurements": flow.measurement_count - measured,
        "step, ms": 1e3 * statistics.median(cpu for cpu, _ in seconds),
        "own share": summary(shares),
        "ratios": {
            name: {"cpu": summary([c for c, _ in of]), "wall": summary([w for _, w in of])}
            for name, of in ratios.items()
        },
    }


def summary(values: list[float]) -> list[float]:
    """Median, and the ends of the middle half."""
    ordered, quarter = sorted(values), len(values) // 4
    return [statistics.median(values), ordered[quarter], ordered[-1 - quarter]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--model", choices=("mlp", "transformer"), default="mlp")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the layers of the mlp")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cockpit", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
        with sentinel.monitor(agent=False, insight="gradient_flow"):
            results = compare(args)
    results |= {"torch": torch.__version__, "load": os.getloadavg()[0], "model": args.model}
    path = FOLDER / "results" / "gradient_flow.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(
        f"{results['parameters']:,} parameters, {results['step, ms']:.0f} ms of CPU time a step; "
    )
    print(f"a measurement every {results['stride']} steps, {results['measurements']} of them\n")
    median, low, high = results["own share"]
    print(f"sentinel's own CPU time: {median:.2%} of a step ({low:.2%} to {high:.2%})\n")
    print("| | CPU time (middle half) | wall time (middle half) |\n|---|---|---|")
    for name, of in results["ratios"].items():
        cells = (f"{a:.3f} ({b:.3f} to {c:.3f})" for a, b, c in (of["cpu"], of["wall"]))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
