"""Gives a model back bit-exactly after a measurement that changes its weights.

    with preserved(model, optimizer):
        ...  # change weights, switch to eval mode, evaluate, fail

Whatever ends the block, an exception and Ctrl-C included, the model continues as if the block had
not run: a training afterwards equals, bit for bit, a training without it.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch
    from torch import nn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")
_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)
_SHARE_OF_FREE_MEMORY = 0.25
"""Copies stay on their device if they need at most this share of its free memory."""


def preserved(model: nn.Module, optimizer: Any = None) -> ModelState:
    """A context manager that restores `model` (and `optimizer`) when its block ends.

    Restored are, of every submodule: parameters and buffers (the objects, their values and the
    memory that they are in), gradients, `requires_grad`, hooks, train or eval mode and the other
    attributes; the random number generators of Python, NumPy and PyTorch on every device; grad
    mode, autocast and the default dtype. With an optimizer also its parameter groups and its state.

    The copies need as much memory as the tensors. They stay on an accelerator if a quarter of its
    free memory is enough, and are in host memory otherwise.

    Not restored are random number generators that the caller made, such as a
    `torch.Generator`, and what attributes refer to beyond the first level of lists, dicts and sets.

    Raises `ValueError` if the model has parameters that are not initialised yet (lazy modules).
    """
    return ModelState(model, optimizer)


class ModelState:
    """The state of a model and an optimizer at one moment; see `preserved`."""

    def __init__(self, model: nn.Module, optimizer: Any = None) -> None:
        self._model = model
        self._optimizer = getattr(optimizer, "optimizer", optimizer)
        self._signals = _HeldSignals(type(self).__exit__.__code__)

    def __enter__(self) -> Self:
        reshard(self._model)
        modes = _modes()
        structure = _Structure(self._model, self._optimizer)
        generators = _random_state()
        memory = _Memory(structure.tensors)
        self._restores = [structure.restore, memory.restore, generators, modes]
        self._signals.hold()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._restore(failed=kind is not None)
        finally:
            self._signals.release()

    def _restore(self, *, failed: bool) -> None:
        """Restore everything that can be restored, then raise the first error."""
        errors: list[Exception] = []
        for restore in (lambda: reshard(self._model, failed=failed), *self._restores):
            try:
                restore()
            except Exception as error:
                errors.append(error)
        if errors:
            raise RuntimeError(
                f"the model could not be restored completely ({errors[0]}); "
                "go on from the last checkpoint"
            ) from errors[0]


def reshard(model: nn.Module, *, failed: bool = False) -> None:
    """Free the gathered parameters of FSDP2 modules, so that the shards are the parameters.

    The root keeps them after a forward pass; they would hide a change of the shards. `failed`
    states that a forward or backward pass may have ended in the middle.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded_type = getattr(fsdp, "FSDPModule", None)
    if sharded_type is None:
        return
    sharded = [each for each in model.modules() if isinstance(each, sharded_type)]
    if failed and sharded and hasattr(sharded[0], "reset_iter_state"):
        with suppress(RuntimeError):  # a collective of a lost rank; the shards are there
            sharded[0].reset_iter_state()
    for each in sharded:
        each.reshard()


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of this process that hold the values: the shard of a DTensor, the two of COO."""
    import torch  # noqa: PLC0415 - slow to import

    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]  # noqa: SLF001 (of an uncoalesced tensor)
    if tensor.layout is not torch.strided:
        compressed = tensor.detach()
        is_by_row = tensor.layout in {torch.sparse_csr, torch.sparse_bsr}
        index = (
            (compressed.crow_indices(), compressed.col_indices())
            if is_by_row
            else (compressed.ccol_indices(), compressed.row_indices())
        )
        return [*index, compressed.values()]
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return [inner for part in tensors for inner in inner_tensors(part)]


class _Structure:
    """Which tensors, gradients, hooks and attributes the modules and the optimizer have."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._containers: list[_Container] = []
        self._known: dict[int, _TensorState] = {}
        for module in model.modules():
            self._remember(module.__dict__)
        if optimizer is not None:
            self._remember(optimizer.__dict__)
            for group in optimizer.param_groups:
                self._remember_value(group)
            for state in optimizer.state.values():
                self._remember_value(state)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor whose values are restored, gradients included."""
        found = []
        for state in self._known.values():
            found += [each for each in (state.tensor, state.grad) if each is not None]
        return found

    def restore(self) -> None:
        for current, saved in self._attributes:
            for name in current.keys() - saved.keys():
                del current[name]
            current.update(saved)
        for container in self._containers:
            container.restore()
        for state in self._known.values():
            state.restore()

    def _remember(self, attributes: dict[str, Any]) -> None:
        self._attributes.append((attributes, dict(attributes)))
        for value in attributes.values():
            self._remember_value(value)

    def _remember_value(self, value: Any) -> None:
        import torch  # noqa: PLC0415 - slow to import

        if isinstance(value, torch.Tensor):
            self._remember_tensor(value)
        elif type(value) in _CONTAINERS:
            self._containers.append(_Container(value))
            for element in value.values() if isinstance(value, dict) else value:
                if isinstance(element, torch.Tensor):
                    self._remember_tensor(element)

    def _remember_tensor(self, tensor: torch.Tensor) -> None:
        import torch  # noqa: PLC0415 - slow to import

        if id(tensor) in self._known:
            return
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(
                "the model has a lazy parameter without values: run one forward pass first"
            )
        self._known[id(tensor)] = _TensorState(tensor)
        for name, value in getattr(tensor, "__dict__", {}).items():
            # Such as `main_grad`, into which fused kernels add gradients.
            if isinstance(value, torch.Tensor) and name != "_local_tensor":
                self._remember_tensor(value)


class _Container:
    """The elements of a dict, list or set that a module or an optimizer refers to."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._saved = container.copy()

    def restore(self) -> None:
        self._container.clear()
        if isinstance(self._container, list):
            self._container.extend(self._saved)
        else:
            self._container.update(self._saved)


