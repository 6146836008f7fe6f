"""Rules: what Prometheus alerts on. One rule per detector, reading its verdict, never redoing it.

Thresholds live with the detectors alone. The text is JSON, which is YAML, and every expression is
one that Prometheus 2.42 and 3 both take.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sentinel.generate.agent_alerts import Watch
from sentinel.generate.detector_docs import DataSheet

DOCS = "https://github.com/train-sentinel/train-sentinel/blob/main/docs"

KEEP_FIRING = "15m"
"""How long an alert outlives its series. When an agent is killed, every series of it goes, which
Prometheus takes for recovery: until this has passed, it does not tell anybody so."""


def rules(sheets: Iterable[DataSheet], watches: Iterable[Watch]) -> str:
    """The rules file."""
    groups = [
        {"name": "sentinel-detectors", "rules": [_judged(sheet) for sheet in sheets]},
        {"name": "sentinel-watches", "rules": [_watched(watch) for watch in watches]},
    ]
    return json.dumps({"groups": groups}, indent=2) + "\n"


def runbook_url(name: str) -> str:
    """Address of the page that says what to do."""
    return f"{DOCS}/runbooks/{name}.md"


def causes_url() -> str:
    """Address of the page that tells of every cause."""
    return f"{DOCS}/diagnosis.md"


def _judged(sheet: DataSheet) -> dict[str, Any]:
    firing = f'sentinel_alert_firing{{detector="{sheet.name}"}}'
    hushed = f'sentinel_alert_silenced{{detector="{sheet.name}"}}'
    # The severity label is that of the series: a finding may be louder than its detector.
    return {
        "alert": sheet.alert,
        "expr": f"max by (run, detector, severity) ({firing}) == 1"
        f" unless on (run, detector) (max by (run, detector) ({hushed}) == 1)",
        "keep_firing_for": KEEP_FIRING,
        "annotations": {
            "summary": f"{sheet.headline} (run {{{{ $labels.run }}}})",
            "description": sheet.remedy,
            "runbook_url": runbook_url(sheet.name),
        },
    }


def _watched(watch: Watch) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": watch.alert, "expr": watch.expr}
    if watch.wait:
        rule["for"] = watch.wait
    if watch.keep:
        rule["keep_firing_for"] = watch.keep
    return rule | {
        "labels": {"severity": watch.severity},
        "annotations": {
            "summary": watch.summary,
            "description": watch.remedy,
            "runbook_url": runbook_url(watch.name),
        },
    }
