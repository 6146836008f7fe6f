"""The objects of deploy/kubernetes and of the Helm chart are valid, and the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from support.custom_resources import SPECS
from support.kubernetes_programs import objects, unpack

from sentinel.assets.export import export
from tools.generate.boards import dashboards_kustomization

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES, CHART = DEPLOY / "kubernetes", DEPLOY / "helm" / "sentinel"
PAGE = ROOT / "docs" / "kubernetes.md"
EXAMPLES = sorted((KUBERNETES / "examples").glob("*.yaml"))
VERSIONS = ("1.29", kubernetes_validate.latest_version())
OPTIONS = {
    "kubernetes.namespace": "research",
    "kubernetes.run": "dpo-70b",
    "kubernetes.image": "example.org/train:2",
    "kubernetes.agent_image": "example.org/sentinel:2",
    "kubernetes.gpus": "4",
    "kubernetes.shared_memory": "64Gi",
    "kubernetes.release": "prometheus",
    "kubernetes.monitoring_namespace": "observability",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def kustomize(programs):
    def run(folder):
        return objects(programs["kubectl"], "kustomize", folder)

    return run


@pytest.fixture
def helm(programs, tmp_path, monkeypatch):
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HELM_{name}_HOME", str(tmp_path / "helm"))

    def run(chart, *arguments, namespace="training"):
        command = [programs["helm"], "template", "sentinel", chart, "--namespace", namespace]
        return objects(*command, *arguments)

    return run


def example_objects(path):
    return list(yaml.safe_load_all(path.read_text()))


def pod_templates(value):
    """Every template of a Pod in an object."""
    if isinstance(value, list):
        for each in value:
            yield from pod_templates(each)
    elif isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        for each in value.values():
            yield from pod_templates(each)


def problems(each):
    """What is wrong with an object: of Kubernetes, or a custom resource with Pods."""
    found = []
    schema = SPECS.get((each["apiVersion"], each["kind"]))
    if schema is not None:
        found += [
            error.message for error in jsonschema.Draft7Validator(schema).iter_errors(each["spec"])
        ]
        pods = [{"apiVersion": "v1", "kind": "Pod"} | pod for pod in pod_templates(each["spec"])]
    else:
        pods = [each]
    for pod in pods:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(pod, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(error.message)
    return found


@pytest.mark.parametrize("folder", ["job", "in-job", "monitoring", "monitoring-by-service"])
def test_what_kustomize_builds_is_valid(kustomize, folder):
    built = kustomize(KUBERNETES / folder)

    assert {name: found for name, each in built.items() if (found := problems(each))} == {}
    assert {each["metadata"]["namespace"] for each in built.values()} == {"training"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid(path):
    assert [problems(each) for each in example_objects(path)] in ([[]], [[], []])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_with_an_unknown_field_is_not_valid(path):
    """The checks of the tests above find it, at the top and in a Pod."""
    original = example_objects(path)[0]
    for spot in (original["spec"], next(pod_templates(original))["spec"]):
        spot["restartPolicies"] = "Never"
        assert problems(deepcopy(original)) != []
        del spot["restartPolicies"]
    assert problems(original) == []


@pytest.mark.fault("X15")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_pod_of_an_example_is_monitored_without_rights(path):
    pods = [pod for each in example_objects(path) for pod in pod_templates(each)]

    assert pods
    for pod in pods:
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert pod["metadata"]["labels"]["sentinel-run"] == "grpo-7b"
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        if container["name"] == "mpi-launcher":
            continue
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
        assert pod["metadata"]["labels"]["sentinel-agent"] == "true"
        assert {"name": "metrics", "containerPort": 13130} in container["ports"]
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert mounts["/etc/sentinel"]["secret"]["secretName"] == "sentinel"


def test_the_probes_of_the_sidecar_can_fail_and_do_not_delay_the_training(kustomize):
    (job,) = kustomize(KUBERNETES / "job").values()
    (agent,) = job["spec"]["template"]["spec"]["initContainers"]

    assert agent["readinessProbe"]["httpGet"] == {"path": "/-/ready", "port": "metrics"}
    assert agent["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": "metrics"}
    assert "startupProbe" not in agent


def test_the_chart_renders_what_kustomize_builds(kustomize, helm):
    built = kustomize(KUBERNETES / "job") | kustomize(KUBERNETES / "monitoring")

    assert helm(CHART) == built
    in_job = helm(CHART, "--set", "agent.sidecar=false,monitoring.enabled=false")
    assert in_job == kustomize(KUBERNETES / "in-job")
    by_service = helm(CHART, "--set", "job.enabled=false,monitoring.discovery=ServiceMonitor")
    assert by_service == kustomize(KUBERNETES / "monitoring-by-service")


def test_an_agent_is_discovered_by_one_of_both_monitors(kustomize):
    (pod,) = (each["spec"]["template"] for each in kustomize(KUBERNETES / "job").values())
    labels, by_pod = pod["metadata"]["labels"], kustomize(KUBERNETES / "monitoring")
    by_service = kustomize(KUBERNETES / "monitoring-by-service")
    service = by_service["Service", "sentinel"]
    monitors = by_pod["PodMonitor", "sentinel"], by_service["ServiceMonitor", "sentinel"]
    found = [each["spec"]["selector"]["matchExpressions"] for each in monitors]

    assert ("PodMonitor", "sentinel") not in by_service
    assert found == [[{"key": "sentinel-agent", "operator": "Exists"}]] * 2
    assert "sentinel-agent" in service["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert monitors[0]["spec"]["podMetricsEndpoints"] == monitors[1]["spec"]["endpoints"]


def test_an_export_has_the_options_in_both(kustomize, helm, tmp_path):
    export(tmp_path, ["kubernetes", "helm"], OPTIONS)
    deploy = tmp_path / "deploy"
    built = kustomize(deploy / "kubernetes/job") | kustomize(deploy / "kubernetes/monitoring")
    by_service = kustomize(deploy / "kubernetes/monitoring-by-service")
    arguments = ("--set", "job.enabled=false,monitoring.discovery=ServiceMonitor")

    assert helm(deploy / "helm/sentinel", *arguments, namespace="research") == by_service
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    assert helm(deploy / "helm/sentinel", namespace="research") == built
    assert {each["metadata"]["namespace"] for each in built.values()} == {"research"}
    for path in sorted((deploy / "kubernetes/examples").iterdir()):
        assert all(problems(each) == [] for each in example_objects(path))


def test_the_commands_of_the_documentation_build_what_they_apply(programs, tmp_path, monkeypatch):
    """Without a cluster: applied objects are printed, and the image is not built."""
    words = "sentinel assets|cd|docker|openssl|kubectl create|kubectl apply|helm"
    commands = re.findall(rf"^    ((?:{words}) (?:.+\\\n)*.+)$", PAGE.read_text(), re.MULTILINE)
    (tmp_path / "cluster" / "deploy").mkdir(parents=True)
    (tmp_path / "cluster" / "deploy" / "sentinel.toml").write_text("")
    script = ["set -eu", 'docker() { test "$1" = push || test -f "$3"; }', "sentinel() {"]
    script += [f'  {shlex.quote(sys.executable)} -m sentinel "$@" > /dev/null', "}"]
    for each in commands:
        printed = re.sub("kubectl apply (--server-side )?--kustomize", "kubectl kustomize", each)
        printed = printed.replace("helm install", "helm template")
        dry_run = " --dry-run=client --output=yaml" if "kubectl create" in each else ""
        script += ["echo ---", printed + dry_run]
    folders = [programs["helm"].parent, programs["kubectl"].parent, os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    done = subprocess.run(
        ["bash"], input="\n".join(script), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = [each for each in yaml.safe_load_all(done.stdout) if each]

    assert len(commands) == 12
    jobs = [each["metadata"]["name"] for each in built if each["kind"] == "Job"]
    assert jobs == ["dpo-70b", "dpo-70b"]
    (secret,) = (each for each in built if each["kind"] == "Secret")
    assert {*secret["data"]} == {"sentinel.toml", "token"}
    assert all(problems(each) == [] for each in built)


def test_the_chart_has_no_fault_and_refuses_unknown_values(programs, helm):
    lint = subprocess.run(
        [programs["helm"], "lint", "--strict", CHART], capture_output=True, text=True, check=False
    )
    assert lint.returncode == 0, lint.stdout
    for wrong in (
        "monitoring.discovery=pods",
        "job.gpu=4",
        "run=A_b",
        "job.sharedMemory=16",
        "job.user=0",
    ):
        with pytest.raises(AssertionError, match=wrong.split("=")[0].split(".")[-1]):
            helm(CHART, "--set", wrong)


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ("job.enabled=false", {"PodMonitor", "NetworkPolicy", "PrometheusRule", "ConfigMap"}),
        ("monitoring.enabled=false", {"Job"}),
        (
            "monitoring.rules=false,monitoring.dashboards=false,monitoring.networkPolicy=false",
            {"Job", "PodMonitor"},
        ),
        ("monitoring.labels.release=null,job.stateClaim=state,job.gpus=0", None),
    ],
)
def test_parts_of_the_chart_can_be_left_out(helm, values, kinds):
    rendered = helm(CHART, "--set", values)

    assert kinds is None or {kind for kind, _ in rendered} == kinds
    assert all(problems(each) == [] for each in rendered.values())


def test_rules_and_dashboards_of_the_cluster_are_those_of_the_repository(kustomize):
    built = kustomize(KUBERNETES / "monitoring")
    dashboards = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))

    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    assert built["PrometheusRule", "sentinel"]["spec"] == rules
    for path in dashboards:
        stored = built["ConfigMap", f"sentinel-{path.stem}"]
        assert stored["data"] == {path.name: path.read_text()}
        assert stored["metadata"]["labels"]["grafana_dashboard"] == "1"
        # The limit of a ConfigMap.
        assert path.stat().st_size < 1 << 20
    names = [path.stem for path in dashboards]
    assert (
        dashboards_kustomization(names) == (dashboards[0].parent / "kustomization.yaml").read_text()
    )


def test_prometheus_scrapes_under_the_name_that_rules_use(kustomize):
    (endpoint,) = kustomize(KUBERNETES / "monitoring")["PodMonitor", "sentinel"]["spec"][
        "podMetricsEndpoints"
    ]
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()

    assert 'job="sentinel"' in rules
    assert {"action": "replace", "targetLabel": "job", "replacement": "sentinel"} in endpoint[
        "relabelings"
    ]
