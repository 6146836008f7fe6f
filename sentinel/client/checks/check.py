"""A check, and the training that it observes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from sentinel.client.capture import scalars
from sentinel.client.capture.owned_modules import owner_of
from sentinel.model.record import CHECK_KEY, PROBLEM_KEY

if TYPE_CHECKING:
    from sentinel.client.checks.observed_process import ObservedProcess

Evidence = Mapping[str, float | str]


def check_report(check: str, problem: str, rank: int, evidence: Evidence | None = None) -> Evidence:
    """The attributes of a CHECK: what a check found on that rank, "" if nothing."""
    found: Evidence = {CHECK_KEY: check, PROBLEM_KEY: problem, "rank": float(rank)}
    return {**found, **(evidence or {})}


@dataclass
class CheckedTraining:
    """The training of one optimizer.

    `find_optimizer` gives the optimizer while it exists, `find_optimizers` those that took a step
    in this training.
    """

    process: ObservedProcess
    find_optimizer: Callable[[], Any]
    find_optimizers: Callable[[], Iterable[Any]]
    first_preference_loss: Any = None
    """The loss of the first backward pass of the process, if it is one of preferences."""
    is_resumed: bool = False
    """Whether an optimizer was given a state before the first step of the process."""
    steps: int = 0
    """Steps of the optimizer since it became the primary one, which it does with its first step."""
    step_seconds: float = 0.0
    """Time of the step before the current one."""
    roots: Sequence[Any] = ()
    """The roots of the backward pass that begins now."""
    engine_ranks: Sequence[int] = ()
    """The ranks that hold replicas of the model of an engine, such as DeepSpeed's."""
    _find_model: Callable[[], Any] | None = None

    def read_vector(self, vector: Any, deliver: Callable[[list[float]], None]) -> bool:
        """Call `deliver` with the numbers of a flat float32 tensor, once they are on the host.

        Returns whether it is: not while another vector of the device is in flight. Later, its
        errors are only counted: they would be raised in whatever reads the copies then.
        """
        if vector.device.type not in scalars.ASYNC_DEVICE_TYPES:
            deliver(vector.tolist())
            return True

        def deliver_later(numbers: list[float]) -> None:
            try:
                deliver(numbers)
            except Exception as error:
                self.process.count_error(error)

        return self.process.device_copies.start_vector(vector, deliver_later)

    @property
    def parameters(self) -> list[Any]:
        """The parameters of the optimizer."""
        optimizer = self.find_optimizer()
        groups = () if optimizer is None else optimizer.param_groups
        return [each for group in groups for each in group["params"]]

    def find_model(self) -> Any:
        """The module that owns the parameters, searched once; None if there is none."""
        if self._find_model is None:
            model = owner_of({*map(id, self.parameters)}, self.process.seen_modules.modules())
            self._find_model = (lambda: None) if model is None else ref(model)
        return self._find_model()

    def find_replicas(self) -> Sequence[int]:
        """The ranks that hold replicas of the model: of DistributedDataParallel, or of ZeRO.

        Empty if there are none, or if they are averaged at some steps only.
        """
        if self.engine_ranks:
            return self.engine_ranks
        model, optimizer, modules = self.find_model(), self.find_optimizer(), sys.modules
        parallel = modules.get("torch.nn.parallel.distributed")
        zero = modules.get("torch.distributed.optim.zero_redundancy_optimizer")
        if parallel is not None and type(model) is parallel.DistributedDataParallel:
            hooks = {getattr(hook, "__name__", "") for hook, _ in getattr(model, "_comm_hooks", ())}
            group = None if "post_localSGD_hook" in hooks else model.process_group
        elif zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer):
            group = optimizer.process_group
        else:
            group = None
        ranks = modules["torch.distributed"].get_process_group_ranks(group) if group else ()
        return ranks if len(ranks) > 1 else ()

    def set_engine(self, model: Any, ranks: Sequence[int]) -> None:
        """The training is that of an engine which owns the optimizer of this model.

        `ranks` are those that hold replicas of the model; empty if each holds a part.
        """
        self._find_model, self.engine_ranks = ref(model), ranks


def group_of(ranks: Sequence[int]) -> dict[str, float]:
    """What a comparison between these ranks is recorded with."""
    return {"first_rank": float(min(ranks)), "ranks": float(len(ranks))}


class Check:
    """Observes some steps of one training; a subclass overrides what it needs."""

    name: ClassVar[str]

    def __init__(self, training: CheckedTraining) -> None:
        self.training = training
        self.problem: str | None = None
        """What was reported last: empty if the check passed, None before the first report."""
        self.wrong_count = self.right_count = 0
        """What was counted in a row."""

    def on_begin(self) -> None:
        """The first step of the training has just ended; it is not counted."""

    def before_backward(self) -> None:
        """A backward pass begins, from the roots of the training."""

    def after_backward(self) -> None:
        """A backward pass ended."""

    def before_step(self) -> None:
        """A step of the optimizer begins; its closure, if any, has run once."""

    def after_step(self) -> None:
        """A step of the optimizer ended; it is counted."""

    def on_first_batch(self, iterator: Any, batch: Any) -> None:
        """The first batch of a pass over the data arrived."""

    def on_batch(self, iterator: Any, batch: Any) -> None:
        """A batch arrived."""

    def on_fetch(self, iterator: Any, *, is_first: bool) -> None:
        """A batch arrived, with or without gradients; the first one of a pass over the data."""

    def on_schedule(self, scheduler: Any) -> None:
        """A scheduler took a step."""

    def on_framework_backward(self, framework: str, precision: str) -> None:
        """A framework runs the next backward pass, at a precision such as `bf16`."""

    def on_eval(self, module: Any) -> None:
        """A module is set to evaluation mode."""

    def on_save(self) -> None:
        """`torch.save` begins."""

    def on_load(self) -> None:
        """The state of a module is loaded."""

    def close(self) -> None:
        """The training of another optimizer begins."""

    def count(self, *, is_wrong: bool) -> None:
        """Count an update or a batch among those in a row that are wrong, or that are not."""
        self.wrong_count = self.wrong_count + 1 if is_wrong else 0
        self.right_count = 0 if is_wrong else self.right_count + 1

    def set_result(self, problem: str, evidence: Evidence | None = None) -> None:
        """Report a problem, or none, each time it changes."""
        if problem != self.problem:
            self.problem = problem
            report = check_report(self.name, problem, self.training.process.rank, evidence)
            self.training.process.record(report)
