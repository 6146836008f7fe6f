"""Records the path of the weights of a model in training, in bounded memory.

A record projects the weights (`weight_projection`) and adds one snapshot. Nothing waits for the
device: numbers stay there until the result is read. Records change neither the model, its
gradients nor a random state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from sentinel.client import api
from sentinel.client.session import current_session
from sentinel.insight.measure.parameters import Selection, describe_selection, select_parameters
from sentinel.insight.trajectory.saved_weights import SavedWeights, Source, open_weights
from sentinel.insight.trajectory.weight_projection import (
    DEFAULT_SIZE,
    LocalPart,
    WeightProjection,
    exact_type,
    is_sharded,
    local_part,
    local_pieces,
)

if TYPE_CHECKING:
    import torch

    from sentinel.insight.trajectory.trajectory import Trajectory

MAX_EXACT_ELEMENTS = 1 << 26
"""Parameters per rank of which a copy of the initial weights is kept unless `exact` is given."""

_VERSION = 1
_CPU_CHUNK, _DEVICE_CHUNK = 1 << 16, 1 << 22
"""Elements whose difference is in memory at once: a CPU has them in its cache."""
_INITIAL, _REFERENCE = -2, -1
"""Positions in the values of a snapshot: squared distances, behind the projection."""
_SAME_WEIGHTS = 1e-9
"""Relative distance of projections below which two sets of weights are the same."""


@dataclass(slots=True)
class _Snapshot:
    """The weights at one step.

    `values` are the projection and the squared distances to the initial and reference weights (NaN
    if not measured), and `length` is the length of the path up to here. If it `is_partial`, both
    are of the part of this rank, and `length` counts from where the path was known of all ranks.
    """

    index: int
    step: int
    loss: torch.Tensor | float | None
    values: torch.Tensor
    length: torch.Tensor
    is_partial: bool


class TrajectoryRecorder:
    """Records the path of the weights of `model`: call `record(step, loss)` every few steps.

    `parameters` chooses what is recorded, such as "*lora*" (all that require a gradient). Memory is
    `max_snapshots` times `projection_size` float64: beyond that, every other snapshot is dropped,
    and from then on every other record is kept. Distances between snapshots have the relative
    standard error `projection.error`, 3.1 % to 3.5 % for 512.

    The initial weights are those of now, or of `initial` (checkpoint, state dict or module).
    Distances to them and to `reference` are exact where a copy is kept: by default up to 67
    million parameters per rank; `exact` overrides that. The path begins at the initial weights.

    With DDP, rank 0 records and the others do nothing. With FSDP2 (`fully_shard`) and other
    DTensors, each rank projects its part without a collective; call `all_reduce()` on every rank
    before the result or the state is read. `all_reduce=True` does so at each record, which is a
    collective on the training path: every rank must record then.

    Records within a monitored run log `distance_to_initial`, `distance_to_reference` and
    `distance_travelled`, relative to the norm of the initial weights (sharded: with
    `all_reduce=True` only).

    Raises ValueError if no parameter is chosen or a parameter cannot be recorded.
    """

    def __init__(  # noqa: PLR0913 - each is explained above
        self,
        model: torch.nn.Module,
        *,
        parameters: Selection = None,
        projection_size: int = DEFAULT_SIZE,
        max_snapshots: int = 400,
        seed: int = 0,
        initial: Source = None,
        reference: Source = None,
        exact: bool | None = None,
        all_reduce: bool = False,
        process_group: Any = None,
    ) -> None:
        if max_snapshots < 2:
            raise ValueError(f"A trajectory needs at least 2 snapshots, not {max_snapshots}.")
        chosen = select_parameters(model, parameters)
        _check(chosen)
        self.selection = describe_selection(parameters)
        self.max_snapshots = max_snapshots
        self.projection = WeightProjection(
            {name: tuple(each.shape) for name, each in chosen.items()}, projection_size, seed
        )
        self.names = [*chosen]
        self._group = process_group
        self._rank, self._world_size = _rank_and_size(process_group)
        self._is_sharded = self._world_size > 1 and any(map(is_sharded, chosen.values()))
        self._reduces_records = all_reduce and self._is_sharded
        self._records_parts = self._is_sharded and not all_reduce
        self._parameters = _located(model, chosen)
        self._snapshots: list[_Snapshot] = []
        self._count, self._stride = 0, 1
        self._initial_copy: dict[str, torch.Tensor] | None = None
        self._reference_copy: dict[str, torch.Tensor] | None = None
        self._has_given_initial = initial is not None
        self._start_values: torch.Tensor
        self._initial_square: torch.Tensor
        self._is_start_partial = self._is_sharded
        self._reference: torch.Tensor | None = None
        self._base_length: torch.Tensor
        """Length of the whole path where partial lengths are 0."""
        self._base_values: torch.Tensor | None = None
        """Values there; None at the initial weights."""
        self._length: torch.Tensor
        self._last: torch.Tensor | None = None
        """Values of the last record, from which the path goes on; None if they are not known."""
        if not self.is_recording:
            return
        if exact is None:
            shards = self._world_size if self._is_sharded else 1
            exact = self.projection.parameter_count <= MAX_EXACT_ELEMENTS * shards
        self._start(initial, reference, exact)

    @property
    def is_recording(self) -> bool:
        """Whether this rank records: rank 0, or every rank of a sharded model."""
        return self._is_sharded or self._rank == 0

    @property
    def steps(self) -> list[int]:
        """The steps of the snapshots."""
        return [each.step for each in self._snapshots]

    def record(self, step: int, loss: Any = None) -> None:
        """Add the weights of now as those of `step`; `loss` is a number or a tensor of one element.

        A step at or before a former one means that the training went back: snapshots from there on
        are removed. Waits for no device, and runs no collective unless `all_reduce` was given.
        Raises ValueError if a parameter changed its shape or the loss is no single number.
        """
        if not self.is_recording:
            return
        import torch  # noqa: PLC0415 - the trainer has imported it

        with torch.no_grad():
            kept_loss = _single_number(loss)
            values = self._measure(self._model_parts())
            if values.device != self._start_values.device:
                self._move(values.device)
            self._go_back_before(step)
            if self._reduces_records:
                self._reduce_start()
                torch.distributed.all_reduce(values, group=self._group)
            if self._last is not None:
                self._length = self._length + self._gap(values, self._last)
            self._last, is_partial = values, self._records_parts
            snapshot = _Snapshot(
                self._count, int(step), kept_loss, values, self._length, is_partial
            )
            self._append(snapshot)
            if not is_partial and self._rank == 0 and current_session() is not None:
                api.log(self._signals(snapshot), step)

    def set_loss(self, step: int, loss: Any) -> None:
        """Give the newest snapshot its loss, if it is of this step: trainers log it later."""
        if self._snapshots and self._snapshots[-1].step == step:
            self._snapshots[-1].loss = _single_number(loss)

    def all_reduce(self) -> None:
        """Add up what the ranks recorded of a sharded model. Call it on every rank: a collective.

        Afterwards every rank has the result and the state. The distance travelled is a lower bound
        then, up to the error of the projection: the root of the sum of the squared lengths of the
        paths of the ranks' parts, which is exact where the parts move in proportion.
        """
        if not self._is_sharded:
            return
        import torch  # noqa: PLC0415

        with torch.no_grad():
            self._reduce_start()
            partial = [each for each in self._snapshots if each.is_partial]
            if partial:
                sums = torch.stack(
                    [torch.cat([each.values, each.length.square().reshape(1)]) for each in partial]
                )
                torch.distributed.all_reduce(sums, group=self._group)
                self._complete(partial, sums)

    def result(self, *, name: str = "") -> Trajectory:
        """The recorded path as a trajectory of one run, whose plane is that of its projection.

        Without runs on ranks that do not record. Raises ValueError for a sharded model unless
        `all_reduce()` was called.
        """
        from sentinel.insight.trajectory.trajectory import Trajectory, recorded_trajectory  # noqa: PLC0415

        if not self.is_recording:
            note = [f"Rank 0 records the weights: rank {self._rank} has none."]
            return Trajectory(
                name=name,
                runs=[],
                explained=[0.0, 0.0],
                selection=self.selection,
                parameter_count=self.projection.parameter_count,
                note=note,
            )
        state = self.state_dict()
        return recorded_trajectory(state, name)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to continue: numbers, strings, lists and CPU tensors.

        Raises ValueError for a sharded model unless `all_reduce()` was called.
        """
        import torch  # noqa: PLC0415

        if not self.is_recording:
            return {"version": _VERSION, "digest": self.projection.digest, "steps": []}
        if any(each.is_partial for each in self._snapshots) or self._is_start_partial:
            raise ValueError(
                "The model is sharded, and this rank has recorded its part only: call "
                "recorder.all_reduce() on every rank first."
            )
        size = self.projection.size
        values = [each.values for each in self._snapshots]
        rows = torch.stack([self._start_values, *values]).cpu()
        lengths = [each.length for each in self._snapshots]
        travelled = torch.stack(lengths).cpu() if lengths else torch.zeros(0, dtype=rows.dtype)
        return {
            "version": _VERSION,
            "digest": self.projection.digest,
            "size": size,
            "seed": self.projection.seed,
            "error": self.projection.error,
            "selection": self.selection,
            "parameter_count": self.projection.parameter_count,
            "names": self.names,
            "count": self._count,
            "stride": self._stride,
            "indexes": [each.index for each in self._snapshots],
            "steps": self.steps,
            "losses": [None if each.loss is None else float(each.loss) for each in self._snapshots],
            "travelled": travelled,
            "values": rows[1:],
            "initial": rows[0],
            "initial_square": self._initial_square.cpu(),
            "reference": None if self._reference is None else self._reference.cpu(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the path that `state_dict` returned, after a resume.

        The initial weights are those of the state. Where they are not the weights that this
        recorder was made with, nor given as `initial`, distances to them are estimated from now on.
        Raises ValueError if the state is of other parameters, or of another size or seed.
        """
        import torch  # noqa: PLC0415

        if state.get("version") != _VERSION or state.get("digest") != self.projection.digest:
            raise ValueError(
                "The saved trajectory is of other parameters, or of another projection size or "
                "seed: make the recorder with the arguments of the saved one."
            )
        if not self.is_recording or not state["steps"]:
            return
        device = self._start_values.device
        kind = self._start_values.dtype

        def on_device(tensor: Any) -> torch.Tensor:
            return torch.as_tensor(tensor).to(device, kind)

        initial = on_device(state["initial"])
        if not self._has_given_initial:
            length = self._gap(initial, torch.zeros_like(initial))
            is_same = not self._is_start_partial and bool(
                self._gap(initial, self._start_values) <= _SAME_WEIGHTS * length
            )
            self._initial_copy = self._initial_copy if is_same else None
            self._start_values = initial
            self._initial_square = on_device(state["initial_square"])
            self._is_start_partial = False
        if self._reference is None and state["reference"] is not None:
            self._reference = on_device(state["reference"])
        values, travelled = on_device(state["values"]), on_device(state["travelled"])
        self._snapshots = [
            _Snapshot(int(index), int(step), loss, row, length, is_partial=False)
            for index, step, loss, row, length in zip(
                state["indexes"], state["steps"], state["losses"], values, travelled, strict=True
            )
        ]
        self._count, self._stride = int(state["count"]), int(state["stride"])
        self._continue_at(values[-1], travelled[-1], is_partial=False)

    def _start(self, initial: Source, reference: Source, exact: bool) -> None:
        """Measure the initial and the reference weights, and keep copies of them if `exact`."""
        import torch  # noqa: PLC0415

        with torch.no_grad():
            parts = self._model_parts() if initial is None else self._read_parts(initial)
            self._start_values, self._initial_square, self._initial_copy = self._measure_start(
                parts, exact
            )
            self._base_length = self._start_values.new_zeros(())
            self._continue_at(
                self._start_values, self._base_length, is_partial=self._is_start_partial
            )
            if reference is not None:
                values, _, self._reference_copy = self._measure_start(
                    self._read_parts(reference), exact
                )
                self._reference = values[: self.projection.size]

    def _measure_start(
        self, parts: Iterable[tuple[str, LocalPart]], exact: bool
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor] | None]:
        """Values and squared norm of weights, and a copy of this rank's part if `exact`."""
        copies: dict[str, torch.Tensor] = {}
        squares = []

        def passed() -> Iterator[tuple[str, LocalPart]]:
            for name, part in parts:
                if part.counts:
                    squares.append(_squared_norm(part.tensor))
                    if exact:
                        copies[name] = part.tensor.detach().clone()
                yield name, part

        values = self._measure(passed())
        return values, _total(squares, values.device), copies if exact else None

    def _measure(self, parts: Iterable[tuple[str, LocalPart]]) -> torch.Tensor:
        """Projection of weights and their squared distances to the kept copies."""
        import torch  # noqa: PLC0415

        copies = (self._initial_copy, self._reference_copy)
        squares: tuple[list[torch.Tensor], ...] = ([], [])

        def pieces() -> Iterator[tuple[str, int, torch.Tensor]]:
            for name, part in parts:
                if not part.counts:
                    continue
                for copy, found in zip(copies, squares, strict=True):
                    if copy is not None:
                        copy[name] = copy[name].to(part.tensor.device)
                        found.append(_squared_norm(part.tensor, copy[name]))
                yield from local_pieces(name, part)

        projected = self.projection.project(pieces())
        device, kind = projected.device, projected.dtype
        totals = [
            torch.full((1,), nan, device=device, dtype=kind)
            if copy is None
            else _total(found, device).to(kind).reshape(1)
            for copy, found in zip(copies, squares, strict=True)
        ]
        return torch.cat([projected, *totals])

    def _model_parts(self) -> Iterator[tuple[str, LocalPart]]:
        for name in self.names:
            module, attribute, parameter, shape = self._parameters[name]
            # FSDP puts other tensors into the module while it is gathered.
            tensor = parameter if is_sharded(parameter) else getattr(module, attribute, parameter)
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name} was {list(shape)} and is {list(tensor.shape)}: make a new recorder."
                )
            part = local_part(tensor.detach())
            if self._is_sharded and not is_sharded(tensor):
                part = part._replace(counts=self._rank == 0)
            yield name, part

    def _read_parts(self, source: Source) -> Iterator[tuple[str, LocalPart]]:
        """The parts of saved weights that this rank holds of the model."""
        weights = open_weights(source)
        for name, part in self._model_parts():
            if weights.shape(name) != part.shape:
                raise ValueError(
                    f"{name} is {list(part.shape)} in the model and {list(weights.shape(name))} in "
                    f"{weights.name}: give weights of the same model."
                )
            yield name, part._replace(tensor=_read_part(weights, name, part))

    def _move(self, device: torch.device) -> None:
        """Follow a model that was moved to another device."""

        def moved(tensor: torch.Tensor | None) -> Any:
            return None if tensor is None else tensor.to(device, exact_type(device))

        self._start_values, self._initial_square = map(
            moved, (self._start_values, self._initial_square)
        )
        self._reference, self._last = moved(self._reference), moved(self._last)
        self._base_length, self._length = moved(self._base_length), moved(self._length)
        self._base_values = moved(self._base_values)
        for each in self._snapshots:
            each.values, each.length = moved(each.values), moved(each.length)

    def _go_back_before(self, step: int) -> None:
        """Remove the snapshots from this step on."""
        if not self._snapshots or self._snapshots[-1].step < step:
            return
        while self._snapshots and self._snapshots[-1].step >= step:
            self._snapshots.pop()
        if self._snapshots:
            last = self._snapshots[-1]
            self._continue_at(last.values, last.length, is_partial=last.is_partial)
        else:
            nothing = self._length.new_zeros(())
            self._continue_at(self._start_values, nothing, is_partial=self._is_start_partial)

    def _continue_at(self, values: torch.Tensor, length: torch.Tensor, *, is_partial: bool) -> None:
        """Let the path go on from these values, up to which it has this length."""
        if is_partial == self._records_parts:
            self._last, self._length = values, length
        else:
            # The part of this rank is not known.
            self._last, self._length = None, length.new_zeros(())
            self._base_values, self._base_length = values, length

    def _append(self, snapshot: _Snapshot) -> None:
        if self._snapshots and self._snapshots[-1].index % self._stride:
            # It was only the end of the path.
            self._snapshots.pop()
        self._snapshots.append(snapshot)
        self._count += 1
        if len(self._snapshots) > self.max_snapshots:
            self._stride *= 2
            kept = [each for each in self._snapshots[:-1] if not each.index % self._stride]
            self._snapshots = [*kept, snapshot]

    def _gap(self, values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The distance between two projections."""
        size = self.projection.size
        gap: torch.Tensor = (values[:size] - others[:size]).square().sum().sqrt()
        return gap

    def _reduce_start(self) -> None:
        """Add up the parts of the ranks of the initial and reference weights, once."""
        if not self._is_start_partial:
            return
        import torch  # noqa: PLC0415

        size = self.projection.size
        parts = [self._start_values, self._initial_square.reshape(1)]
        if self._reference is not None:
            parts.append(self._reference)
        sums = torch.cat([part.to(self._start_values.dtype) for part in parts])
        torch.distributed.all_reduce(sums, group=self._group)
        self._start_values, self._initial_square = sums[: size + 2], sums[size + 2]
        if self._reference is not None:
            self._reference = sums[size + 3 :]
        self._is_start_partial = False
        if self._reduces_records and not self._snapshots:
            self._continue_at(self._start_values, self._base_length, is_partial=False)

    def _complete(self, partial: list[_Snapshot], sums: torch.Tensor) -> None:
        """Give the newest snapshots the sums over the ranks, and the length of the path."""
        import torch  # noqa: PLC0415

        base = self._start_values if self._base_values is None else self._base_values
        last, length = self._start_values, self._base_length.new_zeros(())
        for each in self._snapshots[: len(self._snapshots) - len(partial)]:
            last, length = each.values, each.length
        for each, row in zip(partial, sums, strict=True):
            each.values, each.is_partial = row[:-1], False
            from_base = torch.maximum(row[-1].sqrt(), self._gap(each.values, base))
            by_steps = self._base_length + from_base
            each.length = torch.maximum(by_steps, length + self._gap(each.values, last))
            last, length = each.values, each.length

    def _signals(self, snapshot: _Snapshot) -> dict[str, torch.Tensor]:
        """Distances relative to the norm of the initial weights, still on the device."""
        import torch  # noqa: PLC0415

        norm = self._initial_square.sqrt()
        norm = torch.where(norm > 0, norm, torch.ones_like(norm))
        distances = {"distance_travelled": snapshot.length}
        for name, copy, start, position in (
            ("distance_to_initial", self._initial_copy, self._start_values, _INITIAL),
            ("distance_to_reference", self._reference_copy, self._reference, _REFERENCE),
        ):
            if copy is not None:
                distances[name] = snapshot.values[position].sqrt()
            elif start is not None:
                distances[name] = self._gap(snapshot.values, start)
        return {name: each / norm for name, each in distances.items()}


def _check(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError for a parameter whose values this rank does not have."""
    for name, parameter in parameters.items():
        if hasattr(parameter, "ds_tensor"):
            raise ValueError(
                f"{name} is partitioned by DeepSpeed ZeRO-3, which gathers it while it is used: "
                "take the trajectory from checkpoints, with sentinel.insight.trajectory(folder)."
            )
        if getattr(parameter, "_fsdp_flattened", False) or hasattr(parameter, "_local_shard"):
            raise ValueError(
                f"{name} is flattened by FullyShardedDataParallel: use fully_shard (FSDP2), or "
                "take the trajectory from checkpoints, with sentinel.insight.trajectory(folder)."
            )
        if parameter.is_meta:
            raise ValueError(f"{name} is on the meta device: give the model its weights first.")
        if not parameter.is_floating_point():
            raise ValueError(
                f"{name} has {parameter.dtype} values, which no distance is defined for: choose "
                "others with `parameters`."
            )


def _located(
    model: torch.nn.Module, chosen: Mapping[str, torch.Tensor]
) -> dict[str, tuple[Any, str, torch.Tensor, tuple[int, ...]]]:
    """Module and attribute of each parameter, which may be replaced there, and its shape."""
    places: dict[int, tuple[Any, str]] = {}
    for module in model.modules():
        for attribute, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), (module, attribute))
    return {
        name: (*places[id(parameter)], parameter, tuple(parameter.shape))
        for name, parameter in chosen.items()
    }


