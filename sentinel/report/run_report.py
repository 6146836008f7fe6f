"""The data of a run report: what the page asks an agent for, with a verdict and results by metric.

The answers are those of the JSON routes of the run's page, so that the page's own sections show
them. Curves are decimated until the report fits into its size.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sentinel.model.clean_text import clean
from sentinel.model.json_safe import JsonObject, json_safe
from sentinel.model.quantity_text import format_duration, format_number
from sentinel.report.compared_results import compared_results
from sentinel.report.comparison import GROUPS, Axis, ComparedRun, compare, run_seconds
from sentinel.signals.catalogue import better_value
from sentinel.store.artifact import (
    ArtifactError,
    list_artifacts,
    load_artifact,
    shown_data,
    with_floats,
)
from sentinel.store.series.curve_results import curve_results
from sentinel.store.verdict import health, verdict_parts, verdict_text

if TYPE_CHECKING:
    from sentinel.store.run_reader import RunReader

MAX_DATA_BYTES = 4_700_000
"""Size of the data of all runs of a report as JSON."""
_POINTS: Mapping[Axis, int] = {"step": 1500, "time": 400, "tokens": 400}
"""Most points of a curve over each axis."""
_MIN_POINTS = 50
_COMPARED_POINTS = 300
_GRID_COLUMNS = 160
_LAYER_COLUMNS = (160, 80, 40)
_MAX_INSIGHT_SHARE = 0.4
"""Share of the size of a report for results of insight and statistics of layers."""
_MAX_INCIDENTS, _MAX_CASES, _MAX_DELIVERIES = 500, 200, 200
_SAMPLE_STEPS, _SAMPLES_PER_STEP, _MAX_SAMPLE_CHARS = 12, 5, 6_000
_MAX_SAMPLE_BYTES, _MAX_MEDIA_BYTES, _MAX_MEDIA = 600_000, 600_000, 40
_MAX_TEXT_RESULTS = 3
_MAX_STATE_CHARS = 100
_SHOWN_SIGNALS = ("loss", "reward", "eval/loss", "eval_loss", "accuracy", "eval/accuracy")
"""The results that are named."""
_END_TEXTS = {
    "running": "It is running",
    "starting": "It is starting",
    "stalled": "It is stalled",
    "finished": "It ended",
    "failed": "It failed",
    "died": "It died",
    "unfinished": "Its end was not recorded; its last record is",
}


def collect_report(
    runs: Sequence[ComparedRun],
    *,
    include_samples: bool = True,
    max_bytes: int = MAX_DATA_BYTES,
    now: float | None = None,
) -> JsonObject:
    """The data of a report of one or several runs, as JSON of at most about `max_bytes`.

    Keys: generated (seconds since the epoch), runs and comparison (None for a single run, else with
    the curves over time and tokens in `other_axes`). Each run has name, verdict (see
    `health`), verdict_parts (labels and texts), progress (how far it came), summary (all of that as
    a paragraph), results (label,
    unit, better, first, last, min, max, best, best_x and bad_count by metric; what is not finite is
    a text) and answers: what the server answers, by the path of a route of the run's page. Other
    axes than the step are in the query of `api/series`, signals in that of `api/ranks`, and
    statistics in that of `api/layers`; images as data URLs and histograms as JSON are under
    `api/media-bodies` by id.
    """
    limit = max_bytes // max(len(runs), 1)
    generated = time.time() if now is None else now
    collected = [_collect(run, limit, generated, include_samples=include_samples) for run in runs]
    comparison = _compare(runs) if len(runs) > 1 else None
    report: JsonObject = json_safe(
        {"generated": generated, "runs": collected, "comparison": comparison}
    )
    return report


def _compare(runs: Sequence[ComparedRun]) -> JsonObject:
    """The comparison over steps, with the curves over the other axes in `other_axes`."""
    comparison = compare(runs, points=_COMPARED_POINTS)
    comparison["insight"] = compared_results(
        [run.name for run in runs], [run.directory for run in runs]
    )
    names = list(comparison["series"])
    comparison["other_axes"] = {
        axis: compare(runs, signals=names, axis=axis, points=_COMPARED_POINTS // 2)["series"]
        for axis in _POINTS
        if axis != comparison["axis"]
    }
    rounded: JsonObject = _rounded(comparison)
    return rounded


def _collect(run: ComparedRun, max_bytes: int, now: float, *, include_samples: bool) -> JsonObject:
    reader = run.reader
    signals = reader.signals()
    names = [signal["name"] for signal in signals]
    every_case = reader.cases(has_ages=False)
    cases = every_case[:_MAX_CASES]
    since = {case["name"]: case["message"]["since"] for case in cases}
    state = dict(run.state)
    state["cases"] = [
        each | {"message": each["message"] | {"since": since[each["name"]]}}
        if each["name"] in since
        else each
        for each in state.get("cases", [])
    ]
    samples = _samples(reader) if include_samples else []
    answers: JsonObject = {
        "api/run": state,
        "api/signals": signals,
        "api/thresholds": reader.thresholds(names),
        "api/timeline": reader.timeline(),
        "api/incidents": reader.incidents()[:_MAX_INCIDENTS],
        "api/cases": cases,
        "api/set-up": reader.set_up(),
        "api/deliveries": reader.deliveries(limit=_MAX_DELIVERIES),
        "api/samples": samples,
        "api/sample-steps": sorted(Counter(each["step"] for each in samples).items()),
        **_rank_grids(reader),
        **(_media(reader) if include_samples else {"api/media": []}),
    }
    found = _insight(run, int(_MAX_INSIGHT_SHARE * max_bytes))
    state["insight"] = "stored" if "api/insight" in found else ""
    state["layers"] = any(path.startswith("api/layers") for path in found)
    answers |= found
    answers |= _series(reader, names, max_bytes - _json_bytes(answers))
    curves = answers["api/series"]["series"]
    results = [
        _result(signal, curves.get(signal["name"]))
        for signal in signals
        if signal["group"] in GROUPS
    ]
    progress = results_text(run.state, results)
    verdict = state["verdict"] = health(run.state, every_case, now)
    return {
        "name": run.name,
        "verdict": verdict,
        "verdict_parts": verdict_parts(verdict),
        "progress": progress,
        "summary": f"{verdict_text(verdict)} {progress}".strip(),
        "results": results,
        "answers": answers,
    }


def _result(signal: JsonObject, curve: JsonObject | None) -> JsonObject:
    better = better_value(signal["name"])
    return {
        "signal": signal["name"],
        "label": signal.get("label") or signal["name"],
        "unit": signal.get("unit", ""),
        "group": signal["group"],
        "better": better,
        **curve_results(curve or {"x": [], "mean": []}, better, signal),
    }


def _series(reader: RunReader, names: Sequence[str], max_bytes: int) -> JsonObject:
    """The curves over every axis, with as many points as fit into `max_bytes` as JSON."""
    scale = 1.0
    while True:
        curves: JsonObject = {
            "api/series" if axis == "step" else f"api/series?axis={axis}": _compact(
                reader.series(names, points=max(int(scale * points), _MIN_POINTS), axis=axis)
            )
            for axis, points in _POINTS.items()
        }
        excess = _json_bytes(curves) / max(max_bytes, 1)
        if excess <= 1.0 or scale * _POINTS["step"] <= _MIN_POINTS:
            return curves
        scale *= min(0.9 / excess, 0.9)


def _compact(answer: JsonObject) -> JsonObject:
    """The curves without what the page fills in: equal extremes, and a single attempt."""
    series = {}
    for name, curve in answer["series"].items():
        omitted = {"min", "max"} if curve["is_raw"] else set()
        if not any(curve.get("attempt") or ()):
            omitted.add("attempt")
        omitted |= {key for key, values in curve.items() if values is None and key != "last"}
        series[name] = {key: each for key, each in curve.items() if key not in omitted}
    return {**answer, "series": _rounded(series)}


def _rank_grids(reader: RunReader) -> JsonObject:
    """The values by rank of every signal that is stored so."""
    names = reader.rank_grid("", columns=1)["signals"]
    return {
        "api/ranks": {"signal": "", "signals": names, "ranks": [], "x": [], "values": []},
        **{
            f"api/ranks?signal={name}": _rounded(reader.rank_grid(name, columns=_GRID_COLUMNS))
            for name in names
        },
    }


def _insight(run: ComparedRun, max_bytes: int) -> JsonObject:
    """The results of insight, the newest first while they fit, and the statistics of layers."""
    answers: JsonObject = _layers(run.reader, max_bytes // 2) if run.reader.has_layers() else {}
    left = max_bytes - _json_bytes(answers)
    listed = [] if run.directory is None else list_artifacts(run.directory)
    headers: list[JsonObject] = []
    # The newest of each name first, and then their earlier steps.
    newest = {(each["kind"], each["name"]): each for each in listed}
    others = [each for each in listed if each not in newest.values()]
    for header in [*newest.values(), *reversed(others)]:
        try:
            found = load_artifact(run.directory or "", header["id"])
        except ArtifactError:
            continue
        found["data"] = _rounded(shown_data(found["data"]))
        size = _json_bytes(found)
        if size <= left:
            left -= size
            headers.append(header)
            answers[f"api/insight/{header['id']}"] = found
    if headers:
        answers["api/insight"] = sorted(headers, key=lambda each: (each["time"], each["id"]))
    return answers


def _layers(reader: RunReader, max_bytes: int) -> JsonObject:
    """The statistics of layers, in as many columns as fit; none if they never do."""
    statistics = reader.layers("", columns=2)["statistics"]
    for columns in _LAYER_COLUMNS:
        answers: JsonObject = {
            f"api/layers?statistic={name}": _rounded(reader.layers(name, columns=columns))
            for name in statistics
        }
        if _json_bytes(answers) <= max_bytes:
            return answers
    return {}


def _samples(reader: RunReader) -> list[JsonObject]:
    """Samples of steps spread over the run, oldest first, with long texts cut.

    If they are too large, the oldest are left out.
    """
    steps = sorted(step for step, _ in reader.sample_steps())[::-1]
    stride = max(1, -(-len(steps) // _SAMPLE_STEPS))
    found: list[JsonObject] = []
    size = 0
    for step in steps[::stride]:
        for sample in reversed(reader.samples(step=step, limit=_SAMPLES_PER_STEP)):
            cut = {**sample, **{key: _cut(sample.get(key)) for key in ("prompt", "completion")}}
            size += _json_bytes(cut)
            if size > _MAX_SAMPLE_BYTES:
                return found[::-1]
            found.append(cut)
    return found[::-1]


def _cut(text: Any) -> Any:
    if isinstance(text, str) and len(text) > _MAX_SAMPLE_CHARS:
        return f"{text[:_MAX_SAMPLE_CHARS]}…"
    return text


def _media(reader: RunReader) -> JsonObject:
    """The newest images and histograms that fit, and their data URLs by id."""
    items: list[JsonObject] = []
    bodies: dict[str, str] = {}
    size = 0
    for item in reader.media(limit=_MAX_MEDIA):
        try:
            content_type, body = reader.media_body(item["id"])
        except (OSError, LookupError, ValueError):
            # Its file was moved since.
            continue
        size += len(body) * 4 // 3
        if size > _MAX_MEDIA_BYTES:
            break
        items.append(item)
        bodies[str(item["id"])] = _embedded(content_type, body)
    return {"api/media": items, "api/media-bodies": bodies}


def _embedded(content_type: str, body: bytes) -> str:
    """An image as a data URL; a histogram is JSON already."""
    if not content_type.startswith("image/"):
        return body.decode("utf-8", "replace")
    return f"data:{content_type};base64,{base64.b64encode(body).decode('ascii')}"


def _rounded(value: Any) -> Any:
    """Numbers with 6 significant digits: more are not seen in a chart."""
    # Times since the epoch keep their milliseconds.
    return with_floats(value, lambda x: round(x, 3) if abs(x) >= 1e5 else float(f"{x:.6g}"))


def _json_bytes(value: Any) -> int:
    return len(json.dumps(json_safe(value), separators=(",", ":")))


def results_text(state: Mapping[str, Any], results: Sequence[JsonObject]) -> str:
    """How far the run came, in which time, and how its first metrics developed.

    `state` is that of `/api/run`, `results` are by metric. Empty without a step.
    """
    step = state.get("step")
    if step is None:
        return ""
    name = str(state.get("state"))
    start = _END_TEXTS.get(name, f"It is {clean(name, _MAX_STATE_CHARS)}")
    seconds = run_seconds(state)
    lasted = f" after {format_duration(seconds)}" if seconds is not None else ""
    progress = f"{start} at step {step:,}{lasted}."
    changes = [
        f"{each['label']} from {format_number(each['first'])} to {format_number(each['last'])}"
        for each in results
        if each["signal"] in _SHOWN_SIGNALS and None not in (each["first"], each["last"])
    ]
    return f"{progress} {', '.join(changes[:_MAX_TEXT_RESULTS])}.".replace(" .", "").strip()
