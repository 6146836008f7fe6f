"""Parts: folders within that of a run in TensorBoard, and what the numbers in them are called."""

from __future__ import annotations

import re

SPLIT_FOLDERS = ("train", "training", "eval", "evaluation", "val", "valid", "validation", "test")
"""Folders into which writers put one side of a run each."""


_HPARAMS_FOLDER = re.compile(r"\d+\.\d+")
"""What `add_hparams` calls the folder that it makes."""


class FolderTags(dict[str, str]):
    """Names by tag in the folder `name`, found when first asked for; the run's own has none.

    A name is empty where the folder is not for that tag: its numbers are of something else.
    """

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self.folder = folder
        self.holds_run_config = (
            folder in ("", *SPLIT_FOLDERS) or _HPARAMS_FOLDER.fullmatch(folder) is not None
        )
        """Whether a configuration in it is this run's."""

    def __missing__(self, tag: str) -> str:
        name = self[tag] = _qualified_tag(self.folder, tag)
        return name


def _qualified_tag(folder: str, tag: str) -> str:
    """What a tag in that folder says.

    >>> _name("train", "loss"), _name("Loss_eval", "Loss"), _name("another-run", "loss")
    ('train/loss', 'eval/Loss', '')
    """
    if not folder or (folder in SPLIT_FOLDERS and tag.partition("/")[0] == folder):
        return tag
    if folder in SPLIT_FOLDERS:
        return f"{folder}/{tag}"
    # `add_scalars` makes a folder for each of the curves that it draws under one tag.
    before = tag.replace("/", "_") + "_"
    return f"{folder.removeprefix(before)}/{tag}" if folder.startswith(before) else ""
