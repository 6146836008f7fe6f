"""Cost of the checks of the training, as instructions of a step with and without them.

    python benchmarks/check_cost.py [--width 192] [--steps 100] [--dry]

The same training of a small model, a step of which takes about 10 ms of one core, runs twice under
valgrind: with `monitor()` and with `monitor(checks=False)`. The user instructions of the first 20
steps and of the later ones are counted apart; the very first step, in which PyTorch imports and
allocates, is left out. Counts do not depend on the load of the machine. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time

import torch
from instructions import count_between_markers
from page_tables import rows
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

import sentinel

FIRST_STEPS = 20


def train(width: int, steps: int, *, checks: bool) -> None:
    """A first step, then those that are counted, with markers; prints the time of a step."""
    folder = tempfile.mkdtemp()
    os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            layer
            for _ in range(4)
            for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
        ),
        nn.Linear(width, 10),
    )
    optimizer = AdamW(model.parameters())
    batch_size, count = 64, 1 + FIRST_STEPS + steps
    data = TensorDataset(torch.randn(batch_size * count, width))
    with sentinel.monitor(agent=False, checks=checks):
        for step, (inputs,) in enumerate(DataLoader(data, batch_size)):
            if step in (1, 1 + FIRST_STEPS):
                os.getppid()
                began = time.process_time()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
            optimizer.step()
        os.getppid()
    print(f"{1e3 * (time.process_time() - began) / steps:.1f} ms a step", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--steps", type=int, default=100, help="those after the first 20")
    parser.add_argument("--dry", action="store_true", help="train once, and count nothing")
    parser.add_argument("--no-checks", action="store_true", help="with --dry")
    args = parser.parse_args()
    if args.dry:
        train(args.width, args.steps, checks=not args.no_checks)
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing was counted")
        return
    arguments = ["--dry", "--width", str(args.width), "--steps", str(args.steps)]
    checked = count_between_markers(__file__, *arguments)
    unchecked = count_between_markers(__file__, *arguments, "--no-checks")
    head = ["instructions of a step", "without the checks", "with them", "more"]
    titles = (f"2 to {1 + FIRST_STEPS}", FIRST_STEPS), ("later", args.steps)
    body = [
        [f"steps {title}" if count == FIRST_STEPS else title, f"{without / count:,.0f}",
         f"{with_them / count:,.0f}", f"{with_them / without - 1:.2%}"]
        for (title, count), without, with_them in zip(titles, unchecked, checked, strict=False)
    ]  # fmt: skip
    print(rows(head, body))


if __name__ == "__main__":
    main()
