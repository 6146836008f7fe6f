"""The alerts as rules that Grafana evaluates itself, in a file of its provisioning.

Each rule queries Prometheus (A) and compares the result (C). Templates of Grafana cannot query, so
that the sentences and values of a case are further queries, whose labels include those of the
alert: Grafana attaches them to it without making them part of its identity.
Source: grafana.com/docs/grafana, "Use configuration files to provision alerting resources";
github.com/grafana/grafana, pkg/services/provisioning/alerting and pkg/services/ngalert/eval; read
in November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tools.generate.case_alert import case_state, or_last
from tools.generate.prometheus_rules import GENERATED, OF_CASE, OneLine, runbook_url, yaml_text

DATASOURCE = "sentinel-prometheus"
FOLDER = "sentinel"
"""Also that of the dashboards."""
INTERVAL = "30s"
_WINDOW = OneLine({"from": 600, "to": 0})
_TEXT_FAMILY = "sentinel_case_text_timestamp_seconds"
_TEXTS = {
    **{part: f'part="{part}"' for part in ("title", "place", "since", "remedy", "checkpoint")},
    **{part: f'part="{part}"' for part in ("runbook", "dashboard")},
    **{f"fact{line}": f'part="fact",line="{line}"' for line in (1, 2, 3)},
}
"""Sentences of a case: the matchers of each query, by its name."""
_VALUES = ("confidence", "onset_step", "last_good_step")


def grafana_alerting(groups: Iterable[Mapping[str, Any]]) -> str:
    """Text of the file with a group for each group of rules that has alerts."""
    found = []
    for group in groups:
        rules = [_rule(each) for each in group["rules"] if "alert" in each]
        if rules:
            name = group["name"]
            found.append(
                {"orgId": 1, "name": name, "folder": FOLDER, "interval": INTERVAL, "rules": rules}
            )
    return yaml_text({"apiVersion": 1, "groups": found}, GENERATED)


def uid(alert: str) -> str:
    """The identifier of a rule, of 40 characters at most.

    >>> uid("SentinelKlBlowup")
    'sentinel-kl-blowup'
    """
    return "".join(f"-{each.lower()}" if each.isupper() else each for each in alert)[1:]


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    is_case = rule["alert"] == "SentinelCase"
    queries = {"A": rule["expr"], **(_case_queries() if is_case else {})}
    annotations = _case_annotations() if is_case else rule["annotations"]
    is_watchdog = rule["alert"] == "SentinelWatchdog"
    # Only what fires is in the result, and its value is never negative.
    conditions = [{"evaluator": OneLine(type="gt", params=[-1])}]
    condition = {"refId": "C", "type": "threshold", "expression": "A", "conditions": conditions}
    kept = rule.get("keep_firing_for")
    return {
        "uid": uid(rule["alert"]),
        "title": rule["alert"],
        "condition": "C",
        "data": [
            *(_query(name, expr) for name, expr in queries.items()),
            {"refId": "C", "datasourceUid": "__expr__", "model": condition},
        ],
        "noDataState": "OK",
        # A Prometheus that does not answer is one alert, that of the watchdog.
        "execErrState": "OK" if is_watchdog else "KeepLast",
        "for": rule.get("for", "0s"),
        **({"keepFiringFor": kept} if kept else {}),
        **({"labels": rule["labels"]} if "labels" in rule else {}),
        "annotations": {
            name: re.sub(r"\$value\b", "$values.A.Value", text)
            for name, text in annotations.items()
        },
    }


def _query(name: str, expr: str) -> dict[str, Any]:
    return {
        "refId": name,
        "relativeTimeRange": _WINDOW,
        "datasourceUid": DATASOURCE,
        "model": {"refId": name, "expr": expr, "instant": True},
    }


def _case_queries() -> dict[str, str]:
    """The sentences and values of a case, each with the labels of its alert."""
    joined = f"{case_state()} * on (run, case) group_left "
    texts = {
        name: f"(text) topk by (run, case) (1, {or_last(f'{_TEXT_FAMILY}{{{matchers}}}')})"
        for name, matchers in _TEXTS.items()
    }
    values = {
        name: f"() max by (run, case) ({or_last(f'sentinel_case_{name}')})" for name in _VALUES
    }
    return {name: joined + expr for name, expr in (texts | values).items()}


def _case_annotations() -> dict[str, str]:
    def text(name: str, before: str = "", otherwise: str = "") -> str:
        other = f"{{{{ else }}}}{otherwise}" if otherwise else ""
        return f"{{{{ with $values.{name}.Labels.text }}}}{before}{{{{ . }}}}{other}{{{{ end }}}}"

    def value(name: str, pipeline: str) -> str:
        return f"{{{{ with $values.{name} }}}}{{{{ .Value | {pipeline} }}}}{{{{ end }}}}"

    title = text("title", otherwise="{{ $labels.detector }}")
    return {
        "summary": f"{title}, {text('place', otherwise='run {{ $labels.run }}')}",
        "description": "".join(
            (
                text("since"),
                *(text(name, "\n- ") for name in _TEXTS if name.startswith("fact")),
                text("remedy", "\nWhat to do: "),
                text("checkpoint", "\nLast good checkpoint: "),
            )
        ),
        "cause": "{{ $labels.cause }}",
        "confidence": value("confidence", "humanizePercentage"),
        "onset_step": value("onset_step", 'printf "%.0f"'),
        "last_good_step": value("last_good_step", 'printf "%.0f"'),
        "runbook_url": text("runbook", otherwise=runbook_url(OF_CASE)),
        "dashboard_url": text("dashboard"),
    }
