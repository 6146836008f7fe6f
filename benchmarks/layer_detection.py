"""Detectors of layers, and of sharpness, on real trainings: healthy ones and ones with a fault.

    python benchmarks/layer_detection.py [--seeds N] [--kinds torch,sharpness,trl]

Small models of plain PyTorch; the sharpness of another one; the tiny models of TRL and transformers
that `failing_runs.py` trains, whose layers are measured at every fifth step. No download, no GPU.
A row shows the trainings with a finding at warning, and at info, by detector, and the median of the
measurements that the first took.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import torch
from support.layer_trainings import (
    BROKEN,
    HEALTHY,
    LayerMeter,
    layers_record,
    make,
    make_examples,
    perceptron,
)

from sentinel.config.plugins import load_classes
from sentinel.model.finding import Finding, Severity
from sentinel.model.record import Record
from sentinel.testing import steps, update_detector

DETECTORS = {
    name: kind
    for name, kind in load_classes("detectors").items()
    if name.startswith("layer_") or name == "sharpness_high"
}

TRL = (
    "sft-well", "lora-well", "dpo-well", "grpo-well", "rloo-well", "kto-well", "reward-well",
    "seq2seq-well", "sft-few-texts", "sft-fast", "lora-fast", "dpo-fast", "grpo-fast", "kto-fast",
    "reward-fast", "seq2seq-fast",
)  # fmt: skip
TRL_STRIDE = 5


def find(records: Iterable[Record]) -> dict[str, int]:
    """The measurements until the first finding, by detector, with a star at severity info."""
    detectors = {name: kind() for name, kind in DETECTORS.items()}
    found: dict[str, int] = {}
    count = 0
    for record in records:
        count += any(name.startswith(("layer_", "sharpness")) for name in record.values)
        for name, detector in detectors.items():
            output = update_detector(detector, record)
            if isinstance(output, Finding):
                is_info = (output.severity or DETECTORS[name].severity) is Severity.INFO
                found.setdefault(f"{name}{' (info)' if is_info else ''}", count)
    return found


def sharpness_records(rate: float, batch: int, seed: int) -> Iterator[Record]:
    """Gradient descent on 512 examples; the sharpness of a batch at each tenth step."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    torch.manual_seed(seed)
    model, (inputs, labels) = perceptron(2, torch.nn.Tanh), make_examples(512, seed)
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, rate)
    for step in range(1, 301):
        chosen = torch.randint(512, (batch,)) if batch < 512 else torch.arange(512)
        loss = torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        if step % 10 == 0:
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            gradient = torch.cat([each.flatten() for each in gradients])

            def multiply(vector: Any, gradient: torch.Tensor = gradient) -> Any:
                product = gradient @ torch.as_tensor(vector, dtype=gradient.dtype).flatten()
                parts = torch.autograd.grad(product, parameters, retain_graph=True)
                return torch.cat([part.flatten() for part in parts]).numpy()

            size = len(gradient)
            operator = LinearOperator((size, size), matvec=multiply, dtype="float32")
            first = torch.ones(size).numpy()
            (largest,) = eigsh(
                operator, 1, which="LA", v0=first, tol=0.01, return_eigenvectors=False
            )
            yield from steps(first=step, sharpness_ratio=[float(largest) * rate / 2])
        loss.backward()
        optimizer.step()


def trl_records(name: str, seed: int) -> list[Record]:
    """A training of `failing_runs`, with its layers."""
    import failing_runs
    from transformers import TrainerCallback, set_seed
    from trl_grpo import model_of_letters

    class Measure(TrainerCallback):
        records: list[Record]

        def on_train_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
            self.meter, self.records = LayerMeter(model), []

        def on_pre_optimizer_step(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            self.step = state.global_step + 1
            self.is_measured = self.step == 2 or self.step % TRL_STRIDE == 0
            if self.is_measured:
                self.meter.before_step()

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            if self.is_measured:
                self.records.append(layers_record(self.step, self.meter.after_step()))

    set_seed(seed)
    with TemporaryDirectory() as scratch:
        model = f"{scratch}/letters"
        build = failing_runs.TRAININGS[name].build
        trainer = build(scratch, model_of_letters(model), model)
        trainer.args.seed = seed
        measure = Measure()
        trainer.add_callback(measure)
        with redirect_stdout(sys.stderr):
            trainer.train()
    return measure.records


def show(kind: str, trainings: Iterable[Iterable[Record]]) -> None:
    """Print the row of one kind of training."""
    began, found, count = time.monotonic(), list[dict[str, int]](), 0
    for records in trainings:
        found.append(find(records))
        count += 1
    names = sorted({name for each in found for name in each})
    cells = []
    for name in names:
        delays = [each[name] for each in found if name in each]
        cells.append(f"{name} {len(delays)}, {median(delays):g}")
    seconds = time.monotonic() - began
    print(f"| {kind} | {count} | {'; '.join(cells) or 'none'} |", flush=True)
    print(f"{kind}: {seconds:.0f} s", file=sys.stderr)


def main() -> None:
    """Run every kind with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=100, help="first seed")
    parser.add_argument("--kinds", default="torch,sharpness")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(args.first, args.first + args.seeds)
    print("| training | trainings | found, median measurements |\n| --- | ---: | --- |")
    kinds = args.kinds.split(",")
    for kind in (*HEALTHY, *BROKEN) if "torch" in kinds else ():
        show(kind, (make(kind, seed).records() for seed in seeds))
    for batch, rates in ((512, (0.5, 1.0, 2.0, 4.0)), (32, (0.5, 1.0, 2.0, 4.0, 8.0))):
        for rate in rates if "sharpness" in kinds else ():
            kind = f"sharpness, batch {batch}, rate {rate:g}"
            show(kind, (sharpness_records(rate, batch, seed) for seed in seeds))
    for name in TRL if "trl" in kinds else ():
        show(name, (trl_records(name, seed) for seed in seeds))


if __name__ == "__main__":
    main()
