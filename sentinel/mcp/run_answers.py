"""What coding agents may ask about runs, as plain data; rendering it fences the text of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from sentinel.mcp.fence import OwnText
from sentinel.mcp.run_access import AnswerError, RunAccess, unknown_name
from sentinel.mcp.vocabulary import (
    CHECK_RESULTS,
    health_text,
    problem_text,
    resolution_text,
    result_text,
    severity_text,
    state_text,
)
from sentinel.model.json_safe import JsonObject
from sentinel.model.number_ranges import ranges_text
from sentinel.model.quantity_text import format_duration, format_number
from sentinel.report.comparison import MAX_RUNS, ComparedRun, compare, compare_settings
from sentinel.report.own_runs import own_runs
from sentinel.report.what_changed import what_changed
from sentinel.signals.key_words import nearest_signal
from sentinel.stats.departing_ranks import departing_ranks
from sentinel.store.cases import urgency
from sentinel.store.silences import format_utc_time
from sentinel.store.wait_conditions import Outcome, WaitEnd, check_conditions, find_end
from sentinel.transport.paths import home_dir
from sentinel.web.run_routes import RunView
from sentinel.web.runbooks import read_runbook

MAX_LISTED = 50
MAX_POINTS = 50
"""Points of a curve."""
RANK_COLUMNS = 10
"""Parts of the steps of a curve in which ranks are compared."""
STEPS_AROUND = 100
"""Steps before and after the one that is asked for."""
MAX_SAMPLES = 20
MAX_DEPARTURES, MAX_OWN_SECONDS = 6, 2.0
MAX_ONSETS = 5
"""Steps at which one problem began in one run."""


def list_runs(access: RunAccess, words: str = "", limit: int = 10) -> JsonObject:
    """The newest runs that these words select, with state, health and worst open case."""
    found = access.rows(words, min(max(limit, 1), MAX_LISTED))
    return {
        "total": found["total"],
        "matched": found["matched"],
        "runs": [_listed(row) for row in found["runs"]],
    }


def _listed(row: Mapping[str, Any]) -> JsonObject:
    age, worst = row.get("age"), row.get("worst_case")
    listed = {
        "run": str(row["run"]),
        "state": state_text(row["state"]),
        "health": health_text(row["health"]),
        "step": row.get("step"),
        "is_live": row["is_live"],
        "last_step_ago": None if age is None else OwnText(format_duration(age, parts=1)),
    }
    return listed | ({"worst_case": str(worst["subject"])} if worst else {})


def health(access: RunAccess, run: str) -> JsonObject:
    """The verdict on a run, see `sentinel.store.verdict.health`."""
    view = access.view(run)
    state = view.read_state()
    verdict = state["verdict"]
    return verdict_answer(verdict) | _notices(state)


def waited(access: RunAccess, run: str, conditions: Sequence[str], *, is_last: bool) -> JsonObject:
    """How a wait ends with the verdict now, and that verdict; empty if it goes on.

    If this look `is_last`, a wait that would go on ends by its timeout.
    """
    try:
        check_conditions(conditions)
    except ValueError as error:
        raise AnswerError(str(error)) from None
    view = access.view(run)
    verdict = view.read_state()["verdict"]
    end = find_end(conditions, verdict)
    if end is None and not is_last:
        return {}
    end = end or WaitEnd(Outcome.TIMEOUT)
    answer = {"outcome": OwnText(end.outcome.value), "condition": OwnText(end.condition)}
    return answer | verdict_answer(verdict)


def _notices(state: Mapping[str, Any]) -> JsonObject:
    """What has to be known of the reading of a log, such as that it is not complete."""
    notices = [str(each["text"]) for each in state.get("log", {}).get("notices", ())]
    return {"notices": notices} if notices else {}


def _onset_step(verdict: Mapping[str, Any]) -> int | None:
    """The onset of the worst problem; None without one."""
    return verdict["since_step"] if verdict["case"] else None


def verdict_answer(verdict: Mapping[str, Any]) -> JsonObject:
    """A verdict in short: the words of sentinel as its own, the time in words, no empty lists."""
    cause = verdict["cause"]
    age = verdict["age_seconds"]
    answer = {
        "run": verdict["run"],
        "status": health_text(verdict["status"]),
        "sentence": verdict["sentence"],
        "state": state_text(verdict["state"]),
        "is_live": verdict["is_live"],
        "step": verdict["step"],
        "since_step": verdict["since_step"],
        "since_time": _time_text(verdict["since_time"]),
        "case": _short_name(verdict["case"]) if verdict["case"] else None,
        "detector": _detector(verdict["case"]) if verdict["case"] else None,
        "onset_step": _onset_step(verdict),
        "cause": problem_text(cause["name"]) if cause else None,
        "confidence": cause["confidence"] if cause else None,
        "remedy": verdict["remedy"],
        "last_good_checkpoint": _checkpoint(verdict["last_good_checkpoint"]),
        "data_age": None if age is None else OwnText(format_duration(age, parts=1)),
    }
    lists = {
        "evidence": verdict["evidence"],
        "further_problems": [_listed_case(each) for each in verdict["others"]],
        "over": [_listed_case(each) for each in verdict["past"]],
        "not_monitored": [f"{each['what']}: {each['why']}" for each in verdict["not_monitored"]],
    }
    return answer | {key: found for key, found in lists.items() if found}


def _listed_case(case: Mapping[str, Any]) -> JsonObject:
    return {
        "case": _short_name(case["case"]),
        "severity": severity_text(case["severity"]),
        "since_step": case["since_step"],
        "until_step": case["until_step"],
    }


def _short_name(case: str) -> str:
    """The name of a case without its run."""
    return case.rpartition("/")[2]


def _detector(case: str) -> str:
    """The detector that opened a case, by the name of the case: run/detector#episode."""
    return problem_text(_short_name(case).partition("#")[0])


