"""The process group of the training, read from `torch.distributed` if the trainer has loaded it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def process_group() -> Any | None:
    """The module `torch.distributed`, if it holds an initialized process group; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def process_group_size() -> int | None:
    """The number of ranks of the process group, or None without one."""
    group = process_group()
    return None if group is None else int(group.get_world_size())


def default_store(group: Any) -> Any:
    """The store of the process group; `group` is `torch.distributed`. Raises ValueError."""
    return group.distributed_c10d._get_default_store()  # noqa: SLF001 - no public function


def rank_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment, with RANK and WORLD_SIZE of the process group where no launcher set them.

    Children of `torch.multiprocessing.spawn` have no launcher.
    """
    group = None if "RANK" in environ else process_group()
    if group is None:
        return environ
    return {**environ, "RANK": str(group.get_rank()), "WORLD_SIZE": str(group.get_world_size())}
