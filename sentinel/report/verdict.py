"""The verdict on a run: healthy, or what went wrong, when, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.evidence_text import capitalized
from sentinel.model.json_safe import JsonObject
from sentinel.model.quantity_text import format_duration, format_number
from sentinel.report.comparison import health_of, run_seconds
from sentinel.store.cases import urgency

_MAX_RESULTS = 3
_MAX_CHARS = 1500
_SHOWN_SIGNALS = ("loss", "reward", "eval/loss", "eval_loss", "accuracy", "eval/accuracy")
"""The results that the verdict names."""
_TITLES = {
    "ok": "Healthy",
    "warning": "Warnings",
    "critical": "Went wrong",
    "unknown": "No step was recorded",
}
_END_TEXTS = {
    "running": "It is running",
    "starting": "It is starting",
    "stalled": "It is stalled",
    "finished": "It ended",
    "failed": "It failed",
    "died": "It died",
    "unfinished": "Its end was not recorded; its last record is",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`health` is ok, warning, critical or unknown; `title` names it, and each part is a sentence.

    `what` is the worst problem, `when` its steps and times, `why` its evidence, `remedy` what to
    do, `others` the further problems, and `run` how far the run came. Unknown parts are empty.
    """

    health: str
    title: str
    what: str = ""
    when: str = ""
    why: str = ""
    remedy: str = ""
    others: str = ""
    run: str = ""
    coverage: str = ""

    @property
    def text(self) -> str:
        """The verdict as one paragraph."""
        why = f"Evidence: {self.why}" if self.why else ""
        remedy = f"What to do: {self.remedy}" if self.remedy else ""
        parts = (self.what, self.when, why, remedy, self.others, self.run, self.coverage)
        return " ".join(part for part in parts if part)

    def to_dict(self) -> JsonObject:
        """The parts and the paragraph as plain data."""
        return asdict(self) | {"text": self.text}


def judge(
    state: Mapping[str, Any], cases: Sequence[JsonObject], results: Sequence[JsonObject]
) -> Verdict:
    """The verdict by the state of `/api/run`, all cases of the run and its `results` by metric."""
    health = health_of(state, cases)
    run = _progress(state, results)
    coverage = _sentence(_text(state.get("coverage")))
    if not cases:
        what = {
            "ok": "No incident was found.",
            "unknown": "Sentinel has no record of a step.",
        }.get(health, "")
        return Verdict(health, _TITLES[health], what=what, run=run, coverage=coverage)
    ranked = sorted(cases, key=urgency)
    worst, others = ranked[0], ranked[1:]
    message = worst.get("message") or {}
    evidence = [_text(fact) for fact in message.get("facts") or []]
    checkpoint = _text(message.get("checkpoint"))
    remedy = _text(worst.get("remedy") or message.get("remedy"))
    if checkpoint or worst.get("last_good_step") is not None:
        good = checkpoint or f"step {worst['last_good_step']}"
        remedy = f"{_sentence(remedy)} Last good checkpoint: {good}.".strip()
    return Verdict(
        health,
        _TITLES[health],
        what=_sentence(f"{worst['severity'].capitalize()}: {_subject(worst)}"),
        when=_when(worst),
        why=" ".join(map(_sentence, evidence[:_MAX_RESULTS])),
        remedy=remedy,
        others=_others(others),
        run=run,
        coverage=coverage,
    )


def _subject(case: Mapping[str, Any]) -> str:
    return _text((case.get("message") or {}).get("subject") or case.get("subject"))


def _when(case: Mapping[str, Any]) -> str:
    onset, opened, resolved = case["onset_step"], case["opened_step"], case.get("resolved_step")
    found = "" if onset == opened else f" and was found at step {opened:,}"
    end = "and is open" if resolved is None else f"and lasted until step {resolved:,}"
    return f"It began at step {onset:,}{found}, {end}."


def _others(cases: Sequence[JsonObject]) -> str:
    if not cases:
        return ""
    named = "; ".join(
        f"{_subject(case)} ({case['severity']}, step {case['onset_step']:,})"
        for case in cases[:_MAX_RESULTS]
    )
    more = f"; and {len(cases) - _MAX_RESULTS} more" if len(cases) > _MAX_RESULTS else ""
    plural = "case" if len(cases) == 1 else "cases"
    return f"{len(cases)} further {plural}: {named}{more}."


def _progress(state: Mapping[str, Any], results: Sequence[JsonObject]) -> str:
    """How far the run came, in which time, and how its first metrics developed."""
    step = state.get("step")
    if step is None:
        return ""
    start = _END_TEXTS.get(str(state.get("state")), f"It is {_text(state.get('state'))}")
    seconds = run_seconds(state)
    lasted = f" after {format_duration(seconds)}" if seconds is not None else ""
    progress = f"{start} at step {step:,}{lasted}."
    changes = [
        f"{each['label']} from {format_number(each['first'])} to {format_number(each['last'])}"
        for each in results
        if each["signal"] in _SHOWN_SIGNALS and None not in (each["first"], each["last"])
    ]
    return f"{progress} {', '.join(changes[:_MAX_RESULTS])}.".replace(" .", "").strip()


def _text(value: Any) -> str:
    return clean(str(value), _MAX_CHARS).strip() if value else ""


def _sentence(text: str) -> str:
    if not text:
        return ""
    text = capitalized(text)
    return text if text.endswith((".", "!", "?")) else f"{text}."