class _TensorState:
    """What belongs to a tensor beside its values: memory, gradient, `requires_grad`, hooks."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.grad = tensor.grad if tensor.is_leaf else None
        self._requires_grad = tensor.requires_grad
        # An alias of the same memory, in case that `tensor.data` is replaced.
        self._data = tensor.data
        self._hooks = [
            (name, hooks, None if hooks is None else hooks.copy())
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
            for hooks in (getattr(tensor, name, None),)
        ]

    def restore(self) -> None:
        tensor = self.tensor
        if not _is_same_memory(tensor, self._data):
            if tensor.shape != self._data.shape:
                _forget_shape(tensor)
            tensor.data = self._data
        if not tensor.is_leaf:
            return
        if tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
        if tensor.grad is not self.grad:
            tensor.grad = self.grad
        for name, hooks, saved in self._hooks:
            if getattr(tensor, name, None) is not hooks:
                setattr(tensor, name, hooks)
            if hooks is not None:
                hooks.clear()
                hooks.update(saved)


def _forget_shape(tensor: torch.Tensor) -> None:
    """Detach the tensor from graphs that are left, whose gradients have its present shape.

    torch does that only where the type of the data changes.
    """
    import torch  # noqa: PLC0415 - slow to import

    other = torch.float32 if tensor.dtype is torch.float64 else torch.float64
    if tensor.is_floating_point():
        tensor.data = torch.empty(0, dtype=other, device=tensor.device)


def _is_same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if (tensor.dtype, tensor.device, tensor.layout) != (other.dtype, other.device, other.layout):
        return False
    if tensor.shape != other.shape:
        return False
    return all(
        one.untyped_storage()._cdata == two.untyped_storage()._cdata  # noqa: SLF001
        and one.storage_offset() == two.storage_offset()
        and one.stride() == two.stride()
        for one, two in zip(inner_tensors(tensor), inner_tensors(other), strict=True)
    )


class _Memory:
    """The bytes of every tensor. Tied weights and views of one buffer are copied once."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        import torch  # noqa: PLC0415 - slow to import

        storages: dict[int, torch.UntypedStorage] = {}
        for tensor in tensors:
            for inner in inner_tensors(tensor):
                storage = inner.untyped_storage()
                if storage.nbytes() and storage.device.type != "meta":
                    storages[storage._cdata] = storage  # noqa: SLF001
        needed: dict[torch.device, int] = {}
        for storage in storages.values():
            needed[storage.device] = needed.get(storage.device, 0) + storage.nbytes()
        stays = {device: size <= _free_bytes(device) for device, size in needed.items()}
        self._copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        for storage in storages.values():
            place = storage.device if stays[storage.device] else torch.device("cpu")
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8, device=place)
            self._copies.append((storage, copy.untyped_storage().copy_(storage)))

    def restore(self) -> None:
        import torch  # noqa: PLC0415 - slow to import

        for storage, copy in self._copies:
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            # Unchanged host memory is not written: it may be mapped from a file, read-only.
            if storage.device.type != "cpu" or not torch.equal(_bytes(storage), _bytes(copy)):
                storage.copy_(copy)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    import torch  # noqa: PLC0415 - slow to import

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _free_bytes(device: torch.device) -> float:
    """How much memory copies may use on this device; host memory is never refused."""
    import torch  # noqa: PLC0415 - slow to import

    if device.type == "cpu":
        return float("inf")
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return 0.0
    return _SHARE_OF_FREE_MEMORY * float(module.mem_get_info(device)[0])


