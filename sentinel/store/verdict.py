"""The verdict on a run: healthy, or what is wrong, since when, why, and what to do.

One object for `/api/run`, `sentinel status` and `wait`, the page and the report. docs/verdict.md
states its keys as a contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.evidence_text import capitalized
from sentinel.model.finding import Severity
from sentinel.model.json_safe import JsonObject
from sentinel.model.run_states import ACTIVE_STATES, FAILED_STATES, STATES_WITHOUT_OUTCOME
from sentinel.pipeline.cases import RUN_END_DETECTORS
from sentinel.store.cases import urgency
from sentinel.store.unmonitored import is_blind, unmonitored_parts

HEALTHY, WARNING, CRITICAL = "healthy", "warning", "critical"
ENDED_WELL, ENDED_BADLY, UNKNOWN = "ended_well", "ended_badly", "unknown"
STATUSES = (CRITICAL, ENDED_BADLY, WARNING, HEALTHY, ENDED_WELL, UNKNOWN)
"""Every status, the worst first."""
UNHEALTHY = frozenset({CRITICAL, ENDED_BADLY, WARNING})
ENDED = frozenset({ENDED_WELL, ENDED_BADLY})

MAX_EVIDENCE, MAX_LISTED_PROBLEMS = 3, 3
_MAX_SUBJECT_CHARS, _MAX_TEXT_CHARS = 300, 1500
_TITLES = {
    HEALTHY: "Healthy",
    WARNING: "Warning",
    CRITICAL: "Critical",
    ENDED_WELL: "Ended well",
    ENDED_BADLY: "Ended badly",
    UNKNOWN: "Unknown",
}


def health(state: Mapping[str, Any], cases: Sequence[JsonObject], now: float) -> JsonObject:
    """The verdict on a run in that state of `/api/run`, with all its cases, at the time `now`.

    `now` is in seconds since the epoch. Keys: run, status (one of `STATUSES`), title, sentence,
    severity, state, is_live, step, since_step, since_time, case, cause, evidence, remedy,
    last_good_checkpoint, others, other_count, past, past_count, not_monitored, age_seconds; see
    docs/verdict.md. What is not known is None, of a text empty. All of it is cleaned of control
    characters and of bounded length.
    """
    problems = [each for each in problems_of(state, cases) if _is_problem(each)]
    status = status_of(state, problems)
    lead, others = (problems[0], problems[1:]) if problems else (None, [])
    past = _past(cases, problems)
    return {
        "run": str(state.get("run", "")),
        "status": status,
        "title": _TITLES[status],
        "sentence": _sentence(state, status, lead),
        "severity": None if lead is None else lead["severity"],
        "state": str(state.get("state", "")),
        "is_live": bool(state.get("is_live", True)),
        "step": state.get("step"),
        **_since(state, status, lead, past),
        "case": None if lead is None else lead["name"],
        "cause": None if lead is None else _cause(lead),
        "evidence": [] if lead is None else _evidence(lead),
        "remedy": _remedy(state, lead),
        "last_good_checkpoint": _last_good_checkpoint(state, lead),
        "others": [_listed(each) for each in others[:MAX_LISTED_PROBLEMS]],
        "other_count": len(others),
        "past": [_listed(each) for each in past[:MAX_LISTED_PROBLEMS]],
        "past_count": len(past),
        "not_monitored": [*_unseen(state), *unmonitored_parts(state)],
        "age_seconds": _age(state, now),
    }


def status_of(state: Mapping[str, Any], problems: Iterable[Mapping[str, Any]]) -> str:
    """The status of a run with these problems, one of `STATUSES`.

    A known problem counts even if no agent answers; `healthy` needs values that are new and that
    detectors read.
    """
    name, severities = str(state.get("state", "")), {each["severity"] for each in problems}
    if name in FAILED_STATES:
        return ENDED_BADLY
    if name == "finished":
        return ENDED_BADLY if CRITICAL in severities else ENDED_WELL
    worst = next((each for each in (CRITICAL, WARNING) if each in severities), None)
    if worst is not None:
        return worst
    is_seen = name in ACTIVE_STATES or (name in STATES_WITHOUT_OUTCOME and _is_log(state))
    is_judged_here = is_seen and not _is_follower(state)
    is_known = is_judged_here and state.get("step") is not None and not is_blind(state)
    return HEALTHY if is_known else UNKNOWN


def problems_of(state: Mapping[str, Any], cases: Sequence[JsonObject]) -> list[JsonObject]:
    """The cases that are the problems of a run in that state, the worst first, see `urgency`.

    These are the open ones, and open incidents of no case. The end of a run, or of one of its
    trainings, closes its cases: of a run that is over, those that lasted until then are its
    problems too. Of a run that failed, the case about that is the first of its severity.
    """
    open_ones = state.get("cases", [])
    names = {name for case in open_ones for name in case.get("incidents", ())}
    single = [
        _as_case(each) for each in state.get("incidents", []) if each.get("name") not in names
    ]
    is_active = state.get("state") in ACTIVE_STATES
    lasted = [] if is_active else [each for each in cases if each.get("lasted_until")]
    has_failed = state.get("state") in FAILED_STATES

    def rank(case: Mapping[str, Any]) -> tuple[int, bool, bool, int]:
        severity, is_over, onset = urgency(case)
        is_of_end = has_failed and case.get("detector") in RUN_END_DETECTORS
        return severity, not is_of_end, is_over, onset

    return sorted([*open_ones, *single, *lasted], key=rank)


def verdict_parts(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a verdict states beside its sentence: labels and texts, only those that are known."""
    cause, checkpoint = verdict["cause"], verdict["last_good_checkpoint"]
    parts = [
        ("Cause", f"{cause['title']}, confidence {cause['confidence_text']}." if cause else ""),
        ("Evidence", " ".join(map(_as_sentence, verdict["evidence"]))),
        ("What to do", _as_sentence(verdict["remedy"])),
        (
            "Last good checkpoint",
            f"{checkpoint_text(checkpoint)}." if verdict["case"] and checkpoint else "",
        ),
        ("Further problems", _listed_text(verdict["others"], verdict["other_count"])),
        ("Over", _listed_text(verdict["past"], verdict["past_count"])),
        (
            "Not monitored",
            " ".join(f"{each['what']}: {each['why']}." for each in verdict["not_monitored"]),
        ),
    ]
    return [(label, text) for label, text in parts if text]


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """The verdict as one paragraph."""
    return " ".join(
        [verdict["sentence"], *(f"{label}: {text}" for label, text in verdict_parts(verdict))]
    )