def _rank_and_size(group: Any) -> tuple[int, int]:
    import torch.distributed as dist  # noqa: PLC0415

    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def _single_number(loss: Any) -> Any:
    """The loss without its graph, as it is now."""
    if loss is None or isinstance(loss, int | float):
        return loss
    tensor = loss.to_local() if is_sharded(loss) else loss
    if not hasattr(tensor, "detach") or tensor.numel() != 1:
        raise ValueError("`loss` must be a number or a tensor of one element.")
    return tensor.detach().clone().reshape(())


def _squared_norm(tensor: torch.Tensor, origin: torch.Tensor | None = None) -> torch.Tensor:
    """The squared norm of a tensor, or of its difference to `origin`, in pieces."""
    import torch  # noqa: PLC0415

    flat = tensor.detach().reshape(-1)
    others = None if origin is None else origin.reshape(-1)
    sums_type = exact_type(tensor.device)
    # The difference of two close float32 numbers is exact in float32.
    wide = torch.promote_types(tensor.dtype, torch.float32)
    total = torch.zeros((), dtype=sums_type, device=tensor.device)
    count = _CPU_CHUNK if tensor.is_cpu else _DEVICE_CHUNK
    for start in range(0, len(flat), count):
        piece = flat[start : start + count].to(wide)
        if others is not None:
            piece = piece - others[start : start + count].to(wide)
        total += torch.linalg.vector_norm(piece, dtype=sums_type).square()
    return total


def _total(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    import torch  # noqa: PLC0415

    total = torch.zeros((), dtype=exact_type(device), device=device)
    for part in parts:
        total = total + part.to(device, non_blocking=True)
    return total


def _read_part(weights: SavedWeights, name: str, part: LocalPart) -> torch.Tensor:
    """The values of saved weights at the place of a part, with its type and device."""
    if not part.tensor.numel():
        return part.tensor.detach()
    if not part.tensor.ndim:
        return weights.read(name, 0, 1).reshape(()).to(part.tensor.device)
    values = weights.read(name, part.starts[0], part.starts[0] + len(part.tensor))
    inner = zip(part.starts[1:], part.tensor.shape[1:], strict=True)
    columns = tuple(slice(start, start + count) for start, count in inner)
    return values[(slice(None), *columns)].to(part.tensor.device)
