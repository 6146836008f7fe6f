"""The rows of each step: the indices of the data set by which a sampler drew its batches.

Indices are noted as a DataLoader draws them, and belong to the batch that the loop receives: with
workers, and in a loader of Accelerate, later batches are drawn before it. Nothing of a batch itself
is read. Where the loss is a negative log-likelihood, the loss of each row is measured too, as often
as its cost allows, and at a jump that is known without waiting for a device.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from math import isfinite
from operator import index as as_index
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from sentinel.client.capture.activity import ActivityPublisher
from sentinel.client.capture.device_copy import DeviceCopies
from sentinel.client.capture.scalars import ASYNC_DEVICE_TYPES
from sentinel.client.control.command_executor import CommandExecutor
from sentinel.client.step_clock import StepClock
from sentinel.transport.command_page import ROWS_OFF_WORD
from sentinel.transport.row_page import MAX_ROWS, UNKNOWN_LOSS, RowPage, row_page_path

MAX_BATCHES = 1024
"""Batches of a step that are noted, its last ones."""
MAX_TRAINING_SAMPLERS = 64
MAX_LOSS_SHARE = 0.0005
"""Share of the time that the losses of rows take at most, but for those of a jump."""
JUMP_FACTOR = 1.5
"""Factor on its usual size from which a loss on the CPU is one of a jump."""
LOSS_NODES = 8
"""Operations from the root of a loss, and from its logits, that are looked at."""
ITERABLE, NO_INTEGERS, OTHER_THREAD = 1, 2, 3
"""Indices in `ROW_GAPS`."""
ITERABLE_DATASET = 1
"""The kind of data set of an iterator of PyTorch."""

_DRAWN = "_sentinel_drawn"
"""Attribute of an iterator: the rows of its batches that were drawn, by their number."""


class Batch(NamedTuple):
    """A batch that was fetched: its rows as int64, how many there are, or why there are none."""

    sampler: Any
    rows: bytes = b""
    size: int = 0
    gap: int = 0


class DrawnRows:
    """Writes the rows of each step of this rank into the row page beside its ring.

    Methods do not raise: after an error, which `count_error` gets, no further rows are noted.
    """

    def __init__(
        self,
        ring: Path,
        activity: ActivityPublisher,
        commands: CommandExecutor,
        device_copies: DeviceCopies,
        count_error: Callable[[Exception], None],
    ) -> None:
        self._path, self._activity, self._commands = row_page_path(ring), activity, commands
        self._device_copies, self._count_error = device_copies, count_error
        self._page: RowPage | None = None
        self.is_off = False
        self._batches: deque[Batch] = deque(maxlen=MAX_BATCHES)
        self._uncertain: deque[Batch] = deque(maxlen=MAX_BATCHES)
        """Batches since an evaluation began, which the next backward pass may end."""
        self._ahead: deque[Batch] | None = None
        """Batches that a loader fetches before the loop receives them."""
        self._samplers: set[int] = set()
        """Ids of the samplers of training steps."""
        self._step_gap = self._gap = 0
        """Why the current step has no rows, and what is published of it."""
        self._packers: dict[int, Callable[..., bytes]] = {}
        """How a list of so many integers becomes int64."""
        self._passes = 0
        self._losses: list[tuple[int, Any]] = []
        """Number of a backward pass of the step, and the losses of its rows on their device."""
        self._measures_losses = False
        """Whether the losses of rows are measured in all passes of the step."""
        self._usual_loss, self._losses_due_at = 0.0, 0.0
        self._is_copying = False

    def on_draw(self, iterator: Any, index: Any) -> None:
        """An iterator of a DataLoader drew the index, or the indices, of a batch."""
        if self.is_off:
            return
        try:
            number = getattr(iterator, "_send_idx", 0)
            drawn = getattr(iterator, _DRAWN, None)
            if drawn is None:
                drawn = {}
                setattr(iterator, _DRAWN, drawn)
            elif not number:
                # Another pass over the data begins, or the iterator has no workers.
                drawn.clear()
            packer = self._packers.get(len(index)) if type(index) is list else None
            try:
                rows = self._pack(index) if packer is None else (packer(*index), len(index))
            except struct.error:
                rows = self._pack(index)
            drawn[number] = rows
        except Exception as error:
            self.disable(error)

    def on_batch(self, iterator: Any, is_training_thread: bool) -> None:
        """An iterator gives a batch."""
        if self.is_off:
            return
        try:
            rows, size = _pop_drawn(iterator)
            if not is_training_thread:
                self._step_gap = OTHER_THREAD
                return
            sampler = iterator._index_sampler  # noqa: SLF001 - there is no public name
            if iterator._dataset_kind == ITERABLE_DATASET:  # noqa: SLF001
                batch = Batch(sampler, gap=ITERABLE)
            else:
                batch = Batch(sampler, rows, size, NO_INTEGERS if size and not rows else 0)
            if self._ahead is None:
                self.add(batch)
            else:
                self._ahead.append(batch)
        except Exception as error:
            self.disable(error)

    @contextmanager
    def fetching_ahead(self, batches: deque[Batch]) -> Iterator[None]:
        """Append what is fetched to these batches; the loop receives them later."""
        before, self._ahead = self._ahead, batches
        try:
            yield
        finally:
            self._ahead = before

    def add(self, batch: Batch) -> None:
        """The loop receives a batch."""
        if not sys.modules["torch"].is_grad_enabled():
            return
        if self._activity.current and id(batch.sampler) not in self._samplers:
            self._uncertain.append(batch)
        else:
            self._uncertain.clear()
            self._step_gap = batch.gap
            self._batches.append(batch)

    def before_backward(self, roots: Sequence[Any]) -> None:
        """A backward pass begins: the first one of a step is for its first batch, and so on.

        `roots` are those of negative log-likelihoods, or none.
        """
        if self._uncertain and not self._batches:
            # The last ones are of the training: its batch is fetched before its pass.
            sampler = self._uncertain[-1].sampler
            last = takewhile(lambda each: each.sampler is sampler, reversed(self._uncertain))
            self._batches.extend(reversed([*last]))
            self._step_gap = self._batches[-1].gap
            self._uncertain.clear()
        number, self._passes = self._passes, self._passes + 1
        if len(roots) != 1 or self.is_off or number >= len(self._batches):
            return
        batch = self._batches[number]
        # Of two loaders, it is not known which has the batch; a DTensor is read by a collective.
        is_of_others = batch.sampler is not self._batches[-1].sampler
        if is_of_others or type(roots[0]) is not sys.modules["torch"].Tensor:
            return
        began = perf_counter()
        if not number:
            self._measures_losses = began >= self._losses_due_at
        try:
            if not (self._is_jump(roots[0]) or self._measures_losses):
                return
            losses = losses_by_row(roots[0], batch.size)
        except (RuntimeError, AttributeError, LookupError, TypeError):
            # The graph is unlike the usual ones.
            losses = None
        if losses is not None:
            self._losses.append((number, losses))
        cost = perf_counter() - began
        self._losses_due_at = max(self._losses_due_at, began) + cost / MAX_LOSS_SHARE

    def end_step(self, clock: StepClock) -> None:
        """The step that the clock counted last is complete."""
        try:
            if self._is_copying:
                self._device_copies.deliver_vectors()
            if (self._batches or self._step_gap) and not self.is_off:
                self._write(clock)
        except OSError:
            # There is no space for the page, or a file in its place.
            self.close()
        except Exception as error:
            self.disable(error)
        if self._losses:
            self._losses = []
        self._batches.clear()
        self._uncertain.clear()
        self._passes = self._step_gap = 0

    def disable(self, error: Exception) -> None:
        """Note no further rows, because of that error."""
        if not self.is_off:
            self.close()
            self._count_error(error)

    def close(self) -> None:
        """Release the page, also in a forked child."""
        self.is_off = True
        if self._page is not None:
            self._page.close()
            self._page = None

    def _write(self, clock: StepClock) -> None:
        batches, page = self._batches, self._page
        if self._commands.words[ROWS_OFF_WORD]:
            self.close()
            self._path.unlink(missing_ok=True)
            return
        rows, size = batches[0][1:3] if len(batches) == 1 else _join(batches)
        if page is None:
            page = self._page = RowPage(self._path, size)
        gap = 0 if rows else self._step_gap
        if gap != self._gap:
            self._gap = gap
            page.set_gap(gap)
        if rows:
            page.write(clock.step_index, clock.step, rows, size)
            if self._losses:
                self._copy_losses(page, clock.step_index)
        for batch in batches:
            if id(batch.sampler) not in self._samplers:
                self._add_sampler(id(batch.sampler))

    def _add_sampler(self, sampler: int) -> None:
        if len(self._samplers) >= MAX_TRAINING_SAMPLERS:
            self._samplers.clear()
        self._samplers.add(sampler)

    def _pack(self, index: Any) -> tuple[bytes, int]:
        """The first rows of a batch as int64, empty if they are no integers; and their number."""
        kind = type(index)
        if kind is not list and kind is not tuple:
            if _is_on_device(index):
                return b"", index.numel()
            try:
                index = index.tolist() if hasattr(index, "tolist") else as_index(index)
            except TypeError:
                return b"", 1
            index = index if type(index) is list else [index]
        count = len(index)
        if not count or _is_on_device(index[0]):
            return b"", count
        try:
            rows = struct.pack(f"{min(count, MAX_ROWS)}q", *index[:MAX_ROWS])
        except struct.error:
            return b"", count
        if count <= MAX_ROWS and type(index[0]) is int:
            self._packers[count] = struct.Struct(f"{count}q").pack
        return rows, count

    def _is_jump(self, root: Any) -> bool:
        """Whether the loss is on the CPU and far above its usual size, which is updated."""
        if not root.is_cpu:
            return False
        size, usual = abs(root.item()), self._usual_loss
        if not isfinite(size):
            return True
        self._usual_loss = size if not usual else usual + 0.1 * (min(size, 2.0 * usual) - usual)
        return bool(0.0 < JUMP_FACTOR * usual < size)

    def _copy_losses(self, page: RowPage, step_index: int) -> None:
        """Write the losses of the rows of a step, now or as soon as they are on the host."""
        torch = sys.modules["torch"]
        device = self._losses[0][1].device
        if device.type not in ASYNC_DEVICE_TYPES:
            numbers = {number: each.tolist() for number, each in self._losses}
            page.write_losses(step_index, _fill(numbers, self._batches))
            return
        counts, batches = {number: len(each) for number, each in self._losses}, [*self._batches]

        def deliver(numbers: list[float]) -> None:
            self._is_copying, start, arrived = False, 0, {}
            for number, count in counts.items():
                arrived[number] = numbers[start : start + count]
                start += count
            if self._page is not None:
                self._page.write_losses(step_index, _fill(arrived, batches))

        vector = torch.cat([each for _, each in self._losses])
        # Few sizes, each of which has a buffer.
        spare = (1 << (len(vector) - 1).bit_length()) - len(vector)
        vector = torch.nn.functional.pad(vector, (0, spare))
        self._is_copying = self._device_copies.start_vector(vector, deliver) or self._is_copying


def _is_on_device(index: Any) -> bool:
    """Whether to read an index waits for a device."""
    return not getattr(index, "is_cpu", True)


def losses_by_row(root: Any, rows: int) -> Any:
    """The mean negative log-likelihood of each row, as a detached float32 vector; None if unknown.

    It is read from the saved tensors of the graph of the loss, reduced or not. The loss of tokens
    is only known by row if the logits were a tensor of (rows, tokens, classes).
    """
    node = root.grad_fn
    for _ in range(LOSS_NODES):
        if node is None or "NllLoss" in type(node).__name__:
            break
        inputs = node.next_functions
        node = inputs[0][0] if inputs else None
    if not rows or node is None or "NllLoss" not in type(node).__name__:
        return None
    scores, target = node._saved_self.detach(), node._saved_target  # noqa: SLF001 - no other way
    if scores.dim() < 2 or (len(target) != rows and _first_size(node) != rows):
        return None
    is_counted = target != _signed(node._saved_ignore_index)  # noqa: SLF001
    # An ignored target may be no class: on a GPU, reading beyond them would end the training.
    chosen = scores.gather(1, target.where(is_counted, 0).unsqueeze(1)).squeeze(1)
    losses = chosen.neg().where(is_counted, 0.0).reshape(rows, -1).float()
    return losses.sum(1) / is_counted.reshape(rows, -1).sum(1).clamp(min=1)


def _first_size(node: Any) -> int:
    """The first size of the logits before they were flattened; 0 if they were not."""
    for _ in range(LOSS_NODES):
        inputs = node.next_functions
        node = inputs[0][0] if inputs else None
        if node is None:
            return 0
        if "View" in type(node).__name__:
            return int(node._saved_self_sym_sizes[0])  # noqa: SLF001
    return 0


def _signed(number: int) -> int:
    """An int64 that PyTorch gives as an unsigned one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _fill(measured: Mapping[int, Sequence[float]], batches: Iterable[Batch]) -> array[float]:
    """The losses of the rows of all batches, by the number of the batch where they are measured."""
    losses = array("f")
    for number, batch in enumerate(batches):
        stored = len(batch.rows) // 8
        known = measured.get(number)
        losses.extend([UNKNOWN_LOSS] * stored if known is None else known[:stored])
    return losses


def _join(batches: Iterable[Batch]) -> tuple[bytes, int]:
    """The rows of several batches, and how many there are."""
    return b"".join([each.rows for each in batches]), sum([each.size for each in batches])


def _pop_drawn(iterator: Any) -> tuple[bytes, int]:
    """The rows of the batch that the iterator gave last, and their number."""
    drawn = getattr(iterator, _DRAWN, None)
    if not drawn:
        return b"", 0
    number = getattr(iterator, "_rcvd_idx", 1) - 1
    if not getattr(iterator, "_in_order", True):
        tasks = iterator._task_info  # noqa: SLF001 - there is no public name
        number = next((each for each in drawn if each not in tasks), -1)
    rows: tuple[bytes, int] = drawn.pop(number, (b"", 0))
    return rows
