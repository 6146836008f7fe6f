"""Stacks of ranks: where each rank is while no step completes, without locals and arguments.

A rank waits for others if it is in a collective or, with several ranks, in the backward pass, where
data-parallel ranks exchange gradients. A rank that does not wait keeps the others waiting.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from sentinel.model.number_ranges import ranges_text

MAX_FRAMES = 48
"""Frames of a stack that are stored, the innermost."""
MAX_TEXT_BYTES = 32 << 10
"""Size of the stacks of a node as text, above which frames are left out."""
SHOWN_FRAMES = 8
"""Frames of a stack in the evidence of a finding."""

_OWN_PART = "/sentinel/client/"
"""Part of the paths of sentinel's frames, which call the user's function."""
_LIBRARY_PARTS = ("/site-packages/", "/dist-packages/", "/lib/python3", "<", _OWN_PART)
"""Parts of the paths of frames that are not the user's."""
_WRAPPER_FILES = (
    "torch/_dynamo/decorators.py", "torch/_dynamo/eval_frame.py", "torch/_dynamo/external_utils.py",
    "torch/distributed/c10d_logger.py", "torch/nn/modules/module.py", "torch/utils/_contextlib.py",
)  # fmt: skip
"""Files of functions that only call another one."""
_COLLECTIVE_FILES = ("torch/distributed/distributed_c10d.py", "deepspeed/comm/torch.py")
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
_BACKWARD_FUNCTION = "_engine_run_backward"
_LOADER_FILE = "torch/utils/data/dataloader.py"
_COMPILER_FILE = "torch/_dynamo/convert_frame.py"
_PLURAL_VERBS = {"is": "are", "waits": "wait", "does": "do", "computes": "compute"}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: function, path of the file, line."""

    function: str
    file: str
    line: int

    @property
    def is_of_library(self) -> bool:
        """Whether it is of Python or an installed package, not of the user's program."""
        return any(part in self.file for part in _LIBRARY_PARTS)

    @property
    def is_wrapper(self) -> bool:
        """Whether it only calls another function, so that a reader learns nothing from it."""
        return _OWN_PART in self.file or self.file.endswith(_WRAPPER_FILES)

    def __str__(self) -> str:
        return f"{self.function} ({PurePath(self.file).name}:{self.line})"


@dataclass(frozen=True, slots=True)
class RankStack:
    """The stack of the training thread of ranks that are at the same place, innermost first.

    `state` describes what the kernel knows of a process that does not run Python: "is suspended by
    SIGSTOP". Without `frames` nothing else is known.
    """

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...] = ()
    state: str = ""

    @property
    def collective(self) -> str:
        """The collective that it is in; empty if it is in none."""
        return next((f.function for f in self.frames if f.file.endswith(_COLLECTIVE_FILES)), "")

    @property
    def is_in_backward(self) -> bool:
        """Whether it is in the backward pass, and in no Python function of it."""
        return bool(self.frames) and self.frames[0].function == _BACKWARD_FUNCTION

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for other ranks, if there are any."""
        return bool(self.collective) or self.is_in_backward

    @property
    def is_compiling(self) -> bool:
        """Whether torch.compile compiles."""
        return any(frame.file.endswith(_COMPILER_FILE) for frame in self.frames)

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's program; without one, the innermost of all."""
        own = (frame for frame in self.frames if not frame.is_of_library)
        others = (frame for frame in self.frames if not frame.is_wrapper)
        return next(own, None) or next(others, self.frames[0] if self.frames else None)

    def describe(self, *, is_alone: bool = False) -> str:
        """The ranks and where they are, as a clause; `is_alone` is whether there is one rank."""
        is_one = len(self.ranks) == 1
        subject = f"rank{'' if is_one else 's'} {ranges_text(self.ranks)}"
        subject = "the process" if is_alone else subject
        verb, waits = ("is", "waits") if is_one else ("are", "wait")
        place = self.place
        state = self.state if is_one else _plural(self.state)
        if place is None:
            return f"{subject} {state}"
        at = f"({PurePath(place.file).name}:{place.line})"
        if self.collective:
            return f"{subject} {waits} in {self.collective} {at}"
        if self.is_in_backward:
            return f"{subject} {verb if is_alone else waits} in the backward pass {at}"
        if any(frame.file.endswith(_LOADER_FILE) for frame in self.frames):
            return f"{subject} {waits} for the next batch of a DataLoader {at}"
        return f"{subject} {state or verb} in {place}"

    def format_frames(self) -> str:
        """The innermost frames in one line, each with its caller behind it, without wrappers."""
        frames = [each for each in self.frames if not each.is_wrapper] or self.frames
        shown = " < ".join(map(str, frames[:SHOWN_FRAMES]))
        return f"{shown} < …" if len(frames) > SHOWN_FRAMES else shown or self.state