def _random_state() -> Callable[[], None]:
    """Restores the global random number generators of this process as they are now."""
    import torch  # noqa: PLC0415 - slow to import

    restores = [partial(random.setstate, random.getstate())]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        restores.append(partial(numpy.random.set_state, numpy.random.get_state()))
    restores.append(partial(torch.set_rng_state, torch.get_rng_state()))
    restores += [
        partial(module.set_rng_state, module.get_rng_state(index), index)
        for module in initialised_devices()
        for index in range(module.device_count())
    ]
    if torch.backends.mps.is_available():
        restores.append(partial(torch.mps.set_rng_state, torch.mps.get_rng_state()))

    def restore() -> None:
        for each in restores:
            each()

    return restore


def initialised_devices() -> Iterator[Any]:
    """The modules of the accelerators that this process uses, such as `torch.cuda`."""
    import torch  # noqa: PLC0415 - slow to import

    for name in ("cuda", "xpu"):
        module = getattr(torch, name)
        if module.is_available() and module.is_initialized():
            yield module


def _modes() -> Callable[[], None]:
    """Restores grad mode, autocast and default dtype of this thread as they are now."""
    import torch  # noqa: PLC0415 - slow to import

    grad, default = torch.is_grad_enabled(), torch.get_default_dtype()
    has_cache = torch.is_autocast_cache_enabled()
    autocast = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _AUTOCAST_DEVICES
    ]

    def restore() -> None:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(default)
        torch.set_autocast_cache_enabled(has_cache)
        # The cache may hold weights of the block, cast to the dtype of autocast.
        torch.clear_autocast_cache()
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)

    return restore


class _HeldSignals:
    """Delays Ctrl-C and SIGTERM while the state is restored, and only then.

    A Python handler may run between any two instructions, also after the block and before the first
    line of `__exit__`. So the handler looks whether `__exit__` is on the stack that it interrupts.
    """

    def __init__(self, protected_code: Any) -> None:
        self._protected_code = protected_code
        self._originals: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._pending: list[int] = []

    def hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # handlers run in the main thread
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._originals[number] = handler
                signal.signal(number, self._handle)

    def release(self) -> None:
        for number, handler in self._originals.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        pending, self._pending = self._pending, []
        for number in pending:
            # Without the frame: it is inside `__exit__`, so that an outer block would wait too.
            self._originals[number](number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None:
            if caller.f_code is self._protected_code:
                self._pending.append(number)
                return
            caller = caller.f_back
        self._originals[number](number, frame)
