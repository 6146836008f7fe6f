"""One corrupted element in one tensor of one rank of four: whether the next comparison finds it.

    python benchmarks/corrupted_replicas.py [--seeds 100] [--real 5]

The tensor, the element, the bit and the rank are random. Most seeds are compared in one process:
the check of the trainer computes the checksums of each rank from the model as it is on that rank,
and the detector compares them. The real ones train four ranks over gloo. Prints Markdown.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch._dynamo
import torch.distributed as dist
from page_tables import rows
from silent_trainings.case import Case
from silent_trainings.loops import RANK_STEPS, examples, loss_of, network, replicated, update
from silent_trainings.runs import SICK, Job, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.checks.batches import DataPasses
from sentinel.client.checks.check import CheckedTraining
from sentinel.client.checks.loaded_weights import Loads
from sentinel.client.checks.replicas import FIRST_STEPS, PLAN_STEP, Replicas
from sentinel.client.checks.untrained_parts import RecomputedBlocks
from sentinel.detectors.replicas_differ import ReplicasDiffer
from sentinel.model.finding import Finding
from sentinel.model.record import CHECK, Record

RANKS = 4
INTEGERS = {2: torch.int16, 4: torch.int32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--real", type=int, default=5)
    args = parser.parse_args()
    real = [found_by_real_ranks(seed) for seed in range(args.real)]
    folder = mkdtemp()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    simulated = [found_in_one_process(seed) for seed in range(args.seeds)]
    dist.destroy_process_group()
    shutil.rmtree(folder)
    head = ["one element of one rank of 4", "seeds", "found at the next comparison", "right rank"]
    body = [
        [title, str(len(found)), *(str(sum(each)) for each in zip(*found, strict=True))]
        for title, found in (("in one process", simulated), ("four ranks over gloo", real))
        if found
    ]
    print(rows(head, body))


@contextmanager
def corrupted(model: nn.Module, chance: random.Random) -> Iterator[None]:
    """Flip one bit of one element of one tensor while the context is open."""
    tensor = chance.choice([*model.parameters()]).data.view(-1)
    bits = tensor.view(INTEGERS[tensor.itemsize])
    element, bit = chance.randrange(tensor.numel()), 1 << chance.randrange(8 * tensor.itemsize - 1)
    bits[element] ^= bit
    yield
    bits[element] ^= bit


@dataclass
class OfFourRanks(CheckedTraining):
    """A training of one process whose model stands for the one of each rank."""

    recorded: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record = self.recorded.append

    def find_replicas(self) -> dict[str, float]:
        return {"first_rank": 0.0, "ranks": float(RANKS)}


def found_in_one_process(seed: int) -> tuple[bool, bool]:
    """Whether the detector finds the corruption, and names its rank."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = DistributedDataParallel(block.bfloat16() if seed % 2 else block)
    optimizer = AdamW(model.parameters())
    seen = SeenModules()
    seen.add(model)
    wrong, detector, output = chance.randrange(RANKS), ReplicasDiffer(), None
    checks = [check_of_rank(rank, optimizer, seen) for rank in range(RANKS)]
    for step in (PLAN_STEP, *FIRST_STEPS):
        assert not isinstance(output, Finding), "equal replicas differ"
        for rank, check in enumerate(checks):
            is_wrong = rank == wrong and step == FIRST_STEPS[-1]
            check.training.steps = step
            with corrupted(model, chance) if is_wrong else nullcontext():
                check.after_step()
            for evidence in check.training.recorded:
                output = detector.update(record_of(evidence, rank, step))
            check.training.recorded.clear()
    is_found = isinstance(output, Finding)
    return is_found, is_found and output.rank == wrong


def check_of_rank(rank: int, optimizer: AdamW, seen: SeenModules) -> Replicas:
    """The check as it is on that rank. On a CPU no device copies are needed."""
    training = OfFourRanks(
        lambda: optimizer, lambda: [optimizer], seen, record=None, record_metadata=print,
        device_copies=None, count_error=print, passes=DataPasses(), loads=Loads(),
        recomputed=RecomputedBlocks(), rank=rank,
    )  # fmt: skip
    return Replicas(training)


def record_of(evidence: dict[str, Any], rank: int, step: int) -> Record:
    values = {name: each for name, each in evidence.items() if isinstance(each, float)}
    texts = {name: each for name, each in evidence.items() if isinstance(each, str)}
    return Record("run", rank, step, float(step), CHECK, values, texts, step_index=step)


def corrupted_training(seed: int, *, sick: bool) -> None:
    """One element of one rank is corrupted for good after the step behind the first comparison."""
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    chance = random.Random(seed)
    wrong = chance.randrange(RANKS)
    for step in range(RANK_STEPS):
        update(optimizer, loss_of(model, examples()))
        if sick and step == FIRST_STEPS[0] + 1 and dist.get_rank() == wrong:
            corrupted(model, chance).__enter__()


def found_by_real_ranks(seed: int) -> tuple[bool, bool]:
    """Whether the message of four ranks is of the corruption."""
    folder = Path(mkdtemp())
    case = Case(partial(corrupted_training, seed), "", ("replicas_differ",), ranks=RANKS)
    ((_, outcome),) = run([Job(f"seed-{seed}", case, SICK, folder / "run")], 1)
    shutil.rmtree(folder)
    wrong = random.Random(seed).randrange(RANKS)
    is_found = outcome.reasons.get("replicas_differ") == FIRST_STEPS[-1]
    return is_found, is_found and f"rank {wrong} " in outcome.message


if __name__ == "__main__":
    main()
