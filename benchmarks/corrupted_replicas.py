"""One corrupted element in one tensor of one rank of four: whether the next comparison finds it.

    python benchmarks/corrupted_replicas.py [--seeds 100] [--real 5]

The tensor, the element, the bit, the rank and the step, of those that are compared, are random.
Four ranks train over gloo. In most trainings the check of the trainer is called after each step,
and the detector compares what it recorded. The real ones run under a monitor, and the message is
looked at. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch._dynamo
import torch.distributed as dist
from page_tables import rows
from silent_trainings.case import Case
from silent_trainings.healthy_frameworks import deepspeed
from silent_trainings.loops import RANK_STEPS, replicated, update
from silent_trainings.runs import SICK, Job, run
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import AdamW

from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.checks.check import CheckedTraining
from sentinel.client.checks.observed_process import ObservedProcess
from sentinel.client.checks.replicas import FIRST_STEPS, Replicas
from sentinel.detectors.replicas_differ import ReplicasDiffer
from sentinel.model.finding import Finding
from sentinel.model.record import CHECK, Record

RANKS = 4
INTEGERS = {2: torch.int16, 4: torch.int32}
MANTISSA_BITS = {2: 7, 4: 23}
LAST_STEP = FIRST_STEPS[-1]


class Training:
    """A small model on four ranks, of one of `KINDS`; every second one in bfloat16."""

    is_sent_anew = False
    """Whether each step sends the weights anew, from the rank that updates them."""
    has_majority = True
    """Whether most of the ranks with the same weights are right."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.model: Any = block.bfloat16() if seed % 2 else block
        self.dtype = next(block.parameters()).dtype
        torch.manual_seed(seed * RANKS + dist.get_rank())
        self.optimizer: Any = None
        self.wrap()

    def wrap(self) -> None:
        """Distribute the model."""
        self.model = replicated(self.model)
        self.optimizer = AdamW(self.model.parameters())

    def loss(self) -> Tensor:
        return self.model(torch.randn(4, 6, 32).to(self.dtype)).float().square().mean()

    def step(self) -> None:
        update(self.optimizer, self.loss())

    def set_engine(self, training: CheckedTraining) -> None:
        """State what an engine knows of its replicas."""


class ZeroOfPyTorch(Training):
    is_sent_anew = True

    def wrap(self) -> None:
        self.model = replicated(self.model)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), AdamW, lr=1e-3)


class ZeroOfDeepSpeed(Training):
    is_sent_anew = True

    def wrap(self) -> None:
        is_low = self.dtype is torch.bfloat16
        config = {
            "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**9,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": 1 + torch.initial_seed() // 8 % 2},
            "bf16": {"enabled": is_low},
        }  # fmt: skip
        self.model, *_ = deepspeed().initialize(
            model=self.model, model_parameters=self.model.parameters(), config=config
        )
        self.optimizer = self.model.optimizer

    def step(self) -> None:
        self.model.backward(self.loss())
        self.model.step()

    def set_engine(self, training: CheckedTraining) -> None:
        training.set_engine(self.model.module, range(RANKS))


