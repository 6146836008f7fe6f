"""Each option stands in the files that it is filled into."""

from __future__ import annotations

import pytest

from sentinel.assets.export import TARGETS, rendered_files
from sentinel.assets.option import BOARDS, OPTIONS, OptionError, parse_assignment

FILES = rendered_files(TARGETS, {})
OTHER_VALUES = {
    "prometheus.targets": "/var/lib/targets",
    "prometheus.alertmanager": "alerts.example.org:9093",
    "prometheus.interval": "250ms",
    "prometheus.token_file": "/run/secrets/token",
    "prometheus.cluster": "h100-west",
    "alertmanager.group_wait": "1s",
    "alertmanager.slack_url_file": "/run/secrets/slack",
    "grafana.prometheus_url": "http://prometheus:9090",
    "grafana.datasource_uid": "prometheus-2",
    "grafana.page_url": "https://training.example.org",
    "kubernetes.namespace": "research",
    "kubernetes.release": "prometheus",
    "kubernetes.monitoring_namespace": "observability",
    "kubernetes.run": "dpo-70b",
    "kubernetes.image": "example.org/train@sha256:0123",
    "kubernetes.agent_image": "example.org/sentinel:2",
    "kubernetes.gpus": "4",
    "kubernetes.shared_memory": "64Gi",
    "slurm.run": "dpo-70b",
    "slurm.partition": "h100",
    "slurm.account": "physics",
    "slurm.nodes": "16",
    "slurm.gpus": "4",
    "slurm.time": "2-12:00:00",
    "systemd.user": "ml",
    "systemd.environment": "/srv/venv",
    "systemd.trainings": "/home/ml/runs",
    "compose.retention": "90d",
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda each: each.name)
def test_an_option_replaces_the_default_in_each_of_its_places(option):
    value = OTHER_VALUES[option.name]
    filled_in = rendered_files(TARGETS, {option.name: value})

    for path, place in option.places:
        assert option.present_text(place) in FILES[path]
        assert option.present_text(place) not in filled_in[path]
        assert place.format(value) in filled_in[path]
    places = {path for path, _ in option.places}
    assert {path for path, text in filled_in.items() if text != FILES[path]} == places


def test_every_dashboard_links_to_the_pages():
    paths = {path for path in FILES if path.startswith("grafana/dashboards/") and "json" in path}

    assert paths == {f"grafana/dashboards/{name}.json" for name in BOARDS}


def test_all_options_are_filled_in_at_once():
    filled_in = rendered_files(TARGETS, OTHER_VALUES)

    for option in OPTIONS:
        for path, place in option.places:
            assert place.format(OTHER_VALUES[option.name]) in filled_in[path]


def test_a_value_may_contain_the_default_of_another_option():
    values = {
        "kubernetes.namespace": "grpo-7b-team",
        "kubernetes.run": "dpo",
        "kubernetes.image": "sentinel:0.2.0-train",
        "kubernetes.agent_image": "example.org/sentinel:2",
    }
    chart = rendered_files(["helm"], values)["deploy/helm/sentinel/values.yaml"]

    assert "--namespace grpo-7b-team" in chart
    assert "image: sentinel:0.2.0-train" in chart


@pytest.mark.parametrize("value", ["7", "1e5", "0x1f", "true", "null", "on"])
def test_a_name_that_is_no_text_in_yaml_is_refused(value):
    with pytest.raises(OptionError, match=r"kubernetes\.run"):
        parse_assignment(f"kubernetes.run={value}")
    assert parse_assignment(f"kubernetes.run={value}-a") == ("kubernetes.run", f"{value}-a")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda each: each.name)
def test_the_default_of_an_option_changes_nothing(option):
    option.check(option.default or option.example)
    if option.default:
        assert rendered_files(TARGETS, {option.name: option.default}) == FILES


@pytest.mark.parametrize("option", OPTIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("value", ["", "a\nb", 'a"b', "a: {b}", "$(a)", "ä b"])
def test_a_value_that_would_change_the_structure_of_a_file_is_refused(option, value):
    with pytest.raises(OptionError, match=option.name):
        parse_assignment(f"{option.name}={value}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kubernetes.gpu=4", 'Did you mean "kubernetes.gpus"'),
        ("kubernetes.gpus", "is not NAME=VALUE"),
        ("zzz=1", 'There is no option "zzz"'),
        ("kubernetes.gpus=0", 'a valid value is "8"'),
    ],
)
def test_the_message_about_a_wrong_option_contains_the_remedy(text, message):
    with pytest.raises(OptionError, match=message):
        parse_assignment(text)
