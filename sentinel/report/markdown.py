"""The report as Markdown, for pull requests and chats: a verdict and tables.

Texts of the run are escaped, so that none of them becomes a link, a picture or a mention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.quantity_text import format_duration, format_number, format_time
from sentinel.store.feedback import feedback_text
from sentinel.store.result_text import layers_text, result_text
from sentinel.transport.slurm_job import SLURM_KEY_PREFIX

JsonObject = Mapping[str, Any]

_MAX_TEXT_CHARS, _MAX_CODE_CHARS = 600, 200
_MAX_CASES, _MAX_INCIDENTS, _MAX_RESULTS, _MAX_SETTINGS = 20, 50, 40, 200
_ESCAPES = {
    **{character: f"\\{character}" for character in "\\|*[]"},
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
    "@": "&#64;",
    "#": "&#35;",
}
_CODE_ESCAPES = {"`": "'", "|": "\\|"}


def markdown_report(report: JsonObject) -> str:
    """The report for the data of `collect_report`."""
    lines: list[str] = []
    for run in report["runs"]:
        lines += [*_run_lines(run), ""]
    if report["comparison"] is not None:
        lines += [*comparison_lines(report["comparison"]), ""]
    lines.append(f"Report of sentinel, {format_time(report['generated'])}.")
    return "\n".join(lines) + "\n"


def comparison_lines(comparison: JsonObject) -> Iterator[str]:
    """The comparison as tables, with one column per run."""
    names = [_code(run["name"]) for run in comparison["runs"]]
    yield "## Comparison"
    rows = ([name, *map(_text, texts)] for name, texts in run_rows(comparison["runs"]))
    yield from _table(["", *names], rows)
    if "what_changed" in comparison:
        yield from _change_lines(comparison["what_changed"])
    if comparison["metrics"]:
        yield from _table(["Metric", *names], map(_metric_row, comparison["metrics"]))
    if comparison["problems"]:
        rows = ([_text(row["title"]), *map(_cell, row["cells"])] for row in comparison["problems"])
        yield from _table(["Problem", *names], rows)
    if comparison["settings"]:
        rows = (
            [_code(row["name"]), *("" if each is None else _code(each) for each in row["values"])]
            for row in comparison["settings"]
        )
        yield from _table(["Setting that differs", *names], rows)


def _change_lines(changed: JsonObject) -> Iterator[str]:
    yield from ("", _text(changed["text"]))
    if not changed["departures"]:
        return
    yield from _table(["Departure", "Step", "Value", "Band"], _texts(departure_rows(changed)))
    if differences := difference_rows(changed):
        head = ["Difference", "Good", "Bad", "Own runs that departed"]
        yield from _table(head, _texts(differences))
    yield from ("", _text(changed["conclusion"]))


def _texts(rows: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    return ([_text(each) for each in row] for row in rows)


def departure_rows(changed: JsonObject) -> list[list[str]]:
    """Signal, step, value and band of each departure of `what_changed`, as plain texts."""
    return [
        [
            each["label"],
            f"{each['step']:,}",
            value_text(each["value"], each["unit"]),
            f"{value_text(each['low'])} to {value_text(each['high'], each['unit'])}",
        ]
        for each in changed["departures"]
    ]


def difference_rows(changed: JsonObject) -> list[list[str]]:
    """Name, values and evidence of each difference of `what_changed`, as plain texts."""
    return [
        [
            ", ".join([each["name"], *each["also"]]),
            each["good"],
            each["bad"],
            _evidence_text(each),
        ]
        for each in changed["differences"]
    ]


def _evidence_text(difference: JsonObject) -> str:
    """How many of one's own runs departed, with the difference and without it."""
    if not difference["count"]:
        return "no other run has it"
    return "{departed} of {count} with it, {departed_without} of {count_without} without".format(
        **difference
    )


def value_text(value: float | str | None, unit: str = "") -> str:
    """A value with its unit; a dash if it is not known.

    As JSON, one that is not finite is a text.
    """
    if isinstance(value, str) or (value is not None and isnan(value)):
        return "NaN"
    if not isinstance(value, int | float):
        return "-"
    return f"{format_number(value)} {unit}".strip()


def run_rows(runs: Sequence[JsonObject]) -> Iterator[tuple[str, list[str]]]:
    """What a comparison shows of its runs: a name, and a plain text per run."""
    times = [run["seconds"] for run in runs]
    yield "State", [run["state"] or "-" for run in runs]
    yield "Health", [run["health"] or "-" for run in runs]
    yield "Last step", [_step(run["step"]) for run in runs]
    if any(times):
        yield "Duration", ["-" if each is None else format_duration(each) for each in times]
    if any(run["cases"] for run in runs):
        yield "Cases", [case_count_text(run) for run in runs]
    for name in ("host", "framework", "algorithm", "model", "note"):
        if any(run[name] for run in runs):
            yield name.capitalize(), [str(run[name] or "-") for run in runs]


