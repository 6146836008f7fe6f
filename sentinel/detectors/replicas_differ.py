"""Replicas differ: ranks that must have the same weights no longer have them.

Formula
    sum      = for each layer, a checksum of the exact bits of its weights after a step
    Finding  = the sums of a layer are not equal on all ranks of a DistributedDataParallel model or
               of ZeRO 1 or 2, or on all that hold the same part of it with HSDP; or
               the sums of a norm are not equal on ranks whose last 3 losses, which vary, are equal
               to the last bit
    culprit  = the ranks whose sum is not that of the majority

Units
    There are no settings. Compared steps: the 3rd and 10th after the first, and later ones.

Source
    deepspeedai/DeepSpeed issue 1801: the training of BLOOM-176B lost 15 days to weights that
    differed between GPUs. A model that is replicated starts from the weights of one rank, and
    each step adds the same averaged gradient to the last bit, so its replicas stay equal.

Defaults
    Every difference is one: the sums are of integers, whose order does not count, and a single
    changed bit changes them. A sum is stored in 32 bits, so one of 4 billion differences of a layer
    is missed at one comparison. Steps under `no_sync`, the hook of post-local SGD and
    parameters that the wrapper ignores are left out: there ranks differ on purpose. Ranks with the
    same losses divide one model, as in tensor parallelism, and each of them holds all of its norms;
    ranks that train models of their own have other losses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from sentinel.model.finding import (
    CLEAR,
    DetectorDefaults,
    DetectorOutput,
    Finding,
    Scope,
    Severity,
)
from sentinel.model.number_ranges import ranges_text
from sentinel.model.record import CHECK, CHECK_KEY, LOSSES_KEY, PROBLEM_KEY, Record

MAX_COMPARISONS = 4
"""Comparisons that wait for ranks at once; of more, the oldest is dropped."""
MAX_RANKS = 4096
SUM_CHARS = 8
"""Hexadecimal digits of the sum of a layer."""

_REMEDY_OF_DIVIDED = (
    "Resume all ranks from one checkpoint before the onset: ranks that divide a model must have "
    "the same norms. Sum the gradients of weights that each rank holds over the tensor-parallel "
    "group, clip them by one norm of all ranks, and start them from the same weights."
)


@dataclass
class ReplicasDiffer(DetectorDefaults):
    """Compares the evidence of the check `replicas` between ranks."""

    check = "replicas"
    unreported = (
        "The check needs 3 updates on two or more ranks, of a model that is replicated by "
        "DistributedDataParallel, ZeRO 1 or 2 or HSDP, or whose layers are divided between ranks "
        "with the same loss."
    )
    events = frozenset({CHECK})
    signal = "grad_norm"
    severity = Severity.CRITICAL
    scope = Scope.TRAINING
    remedy = (
        "Resume all ranks from one checkpoint before the onset: the replicas are no longer one "
        "model. Look for weights that are set on some ranks only, for a model that is called "
        "without its DistributedDataParallel wrapper, and for parameters moved after wrapping."
    )

    def __post_init__(self) -> None:
        self._sums: dict[str, dict[str, str]] = {}
        """By comparison, and then by rank as text: the losses, if any, and the sums."""
        self._last_equal_step = 0
        self._differing: set[float] = set()
        """The first ranks of the groups whose replicas differ now."""

    def update(self, record: Record) -> DetectorOutput:
        """Add the sums of one rank; compare when those of all ranks are there."""
        attributes, values = record.attributes, record.values
        if (
            record.event is not CHECK
            or attributes.get(CHECK_KEY) != self.check
            or PROBLEM_KEY in attributes
        ):
            return None
        key = f"{values.get('first_rank', 0):.0f} {record.attempt} {record.step_index}"
        sums = self._sums.setdefault(key, {})
        losses = attributes.get(LOSSES_KEY, "")
        sums[f"{values.get('rank', 0):.0f}"] = f"{losses} {attributes.get('sums', '')}"
        if len(self._sums) > MAX_COMPARISONS or len(sums) > MAX_RANKS:
            del self._sums[next(iter(self._sums))]
        if len(sums) < values.get("ranks", 0):
            return None
        self._sums.pop(key, None)
        groups = defaultdict[str, dict[str, str]](dict)
        for rank, text in sums.items():
            own_losses, _, own_sums = text.partition(" ")
            groups[own_losses][rank] = own_sums
        compared = [each for each in groups.values() if len(each) > 1]
        differing = [each for each in compared if len({*each.values()}) > 1]
        group = values.get("first_rank", 0.0)
        if differing:
            self._differing.add(group)
            return self._finding(record, differing[0], are_divided=bool(losses))
        if compared:
            self._differing.discard(group)
            self._last_equal_step = record.step
            return None if self._differing else CLEAR
        return None

    def _finding(self, record: Record, sums: dict[str, str], *, are_divided: bool) -> Finding:
        (majority, count), *_ = Counter(sums.values()).most_common()
        differing = sorted(int(rank) for rank, each in sums.items() if each != majority)
        has_majority = count > len(sums) / 2
        names = record.attributes.get("layers", "").split("\n")
        layers = [
            names[at] if at < len(names) else f"layer {at}"
            for at in range(len(majority) // SUM_CHARS)
            if len({each[at * SUM_CHARS : (at + 1) * SUM_CHARS] for each in sums.values()}) > 1
        ]
        ranks = ranges_text(differing)
        which = (
            f"rank{'s' if len(differing) > 1 else ''} {ranks} from the other {count}"
            if has_majority
            else f"ranks {ranges_text(sorted(map(int, sums)))}"
        )
        where = (
            f" in {len(layers)} layer{'s' if len(layers) != 1 else ''}, the first of them "
            f"`{layers[0]}`"
            if layers
            else ""
        )
        return Finding(
            summary=f"The norms of {which}, which divide one model between them, differ{where}."
            if are_divided
            else f"The weights of {which} differ{where}.",
            remedy=_REMEDY_OF_DIVIDED if are_divided else None,
            evidence={
                "first_layer": layers[0] if layers else "unknown",
                "layers_that_differ": float(len(layers)),
                "differing_ranks": ranks,
                "ranks_compared": float(len(sums)),
                "last_equal_step": float(self._last_equal_step),
            },
            onset_step=record.step,
            onset_range=(min(self._last_equal_step, record.step), record.step),
            rank=differing[0] if has_majority and len(differing) == 1 else None,
        )
