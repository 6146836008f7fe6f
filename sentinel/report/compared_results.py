"""The stored results of several runs, for a comparison: which there are, and paths in one plane."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from sentinel.model.json_safe import JsonObject
from sentinel.store.artifact import ArtifactError, list_artifacts, load_artifact, shown_data

log = logging.getLogger(__name__)


def compared_results(names: Sequence[str], directories: Sequence[Path | None]) -> JsonObject | None:
    """What a comparison shows of the results of insight; None if no run has any.

    Keys: results (for each run the headers of its results, see `list_artifacts`), trajectory (the
    newest paths of at least two runs in one plane, None if that is not possible) and problem (why
    not, as a sentence).
    """
    listed = [[] if each is None else list_artifacts(each) for each in directories]
    if not any(listed):
        return None
    trajectory, problem = _shared_plane(names, directories, listed)
    return {"results": listed, "trajectory": trajectory, "problem": problem}


def _shared_plane(
    names: Sequence[str],
    directories: Sequence[Path | None],
    listed: Sequence[Sequence[JsonObject]],
) -> tuple[JsonObject | None, str]:
    paths: dict[str, JsonObject] = {}
    for name, directory, results in zip(names, directories, listed, strict=True):
        newest = [each["id"] for each in results if each["kind"] == "trajectory"][-1:]
        for artifact_id in newest:
            assert directory is not None
            try:
                paths[name] = load_artifact(directory, artifact_id)["data"]
            except ArtifactError as error:
                log.debug("A trajectory is not compared: %s", error)
    if len(paths) < 2:
        return None, ""
    # numpy is loaded for runs with trajectories only.
    from sentinel.insight.trajectory.trajectory import Trajectory, trajectory  # noqa: PLC0415

    try:
        runs = {name: Trajectory.from_json(data) for name, data in paths.items()}
        joined = trajectory(runs, save=False).to_json()
    except ValueError as error:
        return None, str(error)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        # A file may contain any JSON.
        log.warning("The trajectories of runs cannot be compared: %r", error)
        return None, "A stored trajectory is damaged."
    return shown_data(joined), ""