def case_count_text(run: JsonObject) -> str:
    """How many cases a compared run has, and how many of them were never over."""
    texts = [str(run["cases"])]
    if lasting := run["open_cases"] + run["lasting_cases"]:
        texts.append(f"{lasting} {'open' if run['open_cases'] else 'open when the run ended'}")
    if lasting := run["training_lasting_cases"]:
        texts.append(f"{lasting} open when {'its' if lasting == 1 else 'their'} training ended")
    return ", ".join(texts)


def has_common_value(metric: JsonObject) -> bool:
    """Whether the runs have a last common point at which one of them was not at its end."""
    ends = {value["last_x"] for value in metric["values"] if value is not None}
    return len(ends) > 1


def _run_lines(run: JsonObject) -> Iterator[str]:
    state, verdict = run["answers"]["api/run"], run["verdict"]
    given = state.get("name")
    name = f"{_text(given)} ({_code(run['name'])})" if given else _code(run["name"])
    yield from (f"# {_text(verdict['title'])}: {name}", "", _text(run["summary"], 4000))
    yield from _table(["", ""], _summary_rows(state))
    cases = run["answers"]["api/cases"]
    if cases:
        yield from ("", "## Cases")
        for case in cases[:_MAX_CASES]:
            yield ""
            yield from _case_lines(case)
    yield from _set_up_lines(run["answers"]["api/set-up"])
    results = [each for each in run["results"] if each["last"] is not None][:_MAX_RESULTS]
    if results:
        yield from ("", "## Metrics")
        names = ("First", "Last", "Best", "At step", "Lowest", "Highest", "NaN or infinite")
        yield from _table(["Metric", *names], map(_result_row, results))
    if insight := [*_insight_rows(run["answers"])]:
        yield from ("", "## Insight")
        yield from _table(["Result", "Name", "Step", ""], insight)
    incidents = run["answers"]["api/incidents"][:_MAX_INCIDENTS]
    if incidents:
        yield from ("", "## Incidents")
        head = ["Severity", "Detector", "Began", "Found", "Resolved", "Summary"]
        yield from _table(head, map(_incident_row, incidents))
    undelivered = [each for each in run["answers"]["api/deliveries"] if each["state"] == "dead"]
    if undelivered:
        yield from ("", "## Notifications that were not delivered")
        yield from _table(
            ["Sink", "Severity", "Tries", "Error"],
            (
                [_code(each["sink"]), each["severity"], each["tries"], _text(each["last_error"])]
                for each in undelivered[:_MAX_CASES]
            ),
        )
    settings = sorted((state.get("metadata") or {}).items())[:_MAX_SETTINGS]
    if settings:
        yield from ("", "<details><summary>Settings</summary>")
        yield from _table(["Setting", "Value"], ([_code(key), _code(x)] for key, x in settings))
        yield from ("", "</details>")


def _summary_rows(state: JsonObject) -> Iterator[Sequence[Any]]:
    metadata = state.get("metadata") or {}
    framework = " ".join(
        str(metadata[key]) for key in ("framework", "framework_version") if metadata.get(key)
    )
    started, ended = state.get("started"), state.get("ended")
    values = {
        "State": state.get("state"),
        "Step": None if state.get("step") is None else f"{state['step']:,}",
        "Attempt": state.get("attempt") or None,
        "Trainings": training if (training := state.get("training", 1)) > 1 else None,
        "Started": format_time(started) if isinstance(started, int | float) else None,
        "Ended": format_time(ended) if isinstance(ended, int | float) else None,
        "Host": state.get("host") or metadata.get("host"),
        "Slurm job": _slurm_job(metadata),
        "Framework": framework,
        "Algorithm": metadata.get("algorithm"),
        "Model": metadata.get("model"),
        "Not monitored": state.get("coverage"),
        "Note": (state.get("note") or {}).get("text"),
    }
    yield from ([name, _text(value)] for name, value in values.items() if value)


def _slurm_job(metadata: JsonObject) -> str:
    """The job with its partition and nodes.

    >>> _slurm_job({"slurm/job_id": "7", "slurm/partition": "gpu", "slurm/node_list": "n[1-2]"})
    '7, gpu, n[1-2]'
    """
    names = ("job_id", "partition", "node_list")
    texts = (str(metadata.get(f"{SLURM_KEY_PREFIX}{name}", "")) for name in names)
    return ", ".join(filter(None, texts))