def find_odd_ranks(stacks: Sequence[RankStack], ranks_behind: Collection[int]) -> tuple[int, ...]:
    """The ranks that the others wait for, as far as stacks show; none if all are alike.

    They are the ranks that do not wait while others do. If all wait, a rank has left out a
    collective, or called one too many: the ranks at another place than most, or, without a
    majority, those that wait for a single rank, or else those that are not among `ranks_behind`. If
    none waits, as while a device is busy, they are the ranks at another place than most.
    """
    working = [stack for stack in stacks if not stack.is_waiting]
    if working and len(working) < len(stacks):
        return _ranks(working)
    by_place: dict[tuple[object, ...], list[RankStack]] = {}
    for stack in stacks:
        by_place.setdefault((stack.place, stack.collective, stack.state), []).append(stack)
    if len(by_place) < 2:
        return ()
    count = len(_ranks(stacks))
    for group in by_place.values():
        if 2 * len(_ranks(group)) > count:
            return tuple(sorted(set(_ranks(stacks)) - set(_ranks(group))))
    with_peer = [stack for stack in stacks if stack.collective in _POINT_TO_POINT]
    if with_peer and len(with_peer) < len(stacks):
        return _ranks(with_peer)
    ahead = tuple(rank for rank in _ranks(stacks) if rank not in ranks_behind)
    return () if working or len(ahead) == count else ahead


def group_stacks(stacks: Iterable[RankStack]) -> list[RankStack]:
    """Stacks with the ranks of equal ones together, in the order of ranks."""
    ranks_by_stack: dict[tuple[tuple[Frame, ...], str], list[int]] = {}
    for stack in stacks:
        ranks_by_stack.setdefault((stack.frames, stack.state), []).extend(stack.ranks)
    groups = [
        RankStack(tuple(sorted(ranks)), *key) for key, ranks in ranks_by_stack.items() if ranks
    ]
    return sorted(groups, key=lambda group: group.ranks)


def serialize_stacks(stacks: Sequence[RankStack]) -> str:
    """The stacks as JSON of at most `MAX_TEXT_BYTES`; empty without any."""
    for frame_count in (MAX_FRAMES, 12, 3, 0):
        rows = [
            [
                stack.ranks,
                [(f.function, f.file, f.line) for f in stack.frames[:frame_count]],
                stack.state,
            ]
            for stack in stacks
        ]
        text = json.dumps(rows, separators=(",", ":")) if rows else ""
        if len(text) <= MAX_TEXT_BYTES:
            return text
    return ""


def parse_stacks(text: str) -> list[RankStack]:
    """What `serialize_stacks` wrote; nothing if the text is damaged."""
    try:
        return [
            RankStack(
                tuple(int(rank) for rank in ranks),
                tuple(Frame(str(function), str(file), int(line)) for function, file, line in rows),
                str(state),
            )
            for ranks, rows, state in json.loads(text or "[]")
        ]
    except (ValueError, TypeError):
        return []


def _plural(state: str) -> str:
    verb, _, rest = state.partition(" ")
    return f"{_PLURAL_VERBS.get(verb, verb)} {rest}"


def _ranks(stacks: Iterable[RankStack]) -> tuple[int, ...]:
    return tuple(sorted(rank for stack in stacks for rank in stack.ranks))