def checkpoint_text(checkpoint: Mapping[str, Any]) -> str:
    """A checkpoint in words.

    >>> checkpoint_text({"step": 800, "path": "/out/checkpoint-800"})
    'step 800, /out/checkpoint-800'
    """
    path = f", {checkpoint['path']}" if checkpoint["path"] else ""
    return f"step {checkpoint['step']}{path}"


def _is_problem(case: Mapping[str, Any]) -> bool:
    return str(case["severity"]) != Severity.INFO.value


def _is_log(state: Mapping[str, Any]) -> bool:
    """Whether the run is known by its log alone, which no agent follows."""
    return bool(state.get("is_log"))


def _is_follower(state: Mapping[str, Any]) -> bool:
    """Whether the agent passes its records on to that of another node, which judges the run."""
    return bool(state.get("cluster", {}).get("role") == "follower")


def _as_case(incident: Mapping[str, Any]) -> JsonObject:
    """An incident of no case with the keys of a case."""
    return {
        "name": incident.get("name", ""),
        "detector": incident.get("detector", ""),
        "severity": incident["severity"],
        "subject": incident.get("summary", ""),
        "onset_step": incident.get("onset_step", 0),
        "opened_step": incident.get("opened_step", 0),
        "opened_time": incident.get("opened_time"),
        "remedy": incident.get("remedy", ""),
        "last_good_step": incident.get("last_good_step"),
    }


def _past(cases: Sequence[JsonObject], problems: Sequence[JsonObject]) -> list[JsonObject]:
    """The cases that are over and are no problem any more, the worst first."""
    names = {each["name"] for each in problems}
    over = [
        each
        for each in cases
        if each.get("resolved_step") is not None and each["name"] not in names and _is_problem(each)
    ]
    return sorted(over, key=urgency)


def _sentence(state: Mapping[str, Any], status: str, lead: JsonObject | None) -> str:
    if status in ENDED:
        return _end_sentence(state, status, lead)
    if lead is not None:
        return f"{_subject(lead)}; {lead['severity']} since {_onset(lead)}."
    if _is_follower(state):
        return "The agent of another node judges this run."
    if state.get("step") is None:
        return "No step was recorded."
    rest = "" if status == HEALTHY else ", the last one on record; its end was not recorded"
    if is_blind(state):
        rest = ", but no outcome of the run is monitored"
    return f"No problem is open{_at_step(state)}{rest}."


def _end_sentence(state: Mapping[str, Any], status: str, lead: JsonObject | None) -> str:
    name = str(state.get("state", ""))
    end = f"the run {name}{_at_step(state)}"
    if lead is None:
        rest = "no problem was open" if status == ENDED_WELL else "no case explains it"
        return f"{capitalized(end)}; {rest}."
    since = "" if name in FAILED_STATES else f"{lead['severity']} since {_onset(lead)}, and "
    return f"{_subject(lead)}; {since}{end}."