def _case_lines(case: JsonObject) -> Iterator[str]:
    message = case.get("message") or {}
    subject = message.get("subject") or case["subject"]
    yield f"### {case['severity'].capitalize()}: {_text(subject)}"
    yield from _table(
        ["Began", "Found", "Resolved", "Last good checkpoint"],
        [[_step(case[key]) for key in ("onset_step", "opened_step")]
         + [_step(case.get("resolved_step")), _step(case.get("last_good_step"))]],
    )  # fmt: skip
    if facts := message.get("facts"):
        yield ""
        yield from (f"- {_text(fact)}" for fact in facts)
    for also in message.get("also") or ():
        yield from ("", f"Also: {_text(also)}")
    if remedy := case.get("remedy"):
        yield from ("", f"What to do: {_text(remedy, 1500)}")
    if feedback := case.get("feedback"):
        yield from ("", _text(feedback_text(feedback)))


def _set_up_lines(set_up: JsonObject) -> Iterator[str]:
    """What the checks of the training found, and the facts; nothing without checks."""
    if not set_up["checks"]:
        return
    yield from ("", "## Set-up")
    names = ("check", "result", "evidence", "remedy")
    rows = ([_text(each[name]) for name in names] for each in set_up["checks"])
    yield from _table([name.capitalize() for name in names], rows)
    yield ""
    yield "; ".join(f"{_text(each['name'])}: {_text(each['value'])}" for each in set_up["facts"])


def _insight_rows(answers: JsonObject) -> Iterator[Sequence[Any]]:
    """The stored results, and the gradient norms of the layers."""
    for header in answers.get("api/insight", ())[-_MAX_RESULTS:]:
        data = answers[f"api/insight/{header['id']}"]["data"]
        text = _text(result_text(header["kind"], data))
        yield [_text(header["title"]), _text(header["name"]), _step(header["step"]), text]
    if text := layers_text(answers.get("api/layers?statistic=layer_grad_norm", {})):
        yield ["Gradient flow", "", "", _text(text)]


def _result_row(result: JsonObject) -> Sequence[Any]:
    unit = f", {result['unit']}" if result["unit"] else ""
    values = [value_text(result[key]) for key in ("first", "last", "best")]
    bad = f"{result['bad_count']:,} values" if result["bad_count"] else ""
    extremes = [value_text(result[key]) for key in ("min", "max")]
    return [_text(f"{result['label']}{unit}"), *values, _step(result["best_x"]), *extremes, bad]


def _incident_row(incident: JsonObject) -> Sequence[Any]:
    steps = [_step(incident[key]) for key in ("onset_step", "opened_step", "resolved_step")]
    summary = _text(incident["summary"])
    return [incident["severity"], _code(incident["detector"]), *steps, summary]


def _metric_row(metric: JsonObject) -> Sequence[Any]:
    cells, has_common = [], has_common_value(metric)
    for index, value in enumerate(metric["values"]):
        if value is None:
            cells.append("-")
            continue
        # Bold is the number by which a run is the best.
        level = f"{value_text(value['final'])} in the last tenth"
        is_best = index == metric["best_run"]
        texts = [value_text(value["last"]), f"**{level}**" if is_best else level]
        if value["best"] is not None:
            texts.append(f"best {value_text(value['best'])}")
        if has_common:
            texts.append(f"{value_text(value['at_common'])} at the common end")
        cells.append(", ".join(texts))
    unit = f", {metric['unit']}" if metric["unit"] else ""
    return [_text(f"{metric['label']}{unit}"), *cells]


def _cell(cases: Sequence[JsonObject]) -> str:
    return "; ".join(f"{case['severity']}, step {_step(case['onset_step'])}" for case in cases)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The table after an empty line, which must precede it."""
    yield from ("", f"| {' | '.join(head)} |")
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def _step(step: float | None) -> str:
    return "-" if step is None else f"{step:,.0f}"


def _text(value: Any, max_chars: int = _MAX_TEXT_CHARS) -> str:
    """A text in which names of settings are between backticks, with everything else escaped."""
    parts = ("" if value is None else str(value)[:max_chars]).split("`")
    if len(parts) % 2 == 0:
        # A backtick has no partner.
        return clean("`".join(parts), None, _ESCAPES | {"`": "\\`"}).strip()
    return "".join(
        _code(part) if index % 2 else clean(part, None, _ESCAPES)
        for index, part in enumerate(parts)
    ).strip()


def _code(value: Any) -> str:
    """A name or a value of the run as code."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{clean(text, _MAX_CODE_CHARS, _CODE_ESCAPES).strip() or ' '}`"