class Hybrid(Training):
    has_majority = False

    def wrap(self) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(self.model.linear1, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = AdamW(self.model.parameters())


KINDS: dict[str, type[Training]] = {
    "DistributedDataParallel": Training,
    "ZeRO of PyTorch": ZeroOfPyTorch,
    "ZeRO 1 and 2 of DeepSpeed": ZeroOfDeepSpeed,
    "HSDP, 2 replicas of 2 parts": Hybrid,
}


def corrupt(model: nn.Module, chance: random.Random, is_wrong: bool) -> None:
    """Flip one bit of the mantissa of one element of one tensor, if this rank is the wrong one."""
    tensors = [getattr(each, "_local_tensor", each).data for each in model.parameters()]
    tensor = chance.choice([each for each in tensors if each.numel()]).view(-1)
    bits = tensor.view(INTEGERS[tensor.itemsize])
    element, bit = (
        chance.randrange(tensor.numel()),
        chance.randrange(MANTISSA_BITS[tensor.itemsize]),
    )
    if is_wrong:
        bits[element] ^= 1 << bit


def of_all_ranks(own: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """What each rank recorded, exchanged in files of this folder."""
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(own))
    dist.barrier()
    texts = [(folder / f"{rank}.json").read_text() for rank in range(RANKS)]
    dist.barrier()
    return [each for text in texts for each in json.loads(text)]


def is_found(kind: type[Training], seed: int, folder: Path) -> tuple[bool, bool]:
    """Whether the detector finds the corruption at the next comparison, and names its rank."""
    training, recorded, seen = kind(seed), list[dict[str, Any]](), SeenModules()
    seen.add(training.model)
    # On a CPU no device copies are needed.
    process = ObservedProcess(seen, recorded.append, print, None, print, dist.get_rank())
    checked = CheckedTraining(process, lambda: training.optimizer, lambda: [training.optimizer])
    training.set_engine(checked)
    check, detector = Replicas(checked), ReplicasDiffer()
    chance = random.Random(seed)
    wrong = chance.randrange(RANKS)
    # Later updates may round the difference away, and ZeRO sends all weights anew.
    corrupted_at, found = chance.choice(FIRST_STEPS), None
    for step in range(1, 1 + corrupted_at):
        check.before_backward()
        training.step()
        if step == corrupted_at:
            corrupt(training.model, chance, wrong == dist.get_rank())
        checked.steps = step
        check.after_step()
        if step in FIRST_STEPS:
            records = [record_of(each, step) for each in of_all_ranks(recorded, folder)]
            recorded.clear()
            assert len(records) == RANKS
            outputs = [detector.update(each) for each in records]
            found = next((each for each in outputs if isinstance(each, Finding)), None)
            assert found is None or step == corrupted_at, "equal replicas differ"
    is_named = found is not None and (
        found.rank == wrong if training.has_majority else f"{wrong}" in found.summary
    )
    return found is not None, is_named


def record_of(evidence: dict[str, Any], step: int) -> Record:
    values = {name: each for name, each in evidence.items() if isinstance(each, float)}
    texts = {name: each for name, each in evidence.items() if isinstance(each, str)}
    rank = int(values["rank"])
    return Record("run", rank, step, float(step), CHECK, values, texts, step_index=step)


def of_four_ranks(
    kinds: dict[str, type[Training]], seeds: int
) -> dict[str, list[tuple[bool, bool]]]:
    """Both answers for each seed, by kind, from processes of their own."""
    folder = Path(mkdtemp())

    def train(*, sick: bool) -> None:
        del sick
        found = {
            title: [is_found(kind, seed, folder) for seed in range(seeds)]
            for title, kind in kinds.items()
        }
        if not dist.get_rank():
            (folder / "found").write_text(json.dumps(found))

    ((_, outcome),) = run([Job("seeds", Case(train, "", (), ranks=RANKS), SICK, folder / "run")], 1)
    assert not outcome.failure, outcome.failure
    found: dict[str, list[tuple[bool, bool]]] = json.loads((folder / "found").read_text())
    shutil.rmtree(folder)
    return found


def corrupted_training(kind: type[Training], seed: int, *, sick: bool) -> None:
    """One element of one rank is corrupted for good after the step behind the first comparison."""
    training, chance = kind(seed), random.Random(seed)
    wrong = chance.randrange(RANKS)
    for step in range(RANK_STEPS):
        training.step()
        if sick and step == FIRST_STEPS[0] + 1:
            corrupt(training.model, chance, wrong == dist.get_rank())


def is_found_by_a_monitor(kind: type[Training], seed: int) -> tuple[bool, bool]:
    """Whether the message of four ranks is of the corruption."""
    folder = Path(mkdtemp())
    case = Case(partial(corrupted_training, kind, seed), "", ("replicas_differ",), ranks=RANKS)
    ((_, outcome),) = run([Job(f"seed-{seed}", case, SICK, folder / "run")], 1)
    shutil.rmtree(folder)
    wrong = random.Random(seed).randrange(RANKS)
    is_right = f"rank{'' if kind.has_majority else 's'} " in outcome.message
    return (
        outcome.reasons.get("replicas_differ") == LAST_STEP,
        is_right and f"{wrong}" in outcome.message,
    )


def counts(found: list[tuple[bool, bool]]) -> list[str]:
    """How many there are, and of how many each answer is yes."""
    return [str(len(found)), *(str(sum(each)) for each in zip(*found, strict=True))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--real", type=int, default=5)
    parser.add_argument("--only", default="", help="a part of the name of a kind")
    args = parser.parse_args()
    kinds = {title: kind for title, kind in KINDS.items() if args.only in title}
    os.environ["SENTINEL_HOME"] = mkdtemp()
    body = [[title, *counts(found)] for title, found in of_four_ranks(kinds, args.seeds).items()]
    for title, kind in kinds.items():
        if args.real and not kind.is_sent_anew:
            real = [is_found_by_a_monitor(kind, seed) for seed in range(args.real)]
            body.append([f"{title}, under a monitor", *counts(real)])
    head = ["one element of one rank of 4", "seeds", "found at the next comparison", "ranks named"]
    print(rows(head, body))


if __name__ == "__main__":
    main()