def _checkpoint(checkpoint: Mapping[str, Any] | None) -> JsonObject | None:
    if checkpoint is None:
        return None
    path = str(checkpoint["path"])
    return {"step": checkpoint["step"]} | ({"path": path} if path else {})


def _time_text(time: float | None) -> str | None:
    return OwnText(format_utc_time(time)) if time and isfinite(time) else None


def why(access: RunAccess, run: str, case: str = "", *, detail: bool = False) -> JsonObject:
    """A case with evidence, cause, remedy and runbook: the named one.

    By default that of the verdict, else the worst one that is over.
    """
    view = access.view(run)
    state = view.read_state()
    problem = state["verdict"]["case"]
    cases = sorted(view.reader.cases(), key=lambda each: (each["name"] != problem, urgency(each)))
    if not cases:
        note = OwnText("No case was opened in this run.")
        return {"run": view.run, "cases": 0, "note": note, **_notices(state)}
    chosen = _find_case(cases, case) if case else cases[0]
    others = [each for each in cases if each is not chosen]
    answer = {"run": view.run, **case_answer(chosen), **_runbook(chosen, detail=detail)}
    return answer | {"other_cases": [_short_case(each) for each in others]}


def case_answer(case: Mapping[str, Any]) -> JsonObject:
    """A case of `RunReader.cases`: what happened, when, why, and what to do."""
    message, diagnosis = case.get("message") or {}, case.get("diagnosis") or {}
    answer = {
        **_short_case(case),
        "since": str(message.get("since") or ""),
        "title": str(message.get("subject") or case["subject"]),
        "cause": None,
        "evidence": [str(fact) for fact in message.get("facts") or ()],
        "remedy": str(case.get("remedy") or ""),
        "last_good_step": case.get("last_good_step"),
    }
    if ranks := case.get("ranks"):
        answer["ranks"] = OwnText(ranges_text(ranks))
    if diagnosis:
        answer["cause"] = problem_text(diagnosis["cause"])
        answer["confidence"] = diagnosis["confidence"]
    elif possible := case.get("possible_causes"):
        answer["possible_causes"] = [problem_text(each["cause"]) for each in possible]
    return answer


def _find_case(cases: Sequence[JsonObject], name: str) -> JsonObject:
    """The case with an incident of that name, with or without the run in it, or that detector."""
    # The first of a detector is the most urgent one.
    by_name: dict[str, JsonObject] = {}
    for case in cases:
        for incident in case["incidents"]:
            short = _short_name(str(incident))
            for each in (str(incident), short, short.partition("#")[0]):
                by_name.setdefault(each, case)
    if name not in by_name:
        raise unknown_name("case", name, by_name)
    return by_name[name]


