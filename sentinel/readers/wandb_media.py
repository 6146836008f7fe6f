"""Images and histograms in a row of a `.wandb` file.

The row holds a histogram itself, and of an image the path below the directory `files` of the run.
Each is an object with a `_type`, or since 0.13 a key for each of its members, such as `name/_type`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.readers.media import LoggedMedia, histogram_body

MAX_IMAGES_PER_ROW = 64
_FOLDER = "files"
_TYPE_SUFFIX = "/_type"


def decode_media(row: Mapping[str, Any], file: Path) -> Iterator[LoggedMedia]:
    """The images and histograms of a row of the `.wandb` file `file`; what is damaged is left out.

    Only files in the directory of the run are named, whatever the path in the row is.
    """
    step, time = _whole(row.get("_step")), _number(row.get("_timestamp"))
    objects = {name: value for name, value in row.items() if isinstance(value, dict)}
    for name, value in (objects | typed_objects(row)).items():
        match value.get("_type"):
            case "histogram":
                if body := _histogram(value):
                    yield LoggedMedia(name, step, time, "histogram", body=body)
            case "image-file":
                yield from _images(name, [value.get("path")], (step, time), file)
            case "images/separated":
                paths = value.get("filenames")
                yield from _images(
                    name, paths if isinstance(paths, list) else [], (step, time), file
                )


def typed_objects(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The objects whose members have keys of their own, such as `name/_type`, by their name."""
    names = {key.removesuffix(_TYPE_SUFFIX) for key in row if key.endswith(_TYPE_SUFFIX)}
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in row.items() if names else ():
        name, _, member = key.rpartition("/")
        if name in found:
            found[name][member] = value
    return found


def _images(
    name: str, paths: list[Any], at: tuple[int, float], file: Path
) -> Iterator[LoggedMedia]:
    for number, path in enumerate(paths[:MAX_IMAGES_PER_ROW]):
        source = _find_file(path, file)
        if source is not None:
            size = source.stat().st_size
            yield LoggedMedia(f"{name}/{number}" if number else name, *at, "image", source, 0, size)


def _find_file(path: Any, file: Path) -> Path | None:
    """The file at that path below the directory of the run; None if it is elsewhere or missing."""
    if not isinstance(path, str) or "\0" in path or ".." in PurePosixPath(path).parts:
        return None
    try:
        folder = (file.parent / _FOLDER).resolve()
        source = (folder / path).resolve()
        return source if source.is_relative_to(folder) and source.is_file() else None
    except (OSError, RuntimeError):
        return None


def _histogram(value: Mapping[str, Any]) -> str:
    counts, edges, packed = value.get("values"), value.get("bins"), value.get("packedBins")
    if isinstance(packed, dict):
        low, width = _number(packed.get("min")), _number(packed.get("size"))
        count = min(max(_whole(packed.get("count")), 0), 2**16)
        edges = [low + width * at for at in range(count + 1)]
    if not isinstance(counts, list) or not isinstance(edges, list):
        return ""
    if not all(type(x) in (int, float) for x in (*counts, *edges)):
        return ""
    try:
        return histogram_body([float(x) for x in edges], [float(x) for x in counts])
    except OverflowError:
        return ""


def _number(value: Any) -> float:
    try:
        number = float(value) if type(value) in (int, float) else 0.0
    except OverflowError:
        return 0.0
    return number if isfinite(number) else 0.0


def _whole(value: Any) -> int:
    return int(max(-(2.0**53), min(_number(value), 2.0**53)))
