"""Instructions that a rank needs to note the rows of a step, under valgrind.

    python benchmarks/rows_instructions.py [--steps 200] [--batches 8 32 256] [--dry]

Counts what is called for each step with one batch: drawing it, receiving it, its backward pass and
its end. PyTorch itself is left out, and so are the losses of rows, whose share of the time is
limited. Counts do not depend on the load of the machine. `--dry` takes the steps without valgrind,
to test this program. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from instructions import count_between_markers
from page_tables import rows as table

from sentinel.client.capture.drawn_rows import DrawnRows
from sentinel.client.step_clock import StepClock
from sentinel.transport.command_page import NUMBER_WORD

WARMUP_STEPS = 50
MICROSECONDS_PER_INSTRUCTION = 1 / 3000
"""At 3 instructions in a nanosecond, as on the machine of docs/overhead.md."""
STEP_MICROSECONDS = 10_000.0


class Loss:
    """As much of a scalar tensor as a step without a jump needs."""

    is_cpu = True

    def item(self) -> float:
        return 1.0


def take_steps(batch: int, steps: int) -> None:
    """Note steps of one batch each, between two markers."""
    torch: Any = SimpleNamespace(Tensor=Loss, is_grad_enabled=lambda: True)
    sys.modules["torch"] = torch
    commands: Any = SimpleNamespace(words=[0] * (NUMBER_WORD + 1))
    activity: Any = SimpleNamespace(current="")
    copies: Any = None
    clock, indices, roots = StepClock(), list(range(10**6, 10**6 + batch)), [Loss()]
    iterator = SimpleNamespace(_index_sampler=object(), _dataset_kind=0)
    with tempfile.TemporaryDirectory() as folder:
        notes = DrawnRows(Path(folder) / "0-0.ring", activity, commands, copies, print)
        for step in range(WARMUP_STEPS + steps):
            if step == WARMUP_STEPS:
                os.getppid()
            notes.on_draw(iterator, indices)
            notes.on_batch(iterator, True)
            notes.before_backward(roots)
            clock.advance()
            notes.end_step(clock)
        os.getppid()
        notes.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 256])
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--child", type=int, help="rows of a batch")
    args = parser.parse_args()
    if args.child is not None:
        take_steps(args.child, args.steps)
        return
    body = []
    for batch in args.batches:
        counted, arguments = 0.0, ["--child", str(batch), "--steps", str(args.steps)]
        if args.dry:
            subprocess.run([sys.executable, __file__, *arguments], check=True)
        else:
            counted = count_between_markers(__file__, *arguments)[0] / args.steps
        micros = counted * MICROSECONDS_PER_INSTRUCTION
        share = micros / STEP_MICROSECONDS
        body.append([str(batch), f"{counted:,.0f}", f"{micros:.1f} µs", f"{share:.3%}"])
    print(table(["rows of a batch", "instructions a step", "about", "of a step of 10 ms"], body))


if __name__ == "__main__":
    main()
