"""`sentinel insight surface`: the loss around the weights of saved checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli._options import JsonOption, complete_run, error_exit, exit_on, resolve_argument
from sentinel.cli._terminal import print_json_line

if TYPE_CHECKING:
    from sentinel.insight.surface.loss_surface import LossSurface

_SHADES = " ░▒▓█"
_MAP_COLUMNS, _MAP_ROWS = 48, 16


@dataclass(frozen=True)
class SurfaceRequest:
    """What the options of the command ask for."""

    checkpoint: Path
    data: Path
    others: Sequence[Path] = ()
    model: str = ""
    loss: str = ""
    base: Path | None = None
    reference: Path | None = None
    beta: float = 0.1
    rows: int = 32
    batch_size: int = 8
    max_tokens: int = 512
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of `loss_surface`."""
    zoom: Sequence[tuple[float, float]] = ()
    """Bounds of a part that is sampled more finely."""


def surface(  # noqa: PLR0913, PLR0917 - the options of a command
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Folder of a Transformers model or PEFT adapter, or a file (.safetensors, .pt).",
            metavar="CHECKPOINT",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Data of the loss: .jsonl with text, prompt and completion, messages, or chosen "
            "and rejected; or one batch of tensors as .safetensors."
        ),
    ],
    other: Annotated[
        list[Path] | None,
        typer.Option(help="Checkpoint that a direction leads to; twice for a plane."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION|FOLDER",
            help="Function that builds the model, or folder of a Transformers model, for a "
            "checkpoint without config.json.",
        ),
    ] = "",
    loss: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Function of model and batch that returns the loss; by default that of the model.",
        ),
    ] = "",
    base: Annotated[
        Path | None, typer.Option(help="Model of a PEFT adapter, if it has moved.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Reference model: pairs then have the loss of DPO.")
    ] = None,
    beta: Annotated[float, typer.Option(help="Beta of DPO.")] = 0.1,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the data that are used.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that are computed at once.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a row.")] = 512,
    directions: Annotated[
        str, typer.Option(help="random, gradient or hessian; not with --other.")
    ] = "random",
    dimensions: Annotated[int | None, typer.Option(min=1, max=2, help="1 or 2.")] = None,
    reach: Annotated[
        float | None,
        typer.Option("--range", min=0.0, help="How far the surface reaches: 1 is one direction."),
    ] = None,
    zoom: Annotated[
        str,
        typer.Option(
            metavar="X0:X1,Y0:Y1",
            help="Part that is sampled more finely, with the points of the surface.",
        ),
    ] = "",
    evaluations: Annotated[
        int | None, typer.Option(min=3, help="Evaluations of the loss at most.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, help="Error at which sampling ends, as a share of the loss; 0.001."),
    ] = None,
    parameters: Annotated[
        str, typer.Option(help="Pattern of the weights that are changed, such as '*lora*'.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of random directions.")] = 0,
    run: Annotated[
        str | None,
        typer.Option(
            help="Run that the surface is stored with.",
            autocompletion=complete_run,
            callback=resolve_argument,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the result as one HTML file, or a figure (.pdf, .svg, .png).",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the loss around the weights of a checkpoint.

    The checkpoint is read without unpickling it and without running its code; nothing is
    downloaded. With --other, the surface shows what is between checkpoints.

    Exit status: 0 on success, 2 if a file cannot be read or the loss cannot be computed.
    """
    from sentinel.cli._progress import ProgressBar
    from sentinel.transport.paths import list_runs

    others = other or []
    settings: dict[str, Any] = {
        "directions": directions,
        "dimensions": dimensions or (1 if len(others) == 1 else 2),
        "max_evaluations": evaluations,
        "parameters": parameters or None,
        "seed": seed,
    }
    if tolerance is not None:
        settings["tolerance"] = tolerance
    if reach is not None:
        settings["bounds"] = (-reach, reach)
    elif others:
        settings["bounds"] = (-0.5, 1.5)
    if run is not None and run not in list_runs():
        from sentinel.store.run_names import similar_runs_text

        text = f"there is no run {run}. {similar_runs_text(run)}".rstrip()
        raise error_exit("insight surface", text)
    request = SurfaceRequest(
        checkpoint,
        data,
        others,
        model,
        loss,
        base,
        reference,
        beta,
        rows,
        batch_size,
        max_tokens,
        settings,
        _parse_zoom(zoom, settings["dimensions"]),
    )
    errors = (ValueError, TypeError, ImportError, OSError, RuntimeError)
    with exit_on("insight surface", *errors), ProgressBar("Loss surface") as bar:
        result = compute_surface(request, bar.update)
    if run is not None:
        _store(result, run)
    if output is not None:
        write_result("insight surface", result, output)
    if json:
        print_json_line(result.to_json())
    elif output is None:
        print(surface_text(result), end="")


def compute_surface(
    request: SurfaceRequest, progress: Callable[[float | None, str], None]
) -> LossSurface:
    """The surface around the checkpoint. Raises ValueError for what cannot be read or computed."""
    from sentinel.insight.measure.surface_error import SurfaceError
    from sentinel.insight.surface.loss_surface import loss_surface
    from sentinel.insight.surface.saved_batches import (
        BatchOptions,
        is_paired,
        model_loss,
        pair_loss,
        read_batches,
    )
    from sentinel.insight.surface.saved_model import import_function, load_model
    from sentinel.insight.trajectory.saved_weights import CheckpointError, open_weights

    # A folder of a model states how to build it; anything else names a function that does.
    folder = Path(request.model) if request.model and Path(request.model).is_dir() else None
    build = import_function(request.model) if request.model and folder is None else None
    given = import_function(request.loss) if request.loss else None
    progress(None, "loading the model")
    model = load_model(request.checkpoint, build=build, like=folder, base=request.base)
    options = BatchOptions(request.rows, request.batch_size, request.max_tokens)
    tokenizer = lambda: _tokenizer(request, folder)  # noqa: E731 - only texts need it
    batches = read_batches(request.data, tokenizer, options)
    loss = given or model_loss
    if given is None and is_paired(batches):
        reference = None
        if request.reference is not None:
            reference = load_model(request.reference, build=build, like=folder, base=request.base)
        loss = pair_loss(reference, request.beta)
    settings = dict(request.settings)
    if request.others:
        settings["directions"] = [str(each) for each in request.others]

    settings |= {"save": False, "progress": _reporter(progress)}
    try:
        surface = loss_surface(model, loss, batches, **settings)
        if request.zoom:
            settings |= {"bounds": request.zoom, "refine": surface}
            surface = loss_surface(model, loss, batches, **settings)
    except SurfaceError:
        raise
    except Exception as error:
        # A loss of somebody else may raise anything.
        text = f"the loss cannot be computed: {type(error).__name__}: {error}"
        raise CheckpointError(text) from error
    step = open_weights(request.checkpoint).step
    return replace(surface, step=surface.step if surface.step is not None else step)


def _range_text(axis: Sequence[float]) -> str:
    return f"{axis[0]:g} to {axis[-1]:g}"


def surface_text(surface: LossSurface) -> str:
    """The surface for a terminal: what is known about it, and a map of shades."""
    known = [value for row in surface.loss for value in row if value is not None]
    if not known:
        return "The loss is not finite anywhere on this surface.\n"
    low, high = min(known), max(known)
    first = (
        f"Loss at the checkpoint {_number(surface.center.get('loss'))}, lowest {_number(low)}, "
        f"highest {_number(high)} in the range {_range_text(surface.x)}"
        f"{f' by {_range_text(surface.y)}' if len(surface.y) > 1 else ''}."
    )
    lines = [first, *_map(surface, low, high)]
    lines += [
        f"Direction {each['name']}: distance {each['norm']:.3g} at 1{_relative(each, surface)}."
        for each in surface.directions
    ]
    lines += [_region_text(each) for each in surface.regions]
    for feature in surface.features:
        place = f"{feature['x']:.2f}, {feature['y']:.2f}" if surface.y else f"{feature['x']:.2f}"
        lines.append(f"A {feature['kind']} at {place} with loss {_number(feature['loss'])}.")
    lines.append(
        f"{surface.evaluations:,} evaluations of {surface.parameter_count:,} weights in "
        f"{surface.seconds:.1f} s."
    )
    return "\n".join([*lines, *surface.note, ""])


def _parse_zoom(text: str, dimensions: int) -> list[tuple[float, float]]:
    """The bounds of each axis; empty for an empty text. Exits with an error.

    >>> _parse_zoom("-0.2:0.4,0:0.5", 2)
    [(-0.2, 0.4), (0.0, 0.5)]
    """
    if not text:
        return []
    try:
        found = [(float(low), float(high)) for low, high in (p.split(":") for p in text.split(","))]
    except ValueError:
        found = []
    if len(found) != dimensions:
        example = "0.2:0.6" if dimensions == 1 else "0.2:0.6,-0.1:0.3"
        raise error_exit(
            "insight surface", f"--zoom {text} is not a range for each axis, such as {example}."
        )
    return found


def _tokenizer(request: SurfaceRequest, folder: Path | None) -> Any:
    from sentinel.insight.surface.saved_model import base_folder
    from sentinel.insight.trajectory.saved_weights import CheckpointError

    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise CheckpointError("Texts need transformers: pip install transformers.") from None
    base = request.base or base_folder(request.checkpoint)
    folders = [each for each in (request.checkpoint, folder, base) if each is not None]
    names = ("tokenizer.json", "tokenizer_config.json")
    found = next((each for each in folders if any((each / name).is_file() for name in names)), None)
    if found is None:
        raise CheckpointError(
            f"There is no tokenizer beside {request.checkpoint}, which texts need: give a "
            ".safetensors file of token ids as --data, or --model FOLDER that has one."
        )
    return AutoTokenizer.from_pretrained(str(found), local_files_only=True, trust_remote_code=False)


def _reporter(progress: Callable[[float | None, str], None]) -> Callable[[Any], None]:
    def report(state: Any) -> None:
        fraction = state.evaluations / max(1, state.max_evaluations)
        left = f"about {state.seconds_left:.0f} s left"
        progress(fraction, f"{state.evaluations:,} evaluations, {left}")

    return report


def _relative(direction: dict[str, Any], surface: LossSurface) -> str:
    """The length of a direction as a share of that of the weights."""
    if not surface.weights_norm:
        return ""
    return f", {direction['norm'] / surface.weights_norm:.3g} times the norm of the weights"


def _region_text(region: dict[str, Any]) -> str:
    ranges = [f"{axis[0]:g} to {axis[-1]:g}" for axis in (region["x"], region["y"]) if axis]
    return f"Sampled more finely: {', '.join(ranges)}."


def _map(surface: LossSurface, low: float, high: float) -> list[str]:
    """The losses as shades, the lowest blank; "?" where the loss is not finite."""
    rows = surface.loss[::-1]
    height = min(_MAP_ROWS, len(rows)) if surface.y else 1
    width = min(_MAP_COLUMNS, len(surface.x))
    span = high - low or 1.0
    lines = []
    for at in range(height):
        row = rows[at * len(rows) // height]
        cells = [row[column * len(row) // width] for column in range(width)]
        lines.append("".join(_shade(value, low, span) for value in cells))
    return lines


def _shade(value: float | None, low: float, span: float) -> str:
    if value is None:
        return "?"
    return _SHADES[min(len(_SHADES) - 1, int((value - low) / span * len(_SHADES)))]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _store(result: Any, run: str) -> None:
    """Store the result with a run of the home."""
    from sentinel.store.artifact import save_artifact
    from sentinel.transport.paths import run_dir

    path = save_artifact(run_dir(run), result)
    if path is None:
        raise error_exit("insight surface", f"the result cannot be stored with {run}.")
    print(f"Wrote {path}.", file=sys.stderr)


def write_result(command: str, result: Any, output: Path, title: str = "") -> None:
    """Write a result as one HTML file, or as a figure, by the suffix. Exits with an error."""
    from sentinel.insight.figures import SUFFIXES, plot, save_figure
    from sentinel.web.report_page import write_insight_page

    try:
        if output.suffix.lower() in SUFFIXES:
            save_figure(plot(result), output)
        else:
            write_insight_page(result, output, title=title)
    except OSError as error:
        text = f"cannot write {output}: {error.strerror or error}"
        raise error_exit(command, text) from None
    except (ImportError, ValueError) as error:
        raise error_exit(command, str(error)) from None
    print(f"Wrote {output} ({output.stat().st_size / 1e6:.1f} MB).", file=sys.stderr)