def _short_case(case: Mapping[str, Any]) -> JsonObject:
    return {
        "case": _short_name(str(case["name"])),
        "detector": _detector(str(case["name"])),
        "severity": severity_text(case["severity"]),
        "onset_step": case["onset_step"],
        "found_at_step": case["opened_step"],
        "over_at_step": case.get("resolved_step"),
        "resolution": resolution_text(case["resolution"]) if case.get("resolution") else None,
    }


def _runbook(case: Mapping[str, Any], *, detail: bool) -> JsonObject:
    """The runbook of the cause, else of the detector: what confirms it, or all of it."""
    diagnosis = case.get("diagnosis") or {}
    name = str(diagnosis.get("cause") or case.get("detector") or "")
    text = read_runbook(name)
    if text is None:
        return {}
    if detail:
        return {"runbook": OwnText(name), "runbook_text": OwnText(_without_comments(text))}
    section = _section(text, "What confirms it") or _section(text, "What to check")
    return {"runbook": OwnText(name), "check": OwnText(section)}


def _without_comments(text: str) -> str:
    return re.sub(r"<!--.*?-->\n*", "", text, flags=re.DOTALL)


def _section(text: str, title: str) -> str:
    found = re.search(rf"^## {title}\n+(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def curve(  # noqa: PLR0913 - what is asked for
    access: RunAccess,
    run: str,
    signal: str,
    step: int | None = None,
    around: int = STEPS_AROUND,
    *,
    detail: bool = False,
) -> JsonObject:
    """A signal, of the whole run or around a step, and the ranks that depart from the others."""
    view = access.view(run)
    names = [str(each["name"]) for each in view.reader.signals()]
    if signal not in names:
        raise unknown_name("signal", signal, names, nearest_signal(signal))
    start, end = (None, None) if step is None else (float(step - around), float(step + around))
    found = view.reader.series([signal], points=MAX_POINTS, start=start, end=end)
    points = found["series"].get(signal, {"x": []})
    inside = [
        index
        for index, x in enumerate(points["x"])
        if (start is None or x >= start) and (end is None or x <= end)
    ][-MAX_POINTS:]
    if not inside:
        raise AnswerError("The signal has no value in these steps.")
    keys = ("min", "max", "rank_min", "rank_max", "worst_rank") if detail else ()
    columns = {key: _picked(points[key], inside) for key in keys if points.get(key)}
    return {
        "run": view.run,
        "signal": signal,
        "step": _picked(points["x"], inside),
        "value": _picked(points["mean"], inside),
        **columns,
        "not_finite_at": points["bad"][:MAX_POINTS],
        "departing_ranks": _departing(view, signal, start, end),
    }


def _picked(values: Sequence[Any], indices: Iterable[int]) -> list[Any]:
    return [values[index] for index in indices]


def _departing(view: RunView, signal: str, start: float | None, end: float | None) -> Any:
    """The ranks that depart; None if values of ranks are not stored."""
    grid = view.reader.rank_grid(signal, columns=RANK_COLUMNS, start=start, end=end)
    if signal not in grid["signals"]:
        return None
    return [
        {
            "rank": each.rank,
            "from_about_step": grid["x"][each.first_column],
            "value": each.value,
            "median_of_ranks": each.others,
        }
        for each in departing_ranks(grid["ranks"], grid["values"])[:RANK_COLUMNS]
    ]


def samples(
    access: RunAccess, run: str, step: int | None = None, search: str = "", limit: int = 3
) -> JsonObject:
    """The newest texts that the model generated."""
    view = access.view(run)
    found = view.reader.samples(step, min(max(limit, 1), MAX_SAMPLES), search[:200])
    return {"run": view.run, "samples": [_sample(each) for each in found]}


def _sample(sample: Mapping[str, Any]) -> JsonObject:
    rewards = [
        f"{name or 'reward'} {'not finite' if value is None else format_number(value)}"
        for name, value in sample["rewards"].items()
    ]
    return {
        "step": sample["step"],
        "rank": sample["rank"],
        "rewards": rewards,
        "is_truncated": sample["finished"] is False,
        "prompt": str(sample["prompt"]),
        "completion": str(sample["completion"]),
    }


