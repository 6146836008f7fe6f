"""Results of insight with known shapes, as their functions return them."""

from __future__ import annotations

from itertools import pairwise
from math import cos, exp, hypot, isfinite, nan, sin
from pathlib import Path
from typing import Any

from sentinel.store.artifact import save_artifact

LAYERS = [
    "embed_tokens",
    *(f"layers.{number}.{part}" for number in range(4) for part in ("attn", "mlp")),
    "lm_head",
]


def bowl(x: float, y: float) -> float:
    """A loss with two minima, a saddle between them, a cliff and a region without a value."""
    if hypot(x - 0.75, y + 0.75) < 0.18:
        return nan
    wells = 1.1 * exp(-6 * hypot(x, y) ** 2) + 0.8 * exp(-9 * hypot(x + 0.6, y - 0.5) ** 2)
    return 2.6 + 0.9 * hypot(x, 0.7 * y) ** 2 - wells + 0.08 * sin(7 * x) * cos(5 * y)


def surface(
    step: int = 200, *, size: int = 51, name: str = "", offset: float = 0.0, **changes: Any
) -> dict[str, Any]:
    """A loss surface as JSON, of `size` by `size` points; `changes` replace its fields."""
    axis = [2 * number / (size - 1) - 1 for number in range(size)]
    rows = [[bowl(x, y) + offset for x in axis] for y in axis]
    loss = [[value if isfinite(value) else None for value in row] for row in rows]
    path = [
        # The first place is beyond the border, by rounding only.
        (1.0000000096 * cos(0.04 * n) * exp(-n / 40), 0.8 * sin(0.06 * n) * exp(-n / 60))
        for n in range(60)
    ]
    coarse = axis[:: max(1, size // 10)]
    arrows = [
        [
            x,
            y,
            -(bowl(x + 0.01, y) - bowl(x - 0.01, y)) * 5,
            -(bowl(x, y + 0.01) - bowl(x, y - 0.01)) * 5,
        ]
        for x in coarse
        for y in coarse
    ]
    return {
        "kind": "loss_surface",
        "name": name,
        "step": step,
        "x": axis,
        "y": axis,
        "loss": loss,
        "points": [
            [x, y, loss[row][column]]
            for row, y in enumerate(axis)
            for column, x in enumerate(axis)
            if (row * 7 + column * 3) % 5 == 0
        ],
        "directions": [
            {"name": "x", "kind": "hessian", "norm": 1.2, "eigenvalue": 38.4, "explained": None},
            {"name": "y", "kind": "pca", "norm": 0.9, "eigenvalue": None, "explained": 0.63},
        ],
        "center": {"x": 0.0, "y": 0.0, "loss": bowl(0, 0) + offset},
        "trajectory": [
            {"step": 4 * n, "x": x, "y": y, "loss": bowl(x, y) + offset}
            for n, (x, y) in enumerate(path)
        ],
        "arrows": [each for each in arrows if all(isfinite(value) for value in each)],
        "features": [
            {"kind": "minimum", "x": 0.0, "y": 0.0, "loss": bowl(0, 0) + offset, "evaluated": True},
            {"kind": "minimum", "x": -0.6, "y": 0.5, "loss": bowl(-0.6, 0.5) + offset},
            {"kind": "saddle", "x": -0.34, "y": 0.3, "loss": bowl(-0.34, 0.3) + offset},
        ],
        "sharpness": {
            "eigenvalues": [38.4],
            "learning_rate": 0.05,
            "limit": 40.0,
            "ratio": 0.96,
            "preconditioned": False,
            "trace": None,
            "evaluations": 40,
            "seconds": 1.5,
        },
        "evaluations": 1040,
        "seconds": 41.5,
        "estimated_error": 0.0123,
        "parameter_count": 124_439_808,
        "weights_norm": 30.0,
        "selection": "all parameters that require a gradient",
        "model": "TinyTransformer",
        "note": ["21 of 1,040 evaluations were NaN or infinite."],
    } | changes


def line(step: int = 200, **changes: Any) -> dict[str, Any]:
    """A loss surface of one dimension."""
    axis = [number / 25 - 1 for number in range(51)]
    values = [bowl(x, 0.2 * x) for x in axis]
    loss = [value if isfinite(value) else None for value in values]
    return (
        surface(step, size=3)
        | {
            "x": axis,
            "y": [],
            "loss": [loss],
            "points": [[x, 0.0, value] for x, value in zip(axis, loss, strict=True)],
            "directions": [{"name": "x", "kind": "random", "norm": 1.0}],
            "trajectory": [],
            "arrows": [],
            "features": [{"kind": "minimum", "x": 0.0, "y": 0.0, "loss": bowl(0, 0)}],
            "note": [],
        }
        | changes
    )


def trajectory(name: str = "grpo-7b", turn: float = 0.0, **changes: Any) -> dict[str, Any]:
    """The path of one run in its plane."""
    points = [(1 - exp(-n / 60), 0.25 * sin(n / 25 + turn) * (n / 200)) for n in range(200)]
    travelled = [0.0]
    for before, after in pairwise(points):
        travelled.append(travelled[-1] + hypot(after[0] - before[0], after[1] - before[1]))
    return {
        "kind": "trajectory",
        "name": name,
        "runs": [
            {
                "name": name,
                "steps": [2 * n for n in range(200)],
                "x": [x * cos(turn) - y * sin(turn) for x, y in points],
                "y": [x * sin(turn) + y * cos(turn) for x, y in points],
                "loss": [0.4 + 1.6 * exp(-n / 50) + 0.05 * sin(n) for n in range(200)],
                "distance_travelled": travelled,
                "distance_to_initial": [hypot(*point) for point in points],
                "distance_to_reference": [hypot(*point) * 1.1 for point in points],
                "straightness": hypot(*points[-1]) / travelled[-1],
            }
        ],
        "explained": [0.71, 0.16],
        "selection": "*lora*",
        "parameter_count": 3_407_872,
        "note": [],
    } | changes


def layers(steps: int = 240, names: list[str] | None = None) -> dict[str, Any]:
    """What `RunReader.layers` answers: the first layers vanish, one is dead, one is NaN."""
    names = LAYERS if names is None else names
    x = [*range(1, steps + 1)]
    rows: list[list[float | None]] = []
    for index in range(len(names)):
        share = index / max(1, len(names) - 1)
        row: list[float | None] = [
            10 ** (-5 * (1 - share) * step / steps) * (1.2 + sin(step / 9 + index)) for step in x
        ]
        rows.append(row)
    rows[2] = [0.0] * len(x)
    rows[-1][len(x) // 2 :] = [None] * (len(x) - len(x) // 2)
    histograms = {
        name: [-20 + index % 7, *(round(900 * exp(-((n - 7) ** 2) / 9)) for n in range(15))]
        for index, name in enumerate(names)
    }
    statistics = [
        "layer_grad_norm",
        "layer_grad_zero_share",
        "layer_update_ratio",
        "layer_grad_cosine",
        "layer_noise_scale",
    ]
    return {
        "statistic": "layer_grad_norm",
        "statistics": statistics,
        "layers": names,
        "x": x,
        "values": rows,
        "histograms": {"x": x[-1] if x else None, "layer": histograms},
    }


def save_all(run_directory: Path) -> None:
    """Store surfaces of three steps, a line and a trajectory with the run."""
    save_artifact(run_directory, line(), name="interpolation")
    for step in (40, 120, 200):
        save_artifact(run_directory, surface(step, offset=1.5 * exp(-step / 60)))
    save_artifact(run_directory, trajectory())
