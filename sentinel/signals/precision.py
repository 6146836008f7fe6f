"""Which precision a run trains in, as far as its metadata shows."""

from __future__ import annotations

from collections.abc import Mapping

_FLOAT16_VALUES = {
    "fp16": ("true", "1"),
    "mixed_precision": ("fp16",),
    "precision": ("16", "16-mixed", "16-true"),
    "dtype": ("fp16", "float16", "torch.float16"),
    "torch_dtype": ("float16", "torch.float16"),
}


def is_float16(metadata: Mapping[str, str | float], values: Mapping[str, float]) -> bool:
    """Whether the run trains in float16: by its settings, or by a loss scale other than 1.

    >>> is_float16({"mixed_precision": "bf16"}, {}), is_float16({"fp16": "true"}, {})
    (False, True)
    """
    return values.get("loss_scale", 1.0) != 1.0 or any(
        str(metadata.get(name, "")).lower() in float16 for name, float16 in _FLOAT16_VALUES.items()
    )
