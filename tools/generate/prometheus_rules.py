"""Prometheus rules: alerts of cases, of each detector and of the agent, and recording rules.

An alert reads the state that the agent exports and never repeats a threshold. Every expression
works in Prometheus 2.42 and 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import yaml

from sentinel.assets.export import DOCS
from tools.generate.agent_alerts import AgentAlert
from tools.generate.case_alert import NOT_IN_A_CASE, case_rule
from tools.generate.detector_docs import DetectorDoc
from tools.generate.recording_rules import RECORDING_RULES

GENERATED = "Written by `make generate`."
KEEP_FIRING_FOR = "15m"
"""How long the alert of a detector outlives its series, which disappear with a killed agent."""


def prometheus_rules(docs: Iterable[DetectorDoc], agent_alerts: Iterable[AgentAlert]) -> str:
    """Text of the rules file."""
    return yaml_text({"groups": rule_groups(docs, agent_alerts)}, GENERATED)


def detector_rule_tests(docs: Iterable[DetectorDoc]) -> str:
    """Text of the unit tests of the alerts of all detectors, for `promtool test rules`.

    Run `fires` has the incident, in `silenced` it is silenced, in `case` it is part of a case.
    After the sixth minute there is none, and the alert lasts for `KEEP_FIRING_FOR`.
    """
    rules = [_detector_rule(doc) for doc in docs]
    names = [doc.name for doc in docs]
    incident = "1x24 0x100"
    series = {
        f'sentinel_alert_firing{{run="{run}", detector="{name}", severity="warning"}}': incident
        for name in names
        for run in ("fires", "silenced", "case")
    }
    for name in names:
        series[f'sentinel_alert_silenced{{run="silenced", detector="{name}"}}'] = incident
        series[f'sentinel_case_incident{{run="case", case="a#1", detector="{name}"}}'] = incident
    checks = [_detector_checks(name, rule) for name, rule in zip(names, rules, strict=True)]
    test = {
        "name": "each detector's alert fires in the run that has its incident, and ends",
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [check for each in checks for check in each],
    }
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    return yaml_text(document, GENERATED)


def _detector_checks(name: str, rule: dict[str, Any]) -> list[dict[str, Any]]:
    annotations = {
        key: text.replace("{{ $labels.run }}", "fires") for key, text in rule["annotations"].items()
    }
    labels = {"run": "fires", "detector": name, "severity": "warning"}
    alert = {"exp_labels": labels, "exp_annotations": annotations}
    return [
        {"eval_time": "5m", "alertname": rule["alert"], "exp_alerts": [alert]},
        {"eval_time": "30m", "alertname": rule["alert"], "exp_alerts": []},
    ]


OF_CASE = (
    '{{ if eq $labels.cause "none" }}{{ $labels.detector }}{{ else }}{{ $labels.cause }}{{ end }}'
)
"""Template of the name of the runbook of a case: that of its cause, else that of its detector."""


def rule_groups(
    docs: Iterable[DetectorDoc], agent_alerts: Iterable[AgentAlert]
) -> list[dict[str, Any]]:
    """The groups of rules as plain data."""
    return [
        {
            "name": "sentinel-cases",
            "rules": [case_rule(runbook_url(OF_CASE))],
        },
        {"name": "sentinel-detectors", "rules": [_detector_rule(doc) for doc in docs]},
        {"name": "sentinel-agent", "rules": [_agent_rule(alert) for alert in agent_alerts]},
        {"name": "sentinel-records", "rules": [asdict(rule) for rule in RECORDING_RULES]},
    ]


def runbook_url(name: str) -> str:
    """URL of the runbook of an alert."""
    return f"{DOCS}/runbooks/{name}.md"


def diagnosis_url() -> str:
    """URL of the page of all causes."""
    return f"{DOCS}/diagnosis.md"


def _detector_rule(doc: DetectorDoc) -> dict[str, Any]:
    firing = f'sentinel_alert_firing{{detector="{doc.name}"}}'
    silenced = f'sentinel_alert_silenced{{detector="{doc.name}"}}'
    # The severity label is that of the series, since a finding may override its detector's.
    return {
        "alert": doc.alert,
        "expr": f"max by (run, detector, severity) ({firing}) == 1"
        f" unless on (run, detector) (max by (run, detector) ({silenced}) == 1)"
        f" {NOT_IN_A_CASE}",
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


WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, as in the files written by hand."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > WIDTH else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


class OneLine(dict[str, Any]):
    """A mapping that is written on one line."""


def _one_line_node(dumper: _Dumper, data: OneLine) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True)


_Dumper.add_representer(str, _text_node)
_Dumper.add_representer(OneLine, _one_line_node)


def yaml_text(data: object, comment: str = "") -> str:
    """The document of `data`, below a comment of one line."""
    options: dict[str, Any] = {"sort_keys": False, "width": WIDTH, "allow_unicode": True}
    text: str = yaml.dump(data, Dumper=_Dumper, **options)
    return f"# {comment}\n{text}" if comment else text


def prometheus_rule(groups: list[dict[str, Any]]) -> str:
    """Text of the PrometheusRule with these groups of rules."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "sentinel"},
        "spec": {"groups": groups},
    }
    return yaml_text(rule, "Written by `make generate`.")
