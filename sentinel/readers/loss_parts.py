"""Adds the loss to the rows of a training that logs its parts only.

Ultralytics and YOLOv5 to v7 log the weighted parts, on training and on held-out data, and minimise
their sum. One part may rise while the others fall by more. pix2pix logs the losses of a
discriminator on real and on generated samples, of which it minimises the mean.
"""

from __future__ import annotations

SPLITS = ("train", "val")
SHARED_PART = "box"
"""The part that every version logs."""
DISCRIMINATOR_PARTS = ("D_real", "D_fake")
OTHER_PARTS = ("cls", "dfl", "obj", "seg", "pose", "kobj")


def add_total_losses(values: dict[str, float]) -> dict[str, float]:
    """Add the sums of the parts as `train/loss` and `val/loss`, where only parts are logged.

    >>> add_total_losses({"train/box_loss": 1.5, "train/cls_loss": 0.5})["train/loss"]
    2.0
    >>> add_total_losses({"train/loss": 3.0, "train/box_loss": 1.5, "train/cls_loss": 0.5})
    {'train/loss': 3.0, 'train/box_loss': 1.5, 'train/cls_loss': 0.5}
    """
    for split in SPLITS:
        total, shared = f"{split}/loss", f"{split}/{SHARED_PART}_loss"
        if shared not in values or total in values:
            continue
        others = [f"{split}/{part}_loss" for part in OTHER_PARTS]
        parts = [values[key] for key in (shared, *others) if key in values]
        if len(parts) > 1:
            values[total] = sum(parts)
    if values.keys() >= {*DISCRIMINATOR_PARTS}:
        values.setdefault("D_loss", sum(values[part] for part in DISCRIMINATOR_PARTS) / 2)
    return values
