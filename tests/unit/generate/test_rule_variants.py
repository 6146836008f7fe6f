"""The rules for vmalert, Mimir, Thanos and Grafana have the documented format of each.

The schemas are of docs.victoriametrics.com/vmalert, grafana.com/docs/mimir (mimirtool and limits),
thanos.io ("Rule") and grafana.com/docs/grafana ("file provisioning" of alerts), November 2026.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

DEPLOY = Path(__file__).parents[3] / "deploy"
TEXT = {"type": "string", "minLength": 1}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h|d)$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def mapping(required, **optional):
    """A mapping of these keys only."""
    properties = {**required, **optional}
    return {
        "type": "object",
        "required": [*required],
        "properties": properties,
        "additionalProperties": False,
    }


def items(schema, most=10_000):
    return {"type": "array", "minItems": 1, "maxItems": most, "items": schema}


def groups(alert, most=10_000, **fields):
    """Groups of recording rules and of alerts, each with further fields."""
    record = mapping({"record": {"pattern": "^[a-z_:0-9A-Z]+$"}, "expr": TEXT}, labels=TEXTS)
    rules = items({"oneOf": [mapping({"alert": TEXT, "expr": TEXT}, **alert), record]}, most)
    return items(mapping({"name": TEXT, "rules": rules, **fields}))


ALERT = {"for": DURATION, "labels": TEXTS, "annotations": TEXTS}
KEPT = ALERT | {"keep_firing_for": DURATION}
STRATEGY = {"partial_response_strategy": {"enum": ["abort", "warn"]}}
QUERY = mapping({"refId": {"const": "A"}, "expr": TEXT, "instant": {"const": True}})
QUERY["properties"]["refId"] = TEXT
EVALUATOR = mapping({"type": {"enum": ["gt", "lt"]}, "params": items({"type": "number"}, 1)})
CONDITION = mapping(
    {
        "refId": {"const": "C"},
        "type": {"const": "threshold"},
        "expression": {"const": "A"},
        "conditions": items(mapping({"evaluator": EVALUATOR}), 1),
    }
)
WINDOW = mapping({"from": {"type": "integer", "minimum": 1}, "to": {"const": 0}})
DATA = {
    "type": "array",
    "minItems": 2,
    "contains": mapping(
        {"refId": TEXT, "datasourceUid": {"const": "__expr__"}, "model": CONDITION}
    ),
    "maxContains": 1,
    "items": {
        "oneOf": [
            mapping(
                {
                    "refId": {"pattern": r"^\w+$"},
                    "datasourceUid": {"const": "sentinel-prometheus"},
                    "relativeTimeRange": WINDOW,
                    "model": QUERY,
                }
            ),
            mapping({"refId": TEXT, "datasourceUid": {"const": "__expr__"}, "model": CONDITION}),
        ]
    },
}
GRAFANA_RULE = mapping(
    {
        "uid": {"pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "title": {"type": "string", "minLength": 1, "maxLength": 190},
        "condition": {"const": "C"},
        "data": DATA,
        "noDataState": {"enum": ["NoData", "OK", "Alerting", "KeepLast"]},
        "execErrState": {"enum": ["Error", "OK", "Alerting", "KeepLast"]},
        "for": DURATION,
        "annotations": TEXTS,
    },
    keepFiringFor=DURATION,
    labels=TEXTS,
)
# Grafana evaluates rules at multiples of ten seconds.
INTERVAL = {"type": "string", "pattern": r"^(\d*0s|\d+m)$"}
GRAFANA_GROUP = {"orgId": {"type": "integer"}, "name": TEXT, "folder": TEXT, "interval": INTERVAL}
SCHEMAS = {
    "prometheus/rules.yml": mapping({"groups": groups(KEPT)}),
    "vmalert/rules.yml": mapping({"groups": groups(ALERT)}),
    # Mimir allows 20 rules in a group and 70 groups.
    "mimir/rules.yml": mapping({"namespace": TEXT, "groups": groups(KEPT, 20) | {"maxItems": 70}}),
    "thanos/rules.yml": mapping({"groups": groups(KEPT, **STRATEGY)}),
    "grafana-alerting/rules.yaml": mapping(
        {
            "apiVersion": {"const": 1},
            "groups": items(mapping({**GRAFANA_GROUP, "rules": items(GRAFANA_RULE)})),
        }
    ),
}


def load(path):
    return yaml.safe_load((DEPLOY / path).read_text())


def rules(path):
    return [rule for group in load(path)["groups"] for rule in group["rules"]]


PROMETHEUS = {rule.get("alert", rule.get("record")): rule for rule in rules("prometheus/rules.yml")}
ALERTS = {name: rule for name, rule in PROMETHEUS.items() if "alert" in rule}


@pytest.mark.parametrize("path", SCHEMAS)
def test_the_file_has_the_documented_format(path):
    document, schema = load(path), Draft202012Validator(SCHEMAS[path])

    assert [error.message[:300] for error in schema.iter_errors(document)] == []
    names = [group["name"] for group in document["groups"]]
    assert len({*names}) == len(names)
    document["groups"][0]["rules"][0]["unknown"] = 1
    assert not schema.is_valid(document)


@pytest.mark.parametrize("path", ["mimir/rules.yml", "thanos/rules.yml"])
def test_the_rules_are_those_of_prometheus(path):
    assert rules(path) == [*PROMETHEUS.values()]


def test_an_alert_of_vmalert_lasts_by_its_expression():
    """Except for those with `for`, which counts results in a row."""
    found = {rule.get("alert", rule.get("record")): rule for rule in rules("vmalert/rules.yml")}

    assert found.keys() == PROMETHEUS.keys()
    for name, rule in PROMETHEUS.items():
        expected = {key: value for key, value in rule.items() if key != "keep_firing_for"}
        if "keep_firing_for" in rule and "for" not in rule:
            expected["expr"] = f"max_over_time(({rule['expr']})[{rule['keep_firing_for']}:15s])"
        assert found[name] == expected


def test_grafana_evaluates_the_expression_of_every_alert():
    found = {rule["title"]: rule for rule in rules("grafana-alerting/rules.yaml")}

    assert found.keys() == ALERTS.keys()
    assert len({rule["uid"] for rule in found.values()}) == len(found)
    for name, rule in found.items():
        alert, query = ALERTS[name], rule["data"][0]
        assert (query["refId"], query["model"]["expr"]) == ("A", alert["expr"])
        assert [each["refId"] for each in rule["data"]] == [
            each["model"]["refId"] for each in rule["data"]
        ]
        assert rule.get("keepFiringFor") == alert.get("keep_firing_for")
        assert rule["for"] == alert.get("for", "0s")
        assert rule.get("labels") == alert.get("labels")


@pytest.mark.parametrize(
    "rule", rules("grafana-alerting/rules.yaml"), ids=lambda each: each["title"]
)
def test_an_annotation_of_grafana_uses_what_its_templates_have(rule):
    """Labels, and values of queries of the rule; no function that queries."""
    text = " ".join(rule["annotations"].values())
    names = {each["refId"] for each in rule["data"]}

    assert {*re.findall(r"\$values\.(\w+)", text)} <= names
    assert names - {"A", "C"} <= {*re.findall(r"\$values\.(\w+)", text)}
    assert {*re.findall(r"\$(\w+)", text)} <= {"labels", "values"}
    assert not re.search(r"\bquery\b.*[{(]printf", text)


def test_without_prometheus_only_the_watchdog_of_grafana_ends():
    found = rules("grafana-alerting/rules.yaml")

    assert [rule["title"] for rule in found if rule["execErrState"] == "OK"] == ["SentinelWatchdog"]
    assert {rule["noDataState"] for rule in found} == {"OK"}