def _since(
    state: Mapping[str, Any], status: str, lead: JsonObject | None, past: Sequence[JsonObject]
) -> JsonObject:
    """Since which step and time (epoch seconds) the status holds; None where it is not known.

    With a problem: its onset, and when it was found. An end without one: the last step, and when it
    ended. A healthy run: when its last problem was over.
    """
    if lead is not None:
        step, time = lead["onset_step"], _time(lead, "opened_time")
    elif status in {*ENDED, UNKNOWN}:
        step = state.get("step")
        time = _time(state, "ended") or _time(state, "last_step_time")
    else:
        last = max(past, key=lambda each: _time(each, "resolved_time") or 0.0, default=None)
        step = None if last is None else last["resolved_step"]
        time = _time(state, "started") if last is None else _time(last, "resolved_time")
    return {"since_step": step, "since_time": time}


def _cause(case: Mapping[str, Any]) -> JsonObject | None:
    diagnosis = case.get("diagnosis")
    if not diagnosis:
        return None
    return {
        "name": diagnosis["cause"],
        "title": clean(diagnosis["title"], _MAX_SUBJECT_CHARS),
        "confidence": diagnosis["confidence"],
        "confidence_text": diagnosis["confidence_text"],
    }


def _evidence(case: Mapping[str, Any]) -> list[str]:
    facts = _message(case).get("facts") or []
    return [clean(str(each), _MAX_SUBJECT_CHARS) for each in facts[:MAX_EVIDENCE]]


def _remedy(state: Mapping[str, Any], lead: Mapping[str, Any] | None) -> str:
    if lead is not None:
        # The message of a case that is over has none.
        return clean(str(lead.get("remedy") or _message(lead).get("remedy", "")), _MAX_TEXT_CHARS)
    if _is_without_agent(state):
        return f"Run `sentinel agent --run {clean(str(state.get('run', '')))}` to start its agent."
    return ""


def _last_good_checkpoint(
    state: Mapping[str, Any], lead: Mapping[str, Any] | None
) -> JsonObject | None:
    """The last checkpoint before the worst problem, or the last one of all; None without any."""
    if lead is None:
        step, path = state.get("last_checkpoint_step"), state.get("last_checkpoint_path", "")
    else:
        step = lead.get("last_good_step")
        path = str(_message(lead).get("checkpoint", "")).partition(", ")[2]
    return None if step is None else {"step": step, "path": clean(str(path), _MAX_SUBJECT_CHARS)}


def _listed(case: Mapping[str, Any]) -> JsonObject:
    return {
        "case": case["name"],
        "severity": case["severity"],
        "subject": _subject(case),
        "since_step": case["onset_step"],
        "until_step": case.get("resolved_step"),
    }


def _listed_text(listed: Sequence[Mapping[str, Any]], count: int) -> str:
    if not count:
        return ""
    named = "; ".join(
        f"{each['subject']} ({each['severity']}, {_span_text(each)})" for each in listed
    )
    more = f"; and {count - len(listed)} more" if count > len(listed) else ""
    return f"{named}{more}."


def _span_text(listed: Mapping[str, Any]) -> str:
    since, until = listed["since_step"], listed["until_step"]
    return f"step {since:,}" if until is None else f"steps {since:,} to {until:,}"


def _unseen(state: Mapping[str, Any]) -> list[JsonObject]:
    """Why the run is not monitored at all any more."""
    if _is_follower(state):
        what, why = "the run", "the agent of another node judges it"
        head = str(state["cluster"].get("head", ""))
        remedy = f"ask the agent of the head ({clean(head)})" if head else ""
        return [{"what": what, "why": why, "remedy": remedy}]
    if not _is_without_agent(state):
        return []
    step = state.get("step")
    what = "the run" if step is None else f"the run since step {step:,}"
    return [{"what": what, "why": "no agent answers", "remedy": _remedy(state, None)}]


def _is_without_agent(state: Mapping[str, Any]) -> bool:
    is_live = state.get("is_live", True)
    return not is_live and state.get("state") in STATES_WITHOUT_OUTCOME and not _is_log(state)


def _age(state: Mapping[str, Any], now: float) -> float | None:
    """Seconds since the newest step, or the end of the run, in two digits: more say no more."""
    times = (_time(state, name) for name in ("last_step_time", "ended", "started"))
    newest = max((time for time in times if time is not None), default=None)
    return None if newest is None else float(f"{max(now - newest, 0.0):.2g}")


def _at_step(state: Mapping[str, Any]) -> str:
    step = state.get("step")
    return "" if step is None else f" at step {step:,}"


def _onset(case: Mapping[str, Any]) -> str:
    return f"step {case['onset_step']:,}"


def _subject(case: Mapping[str, Any]) -> str:
    subject = _message(case).get("subject") or case.get("subject") or ""
    return capitalized(clean(str(subject), _MAX_SUBJECT_CHARS).strip().rstrip("."))


def _message(case: Mapping[str, Any]) -> Mapping[str, Any]:
    message: Mapping[str, Any] = case.get("message") or {}
    return message


def _as_sentence(text: str) -> str:
    text = capitalized(text)
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."


def _time(fields: Mapping[str, Any], name: str) -> float | None:
    """A time in seconds since the epoch; None if it is not known, or NaN."""
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) and 0 < value < inf else None