def compare_runs(access: RunAccess, runs: Sequence[str]) -> JsonObject:
    """Results, problems and settings of runs side by side; lists have a value for each run."""
    if not 1 < len(runs) <= MAX_RUNS:
        raise AnswerError(f"Give 2 to {MAX_RUNS} runs.")
    views = [access.view(run) for run in runs]
    compared = [
        ComparedRun(view.run, view.reader, view.read_state(), view.directory) for view in views
    ]
    found = compare(compared, points=2 * MAX_POINTS)
    return {
        "runs": [_compared(each) for each in found["runs"]],
        "problems": [
            {
                "title": str(each["title"]),
                "onset_steps": [
                    [case["onset_step"] for case in cell[:MAX_ONSETS]] for cell in each["cells"]
                ],
            }
            for each in found["problems"]
        ],
        "results": [_result(each) for each in found["metrics"]],
        "settings_that_differ": _setting_lines(found["settings"]),
        "equal_settings": found["same_settings"],
    }


def _compared(run: Mapping[str, Any]) -> JsonObject:
    return {
        "run": str(run["name"]),
        "state": state_text(run["state"]),
        "health": health_text(run["health"]),
        "step": run["step"],
        "seconds": run["seconds"],
    }


def _result(metric: Mapping[str, Any]) -> JsonObject:
    return {
        "signal": str(metric["signal"]),
        "at_end": [each and each["final"] for each in metric["values"]],
        "at_last_common_step": [each and each["at_common"] for each in metric["values"]],
        "best_run": metric["best_run"],
    }


def _setting_lines(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"{each['name']}: {' | '.join(_value_text(value) for value in each['values'])}"
        for each in settings
    ]


def _value_text(value: Any) -> str:
    if value is None:
        return "not set"
    return format_number(value) if isinstance(value, float) else str(value)


def explain_change(access: RunAccess, good: str, bad: str) -> JsonObject:
    """Where the bad run departs from the good one, and what differs, the likeliest cause first."""
    views = [access.view(run) for run in (good, bad)]
    settings = [view.reader.metadata() for view in views]
    compared = [
        ComparedRun(view.run, view.reader, view.read_state(), view.directory) for view in views
    ]
    found = what_changed(compared, own_runs(home_dir(), settings[-1], MAX_OWN_SECONDS))
    differing, same = compare_settings(settings)
    return {
        "good": views[0].run,
        "bad": views[1].run,
        "departure": str(found["text"]),
        "conclusion": str(found["conclusion"]),
        "departures": [
            {"signal": str(each["signal"]), "step": each["step"]}
            for each in found["departures"][:MAX_DEPARTURES]
        ],
        "differs": _setting_lines(differing),
        "equal": same,
        "note": OwnText("Each line: name: value in good | value in bad. What is not stored of"
                        " both runs, such as the data, may differ too."),
    }  # fmt: skip


def last_good_checkpoint(access: RunAccess, run: str) -> JsonObject:
    """The last checkpoint before the worst problem, or the newest one of all without a problem."""
    view = access.view(run)
    state = view.read_state()
    verdict = state["verdict"]
    saved = state.get("last_checkpoint_time")
    return {
        "run": view.run,
        "last_good_checkpoint": _checkpoint(verdict["last_good_checkpoint"]),
        "status": health_text(verdict["status"]),
        "onset_step": _onset_step(verdict),
        "newest_checkpoint_step": state.get("last_checkpoint_step"),
        "saved": _time_text(saved),
    }


def preflight_result(access: RunAccess, run: str, *, detail: bool = False) -> JsonObject:
    """What the checks of the set-up found in the first steps; those that passed with `detail`."""
    view = access.view(run)
    found = view.reader.set_up()
    checks = found["checks"]
    counts = {
        result.replace(" ", "_"): sum(each["result"] == result for each in checks)
        for result in CHECK_RESULTS
    }
    shown = checks if detail else [each for each in checks if each["result"] == "found"]
    return {
        "run": view.run,
        **counts,
        "checks": [
            {
                "check": str(each["check"]),
                "result": result_text(each["result"]),
                "step": each["step"],
                "evidence": str(each["evidence"]),
                "remedy": str(each["remedy"]),
            }
            for each in shown
        ],
        "set_up": [f"{each['name']}: {each['value']}" for each in found["facts"]],
    }
