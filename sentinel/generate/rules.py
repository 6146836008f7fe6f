"""Rules: what Prometheus alerts on. One rule per detector, reading its verdict, never redoing it.

Thresholds live with the detectors alone. The text is JSON, which is YAML, and every expression is
one that Prometheus 2.42 and 3 both take.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sentinel.generate.agent_alerts import AgentAlert
from sentinel.generate.detector_docs import DetectorDoc

DOCS = "https://github.com/train-sentinel/train-sentinel/blob/main/docs"

KEEP_FIRING_FOR = "15m"
"""How long an alert outlives its series. When an agent is killed, every series of it goes, which
Prometheus takes for recovery: until this has passed, it does not tell anybody so."""


def prometheus_rules(docs: Iterable[DetectorDoc], agent_alerts: Iterable[AgentAlert]) -> str:
    """The rules file."""
    groups = [
        {"name": "sentinel-detectors", "rules": [_detector_rule(sheet) for sheet in docs]},
        {"name": "sentinel-watches", "rules": [_agent_rule(watch) for watch in agent_alerts]},
    ]
    return json.dumps({"groups": groups}, indent=2) + "\n"


def runbook_url(name: str) -> str:
    """Address of the page that says what to do."""
    return f"{DOCS}/runbooks/{name}.md"


def diagnosis_url() -> str:
    """Address of the page that tells of every cause."""
    return f"{DOCS}/diagnosis.md"


def _detector_rule(doc: DetectorDoc) -> dict[str, Any]:
    firing = f'sentinel_alert_firing{{detector="{doc.name}"}}'
    hushed = f'sentinel_alert_silenced{{detector="{doc.name}"}}'
    # The severity label is that of the series: a finding may be louder than its detector.
    return {
        "alert": doc.alert,
        "expr": f"max by (run, detector, severity) ({firing}) == 1"
        f" unless on (run, detector) (max by (run, detector) ({hushed}) == 1)",
        "keep_firing_for": KEEP_FIRING_FOR,
        "annotations": {
            "summary": f"{doc.headline} (run {{{{ $labels.run }}}})",
            "description": doc.remedy,
            "runbook_url": runbook_url(doc.name),
        },
    }


def _agent_rule(alert: AgentAlert) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.alert, "expr": alert.expr}
    if alert.for_duration:
        rule["for"] = alert.for_duration
    if alert.keep_firing_for:
        rule["keep_firing_for"] = alert.keep_firing_for
    return rule | {
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.remedy,
            "runbook_url": runbook_url(alert.name),
        },
    }
