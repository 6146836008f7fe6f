"""The Prometheus rules in the formats of vmalert, Mimir and Thanos.

Sources: docs.victoriametrics.com/vmalert, "Rules"; grafana.com/docs/mimir, "mimirtool" and
"Configuration parameters"; thanos.io, "Rule"; read in November 2026.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tools.generate.prometheus_rules import GENERATED, yaml_text

Group = dict[str, Any]
MIMIR_NAMESPACE = "sentinel"
MIMIR_RULES_PER_GROUP = 20
"""Default of `ruler_max_rules_per_rule_group`."""
_STEP = "15s"
"""Resolution of a subquery: the interval at which Prometheus evaluates the shipped rules."""


def vmalert_rules(groups: Iterable[Group]) -> str:
    """Text for vmalert, without `keep_firing_for`, which older versions refuse."""
    held = [{**group, "rules": [_held(rule) for rule in group["rules"]]} for group in groups]
    return yaml_text({"groups": held}, GENERATED)


def mimir_rules(groups: Iterable[Group]) -> str:
    """Text for `mimirtool rules load`, with no more rules in a group than Mimir allows."""
    split = [part for group in groups for part in _parts(group)]
    return yaml_text({"namespace": MIMIR_NAMESPACE, "groups": split}, GENERATED)


def thanos_rules(groups: Iterable[Group]) -> str:
    """Text for Thanos Ruler.

    An answer without the series of a store would look like runs that vanished or recovered.
    """
    whole = [
        {"name": group["name"], "partial_response_strategy": "abort", "rules": group["rules"]}
        for group in groups
    ]
    return yaml_text({"groups": whole}, GENERATED)


def _held(rule: dict[str, Any]) -> dict[str, Any]:
    """The rule with an expression that lasts as long as its alert is kept.

    One with `for` is not kept: a single result within that time would count as lasting.
    """
    others = {name: value for name, value in rule.items() if name != "keep_firing_for"}
    if "keep_firing_for" in rule and "for" not in rule:
        others["expr"] = f"max_over_time(({rule['expr']})[{rule['keep_firing_for']}:{_STEP}])"
    return others


def _parts(group: Group) -> Iterator[Group]:
    rules, size = group["rules"], MIMIR_RULES_PER_GROUP
    if len(rules) <= size:
        yield group
        return
    for number, start in enumerate(range(0, len(rules), size), start=1):
        yield {"name": f"{group['name']}-{number}", "rules": rules[start : start + size]}
