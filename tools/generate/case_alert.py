"""The Prometheus alert of a case: one for each fault, with cause, facts, remedy and checkpoint.

Its labels identify the alert and hold no values, so the values are series of the case, and the
sentences are labels of `sentinel_case_text_timestamp_seconds`. Annotations are evaluated again at
every evaluation and do not change the alert.
"""

from __future__ import annotations

from typing import Any

ACTIVE_SELECTOR = '{__name__=~"sentinel_(run|node)_active"}'
"""1 while the run is active, on the head node and on every follower node."""

CASE_HOLD = "24h"
"""How long the last values of an agent that is gone count. Its series disappear, which Prometheus
takes for a recovery, but a run that died has not recovered when its agent leaves. A case that ends
while its agent runs is resolved at once."""

NOT_IN_A_CASE = "unless on (run, detector) last_over_time(sentinel_case_incident[5m])"
"""Excludes the alert of a detector whose incident is part of a case, which has its own alert.
It does so for some minutes after the case too, since an alert of a detector is kept for longer."""

_MATCHERS = "run=%[1]q,case=%[2]q"
"""Matchers of the series of the alert's case, for printf with run and case."""


def case_rule(runbook_url: str) -> dict[str, Any]:
    """The rule `SentinelCase`; `runbook_url` is used where the agent gives no address of its own.

    The agent serves the runbooks, so that they are there without the internet.
    """
    return {
        "alert": "SentinelCase",
        "expr": f"{case_state()} == 1",
        "annotations": {
            "summary": _headline("title"),
            "resolved_summary": _headline("name"),
            "description": _description(),
            "cause": _first_text("cause", otherwise="{{ $labels.cause }}"),
            "confidence": _value("confidence", "humanizePercentage"),
            "onset_step": _value("onset_step", 'printf "%.0f"'),
            "last_good_step": _value("last_good_step", 'printf "%.0f"'),
            "checkpoint": _first_text("checkpoint"),
            "remedy": _first_text("remedy"),
            "runbook_url": _first_text("runbook", otherwise=runbook_url),
            "dashboard_url": _first_text("dashboard"),
        },
    }


def case_state() -> str:
    """PromQL of the state of each alert of a case: 1 while it fires."""
    return f"max by (run, case, cause, severity, detector) ({or_last('sentinel_case_firing')})"


def or_last(selector: str) -> str:
    """PromQL of the series, and of runs whose agent is gone, of their last samples."""
    return (
        f"{selector} or (last_over_time({selector}[{CASE_HOLD}]) unless on (run) {ACTIVE_SELECTOR})"
    )


def _headline(part: str) -> str:
    what = _first_text(part, otherwise="{{ $labels.detector }}")
    return f"{what}, {_first_text('place', otherwise='run {{ $labels.run }}')}"


def _description() -> str:
    """The notification as text, without its headline."""
    return "".join(
        (
            _each_text("since", ""),
            _each_text("fact", "\n- "),
            _each_text("remedy", "\nWhat to do: "),
            _each_text("checkpoint", "\nLast good checkpoint: "),
            _each_text("also", "\nAlso: "),
            _each_text("link", "\n"),
        )
    )


def _value(name: str, pipeline: str) -> str:
    """The value of a series of the case, or nothing if there is none."""
    selector = f"sentinel_case_{name}{{{_MATCHERS}}}"
    query = _query(f"{selector} or on () last_over_time({selector}[{CASE_HOLD}])")
    return f"{{{{ with {query} }}}}{{{{ . | first | value | {pipeline} }}}}{{{{ end }}}}"


def _texts(part: str) -> str:
    """A query of the sentences of that kind; of an agent that is gone, those of its last scrape."""
    selector = f'sentinel_case_text_timestamp_seconds{{{_MATCHERS},part="{part}"}}'
    last = f"last_over_time({selector}[{CASE_HOLD}])"
    newest = f"({last} == on () group_left () max({last}))"
    return _query(f"{selector} or on () {newest}")


def _first_text(part: str, otherwise: str = "") -> str:
    other = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f'{{{{ with {_texts(part)} }}}}{{{{ . | first | label "text" }}}}{other}{{{{ end }}}}'


def _each_text(part: str, prefix: str) -> str:
    texts = f'{_texts(part)} | sortByLabel "line"'
    return f"{{{{ range {texts} }}}}{prefix}{{{{ .Labels.text }}}}{{{{ end }}}}"


def _query(expr: str) -> str:
    return f"query (printf `{expr}` $labels.run $labels.case)"
