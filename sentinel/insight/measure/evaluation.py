"""Evaluates the loss, its gradient and Hessian-vector products at weights near those of a model.

Every evaluation of one point gives the same number: the modules are in eval mode (or in train mode
with the same random numbers each time), and buffers are reset before each evaluation.
"""

from __future__ import annotations

import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from sentinel.insight.measure.measurement import count_activity
from sentinel.insight.measure.model_state import initialised_devices, inner_tensors, reshard
from sentinel.insight.measure.rank_exchange import RankExchange
from sentinel.insight.measure.surface_error import SurfaceError, UndefinedError
from sentinel.insight.measure.time_limit import TimeLimit
from sentinel.insight.measure.weight_space import Vector, WeightSpace, tensor_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn

LossFunction = Callable[[Any, Any], Any]
Mode = Literal["eval", "train"]

_MAX_DEPTH = 8
_RELATIVE_STEP = {"float32": 1e-3, "float64": 1e-5}
"""Central differences move the weights by this share of their norm."""
_MAX_DISAGREEMENT = 0.3
"""Relative difference of products above which differences of gradients are used."""


class Evaluator:
    """Evaluates a loss function at weights of a model. Use it inside `preserved(model)`.

    With several ranks the data of all of them count. If they all hold the same batch and no weight
    is sharded, ranks may evaluate different points (`shares_points`); otherwise every rank
    evaluates every point on its own batch, and the mean is weighted by the sizes of the batches.
    """

    def __init__(  # noqa: PLR0913 - keyword arguments
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        batch: Any,
        space: WeightSpace,
        *,
        exchange: RankExchange,
        mode: Mode = "eval",
        seed: int = 0,
        max_seconds: float | None = None,
    ) -> None:
        if mode not in {"eval", "train"}:
            raise ValueError(f'`mode` must be "eval" or "train", not {mode!r}.')
        self.model, self.space, self.exchange = model, space, exchange
        self.time_limit = TimeLimit(max_seconds, exchange)
        self.notes: list[str] = []
        self.hessian_products = 0
        self._loss_fn, self._seed = loss_fn, seed
        self._batches = [(each, size_of(each)) for each in as_batches(batch)]
        if any(size is None for _, size in self._batches):
            self._batches = [(each, 1) for each, _ in self._batches]
        self._weight = sum(size or 0 for _, size in self._batches)
        if not self._weight:
            raise SurfaceError("The batch is empty: give at least one example.")
        self.is_sharded = any(hasattr(each, "placements") for each in space.parameters)
        bypass_data_parallel(model)
        self._trained_norms = _trained_norms(model)
        model.train(mode == "train")
        self._buffers = [
            (inner, inner.detach().clone())
            for buffer in model.buffers()
            for inner in inner_tensors(buffer)
        ]
        self._differs, self._has_custom_functions = self.is_sharded, False
        self._graph: tuple[Any, Any] | None = None
        self.data_digest = digest_of([each for each, _ in self._batches])
        self._weights_of_ranks = [float(self._weight)]
        self._is_same_data = True
        if exchange.size > 1:
            self._compare_ranks()
            if self.is_sharded:
                self._meet_before_collectives()

    @contextmanager
    def batch_statistics(self) -> Iterator[bool]:
        """Within it batch norm uses the statistics of the batch; whether any did not before.

        Modules that the training itself keeps in eval mode keep their running statistics, and so
        do those that exchange statistics between ranks.
        """
        switched = [each for each in self._trained_norms if not each.training]
        self.release()
        for each in switched:
            each.train()
        try:
            yield bool(switched)
        finally:
            self.release()
            for each in switched:
                each.eval()

    @property
    def shares_points(self) -> bool:
        """Whether ranks may evaluate different points."""
        return self.exchange.size > 1 and self._is_same_data and not self.is_sharded

    def losses(
        self, directions: Sequence[Vector], points: Sequence[tuple[float, ...]]
    ) -> list[float]:
        """The loss at each point; every rank returns all of them."""
        losses: list[float] = self._shared(points, lambda point: self.loss(directions, point))
        return losses

    def arrows(
        self, directions: Sequence[Vector], points: Sequence[tuple[float, ...]]
    ) -> list[list[float]]:
        """At each point the inner products of the gradient with the directions."""

        def slopes(point: tuple[float, ...]) -> list[float]:
            self.space.move(directions, point)
            _, gradient = self._gradient()
            return [self.space.dot(gradient, direction) for direction in directions]

        found: list[list[float]] = self._shared(points, slopes)
        return found

    def loss(self, directions: Sequence[Vector], point: tuple[float, ...]) -> float:
        """The loss of this rank's batch at a point."""
        self.space.move(directions, point)
        return self.current_loss()

    def current_loss(self) -> float:
        """The loss of this rank's batch at the weights as they are."""
        import torch  # noqa: PLC0415 - slow to import

        self._reset()
        total = 0.0
        with self._describe_errors(), torch.no_grad():
            for batch, weight in self._batches:
                total += (weight or 0) * float(self._scalar(batch))
        return total / self._weight

    def mean_loss(self) -> float:
        """The loss of the data of all ranks at the weights as they are."""
        if self._is_same_data:
            return self.current_loss()
        return self._mean(self.exchange.gather(self.current_loss()))

    def gradient(self) -> tuple[float, Vector]:
        """Loss and gradient of the data of all ranks at the weights as they are.

        Raises UndefinedError if the loss does not depend on the weights.
        """
        loss, gradient = self._gradient()
        return loss, self._combined(gradient)

    def hessian_product(self, vector: Vector) -> Vector:
        """The Hessian of the loss at the centre times a vector, over the data of all ranks.

        By double backward where it is available, otherwise by central differences of gradients.
        Raises OutOfTimeError if the time limit is passed.
        """
        self.time_limit.check()
        self.hessian_products += 1
        count_activity()
        if not self._differs:
            try:
                product = self._combined(self._double_backward(vector))
                if self._is_plausible(vector, product):
                    return product
                self._graph, self._differs = None, True
            except (RuntimeError, NotImplementedError) as error:
                self._graph = None
                if _is_out_of_memory(error) or isinstance(error, SurfaceError):
                    raise
                self._differs = True
                first = str(error).strip().splitlines()[0][:160]
                self._note_differences(f"double backward is not available here ({first})")
        elif self.is_sharded:
            self._note_differences("FSDP does not support double backward")
        return self._differences(vector)

    def _note_differences(self, reason: str) -> None:
        note = (
            "Hessian-vector products are central differences of gradients, accurate to about three "
            f"digits: {reason}. Kinks, as of ReLU, add to the curvature."
        )
        if note not in self.notes:
            self.notes.append(note)

    def release(self) -> None:
        """Free the graph that Hessian-vector products share."""
        self._graph = None

    def _shared(self, points: Sequence[tuple[float, ...]], measure: Callable[..., Any]) -> Any:
        exchange = self.exchange
        if not self.shares_points:
            values = [measure(point) for point in points]
            if exchange.size == 1:
                return values
            by_rank = exchange.gather(values)
            if self.is_sharded and values and isinstance(values[0], list):
                return values  # FSDP has averaged the gradients
            return [self._mean_of(each) for each in zip(*by_rank, strict=True)]
        own = [measure(point) for point in points[exchange.rank :: exchange.size]]
        by_rank = exchange.gather(own)
        return [by_rank[i % exchange.size][i // exchange.size] for i in range(len(points))]

    def _mean_of(self, values: Sequence[Any]) -> Any:
        if isinstance(values[0], list):
            return [self._mean(each) for each in zip(*values, strict=True)]
        return self._mean(values)

    def _mean(self, values: Sequence[float]) -> float:
        weights = self._weights_of_ranks
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    def _compare_ranks(self) -> None:
        """Check that the ranks hold the same model, and whether they hold the same data."""
        space = self.space
        weights = "" if self.is_sharded else space.digest(space.center)
        buffers = digest_of([inner for inner, _ in self._buffers])
        data = self.data_digest or f"rank {self.exchange.rank}"
        mine = {"weights": weights, "buffers": buffers, "data": data, "weight": self._weight}
        everyone = self.exchange.gather(mine)
        for rank, other in enumerate(everyone):
            if other["weights"] != everyone[0]["weights"]:
                ranks = self.exchange.ranks
                raise SurfaceError(
                    f"Rank {ranks[rank]} has other weights than rank {ranks[0]}: the ranks of a "
                    "data-parallel group must hold the same model. Measure on one rank with "
                    "`process_group=False`, or find out why they differ."
                )
        self._weights_of_ranks = [float(each["weight"]) for each in everyone]
        self._is_same_data = all(each["data"] == everyone[0]["data"] for each in everyone)
        if any(each["buffers"] != everyone[0]["buffers"] for each in everyone):
            self._share_buffers()
            self.notes.append(
                "The buffers of the ranks differ, such as running means of batch norm: those of "
                f"rank {self.exchange.ranks[0]} are used."
            )
        self.data_digest = hashlib.blake2b(
            "".join(each["data"] for each in everyone).encode(), digest_size=16
        ).hexdigest()

    def _meet_before_collectives(self) -> None:
        """Let the ranks of an FSDP model enter each forward pass together.

        A rank whose loss function failed reports that to the others there. Otherwise they would
        wait for it in a collective, which would then be taken for one of the training.
        """
        from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - slow to import

        def meet(*_: Any) -> None:
            self.exchange.gather(None)

        inside: set[Any] = set()
        for module in self.model.modules():
            if module not in inside and isinstance(module, FSDPModule):
                inside.update(module.modules())
                # `preserved` removes it.
                module.register_forward_pre_hook(meet, prepend=True)

    def _share_buffers(self) -> None:
        import torch.distributed as dist  # noqa: PLC0415 - slow to import

        for inner, saved in self._buffers:
            dist.broadcast(saved, self.exchange.ranks[0], group=self.exchange.group)
            inner.data.copy_(saved)

    def _reset(self) -> None:
        """Start from the same buffers and random numbers, and forget weights cast by autocast."""
        import torch  # noqa: PLC0415 - slow to import

        count_activity()
        reshard(self.model)
        for buffer, saved in self._buffers:
            buffer.data.copy_(saved)
        torch.clear_autocast_cache()
        # `torch.manual_seed` would also seed devices that are not initialised yet, for good.
        torch.default_generator.manual_seed(self._seed)
        for module in initialised_devices():
            module.manual_seed_all(self._seed)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(self._seed)
        random.seed(self._seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self._seed)

    def _scalar(self, batch: Any) -> Any:
        """The loss of a batch, a tensor of one element or a number."""
        result = self._loss_fn(self.model, batch)
        if isinstance(result, tuple) and result:
            result = result[0]
        elements = getattr(result, "numel", None)
        if callable(elements) and elements() == 1:
            return result.reshape(())
        if isinstance(result, int | float):
            return result
        shape = list(result.shape) if hasattr(result, "shape") else type(result).__name__
        raise SurfaceError(
            f"The loss function returned {shape}: it must return one number, such as "
            "`model(**batch).loss` or `loss.mean()`."
        )

    def _gradient(self) -> tuple[float, Vector]:
        """Loss and gradient of this rank's data; of all ranks' data where FSDP averages them."""
        import torch  # noqa: PLC0415 - slow to import

        self._reset()
        losses = []

        def gradient(batch: Any, share: float) -> Any:
            loss = self._differentiable(batch)
            losses.append(share * float(loss.detach()))
            if self.is_sharded:
                self.exchange.gather(None)
                return self._backward(loss * (share * self._share_of_rank))
            return torch.autograd.grad(loss * share, self.space.parameters, materialize_grads=True)

        total = self._sum_over_batches(gradient)
        return sum(losses), total

    def _sum_over_batches(self, measure: Callable[[Any, float], Any]) -> Vector:
        """The sum over the batches of the results of `measure`, given a batch and its share."""
        import torch  # noqa: PLC0415 - slow to import

        for parameter in self.space.parameters:
            parameter.requires_grad_(True)
        total: Vector = []
        with self._describe_errors(), torch.enable_grad():
            for batch, weight in self._batches:
                vector = measure(batch, (weight or 0) / self._weight)
                parts = [
                    each.detach().to(dtype)
                    for each, dtype in zip(vector, self.space.dtypes, strict=True)
                ]
                total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
        return total

    @property
    def _share_of_rank(self) -> float:
        """Factor of this rank's loss, so that a plain mean over ranks is the weighted mean."""
        weights = self._weights_of_ranks
        return weights[self.exchange.rank] * len(weights) / sum(weights)

    def _backward(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """Gradients by a backward pass into `grad`, as FSDP reduces them."""
        import torch  # noqa: PLC0415 - slow to import

        for parameter in self.model.parameters():
            parameter.grad = None
        hooks = [
            getattr(each, "_post_accumulate_grad_hooks", None) for each in self.space.parameters
        ]
        for each in hooks:
            if each:
                each.clear()  # such as an optimizer that steps inside the backward pass
        # Without the patch of a monitored run: this is no training.
        inspect.unwrap(torch.autograd.backward)([loss])
        found = [
            torch.zeros_like(each) if each.grad is None else each.grad
            for each in self.space.parameters
        ]
        for parameter in self.model.parameters():
            parameter.grad = None
        return found

    def _differentiable(self, batch: Any) -> Any:
        loss = self._scalar(batch)
        if not getattr(loss, "requires_grad", False):
            raise UndefinedError(
                "The loss has no gradient with respect to the chosen weights: the loss function "
                "must return a tensor that depends on them, without `no_grad`, `detach` or `item`."
            )
        return loss

    def _double_backward(self, vector: Vector) -> Vector:
        """Hessian-vector product by differentiating the gradient (Pearlmutter 1994)."""
        import torch  # noqa: PLC0415 - slow to import

        parameters, dtypes = self.space.parameters, self.space.dtypes
        directions = [each.to(p.dtype) for each, p in zip(vector, parameters, strict=True)]

        def product(batch: Any, share: float) -> Vector:
            gradients = self._differentiable_gradient(batch)
            pairs = [
                pair for pair in zip(gradients, directions, strict=True) if pair[0].requires_grad
            ]
            if not pairs:
                return [torch.zeros_like(each) for each in parameters]
            found = torch.autograd.grad(
                [gradient for gradient, _ in pairs],
                parameters,
                [direction for _, direction in pairs],
                retain_graph=self._graph is not None,
                materialize_grads=True,
            )
            return [share * each.to(dtype) for each, dtype in zip(found, dtypes, strict=True)]

        with _twice_differentiable():
            return self._sum_over_batches(product)

    def _differentiable_gradient(self, batch: Any) -> Any:
        """The gradient with its graph, kept between products if there is one batch."""
        import torch  # noqa: PLC0415 - slow to import

        if self._graph is not None:
            return self._graph[1]
        self.space.move([], [])
        self._reset()
        loss = self._differentiable(batch)
        if self.hessian_products == 1:
            self._has_custom_functions = has_custom_functions(loss.grad_fn)
        gradients = torch.autograd.grad(
            loss, self.space.parameters, create_graph=True, materialize_grads=True
        )
        if len(self._batches) == 1:
            self._graph = (loss, gradients)
        return gradients

    def _is_plausible(self, vector: Vector, product: Vector) -> bool:
        """Check a product against differences of gradients, if the loss has custom functions.

        Their backward pass may have no derivative without an error, as that of some kernels of
        attention: their part of the Hessian would be left out. Operations of PyTorch raise instead.
        """
        if not self._has_custom_functions or self.space.coarsest_dtype is not None:
            return True
        self._has_custom_functions = False
        different = self._differences(vector)
        space = self.space
        largest = max(space.norm(product), space.norm(different))
        error = space.norm(space.difference(product, different))
        if not error > _MAX_DISAGREEMENT * largest:
            return True
        self._note_differences("a custom function in the loss has no second derivative")
        return False

    def _differences(self, vector: Vector) -> Vector:
        space = self.space
        norm, length = space.norm(space.center), space.norm(vector)
        if not length:
            return [each * 0 for each in vector]
        name = "float64" if "float64" in str(space.dtypes[0]) else "float32"
        step = _RELATIVE_STEP[name] * (norm or 1.0) / length
        ends = []
        for sign in (1.0, -1.0):
            space.move([vector], [sign * step])
            ends.append(self.gradient()[1])
        space.move([], [])
        return space.scaled(space.difference(ends[0], ends[1]), 0.5 / step)

    def _combined(self, vector: Vector) -> Vector:
        """The mean over the data of all ranks, unless this is it."""
        import torch.distributed as dist  # noqa: PLC0415 - slow to import

        if self.exchange.size == 1 or self.is_sharded:
            return vector
        # Also with equal data, so that every rank goes on with the same bits.
        weights = self._weights_of_ranks
        factor = weights[self.exchange.rank] / sum(weights)
        found = []
        for each in vector:
            total = each * factor
            dist.all_reduce(total, group=self.exchange.group)
            found.append(total)
        return found

    @contextmanager
    def _describe_errors(self) -> Iterator[None]:
        try:
            yield
        except SurfaceError:
            raise
        except Exception as error:
            if not _is_out_of_memory(error):
                error.add_note("The loss function raised this; the model is restored.")
                raise
            device = self.space.parameters[0].device
            raise SurfaceError(
                f"The batch does not fit in the memory of {device} beside the copies of the "
                "weights and the directions. Give a smaller batch or several small ones as a list, "
                "or choose fewer weights with `parameters`. The model is restored."
            ) from error


def as_batches(batch: Any) -> list[Any]:
    """The batches: a list of dicts, tuples or lists is several, everything else is one."""
    if isinstance(batch, list) and batch and all(isinstance(b, dict | tuple | list) for b in batch):
        return batch
    if isinstance(batch, list) and not batch:
        raise SurfaceError("The list of batches is empty: give at least one batch.")
    return [batch]


def size_of(batch: Any, depth: int = 0) -> int | None:
    """Number of examples: the first dimension of the first tensor, None if there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth < _MAX_DEPTH:
        if isinstance(batch, Mapping):
            batch = list(batch.values())
        if isinstance(batch, list | tuple):
            for each in batch:
                found = size_of(each, depth + 1)
                if found is not None:
                    return found
    return None


def bypass_data_parallel(model: nn.Module) -> None:
    """Let a DDP model call its module directly: no buffers are sent, no gradients reduced.

    Ranks may then evaluate different points. `preserved` undoes it.
    """
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 - slow to import

    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            module.__dict__["forward"] = _moving_inputs(module)


def _moving_inputs(parallel: Any) -> Callable[..., Any]:
    device = parallel.device_ids[0] if parallel.device_ids else None

    def moved(value: Any) -> Any:
        if hasattr(value, "to") and hasattr(value, "device"):
            return value.to(device)
        if isinstance(value, dict):
            return type(value)({name: moved(each) for name, each in value.items()})
        if type(value) in {list, tuple}:
            return type(value)(moved(each) for each in value)
        return value

    def forward(*arguments: Any, **named: Any) -> Any:
        if device is not None:
            arguments, named = moved(arguments), moved(named)
        return parallel.module(*arguments, **named)

    return forward


def _trained_norms(model: nn.Module) -> list[nn.Module]:
    """The batch norms that use the statistics of the batch while the model trains.

    Of a model in eval mode, whether it trains so is not known, and all are taken.
    """
    found = []
    for module in model.modules():
        kinds = {each.__name__ for each in type(module).__mro__}
        is_batch_norm = "_BatchNorm" in kinds and "SyncBatchNorm" not in kinds
        if is_batch_norm and (module.training or not model.training):
            found.append(module)
    return found


def digest_of(value: Any) -> str | None:
    """A hash of tensors, arrays, texts and numbers in dicts, lists and tuples; None for others."""
    digest = hashlib.blake2b(digest_size=16)
    return digest.hexdigest() if _add_to(digest, value, 0) else None


def _add_to(digest: Any, value: Any, depth: int) -> bool:
    import torch  # noqa: PLC0415 - slow to import

    digest.update(type(value).__name__.encode())
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{list(value.shape)}".encode())
        for inner in inner_tensors(value):
            digest.update(tensor_bytes(inner))
    elif hasattr(value, "tobytes") and hasattr(value, "dtype") and value.dtype != object:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, str | bytes | int | float | complex | bool | type(None)):
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping | list | tuple) and depth < _MAX_DEPTH:
        items = value.items() if isinstance(value, Mapping) else value
        digest.update(str(len(value)).encode())
        return all(_add_to(digest, each, depth + 1) for each in items)
    else:
        return False
    return True


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Attention by plain matrix products and no compiled code: both can be differentiated twice."""
    import torch  # noqa: PLC0415 - slow to import
    from torch.nn import attention  # noqa: PLC0415

    set_stance = getattr(torch.compiler, "set_stance", None)
    eager: Any = nullcontext() if set_stance is None else set_stance("force_eager")
    with attention.sdpa_kernel(attention.SDPBackend.MATH), eager:
        yield


def has_custom_functions(node: Any) -> bool:
    """Whether a graph of autograd has functions that are written in Python."""
    import torch  # noqa: PLC0415 - slow to import

    custom = torch.autograd.function.BackwardCFunction
    found, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, custom):
            return True
        for following, _ in current.next_functions:
            if following is not None and following not in found:
                found.add(following)
                waiting.append(following)
    return False


def _is_out_of_memory(error: BaseException) -> bool:
    import torch  # noqa: PLC0415 - slow to import

    known = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    return isinstance(error, known | MemoryError) or "can't allocate memory" in str(error)
