"""Parts: folders within that of a run in TensorBoard, and what the numbers in them are called."""

from __future__ import annotations

import re

PARTS = ("train", "training", "eval", "evaluation", "val", "valid", "validation", "test")
"""Folders into which writers put one side of a run each."""


_MOMENT = re.compile(r"\d+\.\d+")
"""What `add_hparams` calls the folder that it makes."""


class Part(dict[str, str]):
    """Names by tag in the folder `name`, found when first asked for; the run's own has none.

    A name is empty where the folder is not for that tag: its numbers are of something else.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.ours = name in ("", *PARTS) or _MOMENT.fullmatch(name) is not None
        """Whether a configuration in it is this run's."""

    def __missing__(self, tag: str) -> str:
        name = self[tag] = _name(self.name, tag)
        return name


def _name(folder: str, tag: str) -> str:
    """What a tag in that folder says.

    >>> _name("train", "loss"), _name("Loss_eval", "Loss"), _name("another-run", "loss")
    ('train/loss', 'eval/Loss', '')
    """
    if not folder or (folder in PARTS and tag.partition("/")[0] == folder):
        return tag
    if folder in PARTS:
        return f"{folder}/{tag}"
    # `add_scalars` makes a folder for each of the curves that it draws under one tag.
    before = tag.replace("/", "_") + "_"
    return f"{folder.removeprefix(before)}/{tag}" if folder.startswith(before) else ""
