"""The options of the deployment files: what a user may change in which of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sentinel.model.nearest_name import nearest_hint

_ADDRESS = r"[\w.-]+:\d{1,5}|\[[0-9A-Fa-f:]+\]:\d{1,5}"
_DURATION = r"\d+(ms|s|m|h|d)"
_IMAGE = r"[\w./:@-]+"
_NO_TEXT = r"\d+(e-?\d+)?|0[xo][0-9a-f]+|true|false|null|yes|no|on|off|y|n"
"""Names that are no text in YAML."""
_NAME = rf"(?!({_NO_TEXT})\Z)[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?"
_PATH = r"/[\w./@%+-]*"
_QUANTITY = r"\d+(Ki|Mi|Gi|Ti)"
_URL = r"https?://[\w.:/\[\]-]+"

PROMETHEUS, ALERTMANAGER = (
    "deploy/prometheus/prometheus.yml",
    "deploy/alertmanager/alertmanager.yml",
)
VM_SCRAPE = "deploy/vmalert/scrape.yml"
BOARDS = ("fleet", "run-health", "rl", "training", "ranks", "system", "sentinel")
"""Names of the dashboards."""
DATASOURCE = "grafana/provisioning/datasources/prometheus.yaml"
GRAFANA_ALERTS = "deploy/grafana-alerting/rules.yaml"
COMPOSE = "deploy/compose/compose.yaml"
JOB, CHART = "deploy/kubernetes/job/job.yaml", "deploy/helm/sentinel/values.yaml"
MONITORING, BY_SERVICE = (
    f"deploy/kubernetes/{name}/kustomization.yaml"
    for name in ("monitoring", "monitoring-by-service")
)
JOBSET, MPIJOB, PYTORCHJOB, RAYCLUSTER, TRAINJOB = (
    f"deploy/kubernetes/examples/{name}.yaml"
    for name in ("jobset", "mpijob", "pytorchjob", "raycluster", "trainjob")
)
EXAMPLES = (JOBSET, MPIJOB, PYTORCHJOB, RAYCLUSTER, TRAINJOB)
AGENT_UNIT = "deploy/systemd/sentinel-agent@.service"
TRAINING_UNIT = "deploy/systemd/sentinel-training@.service"
SLURM_NODES = ("deploy/slurm/several-nodes.sh", "deploy/slurm/requeue.sh")
SLURM = ("deploy/slurm/one-node.sh", *SLURM_NODES)


class OptionError(ValueError):
    """An option that does not exist, or a value that it cannot have."""


@dataclass(frozen=True)
class Option:
    """One value that stands in some of the files.

    `places` are the files and the texts in them that contain it, with `{}` for the value. The files
    of the repository hold the default. Without one, the lines of a place are comments there, with
    `example`: they become effective with a value. `pattern` is a regular expression of all values
    that are valid.
    """

    name: str
    default: str
    meaning: str
    pattern: str
    places: tuple[tuple[str, str], ...]
    example: str = ""

    def replacements(self, path: str, value: str) -> Iterator[tuple[str, str]]:
        """What stands in the file `path` now, and what stands there with this value."""
        for file, place in self.places:
            if file == path:
                yield self.present_text(place), place.format(value)

    def present_text(self, place: str) -> str:
        """How a place stands in the files of the repository."""
        text = place.format(self.default or self.example)
        return text if self.default else _commented(text)

    def check(self, value: str) -> None:
        """Raises OptionError if the value is not valid."""
        if not re.fullmatch(self.pattern, value, re.ASCII):
            shown = self.default or self.example
            raise OptionError(f'{self.name} cannot be "{value}"; a valid value is "{shown}".')


def _places(paths: Iterable[str], *texts: str) -> tuple[tuple[str, str], ...]:
    """The places of a value that stands in several files alike."""
    return tuple((path, text) for path in paths for text in texts)


OPTIONS = (
    Option(
        "prometheus.targets",
        "/etc/prometheus/targets",
        "directory of the files by which Prometheus discovers the agents",
        _PATH,
        ((PROMETHEUS, "{}/*.json"), (VM_SCRAPE, "{}/*.json"), (COMPOSE, "/targets:{}:ro")),
    ),
    Option(
        "prometheus.alertmanager",
        "127.0.0.1:9093",
        "address of Alertmanager",
        _ADDRESS,
        ((PROMETHEUS, '"{}"'),),
    ),
    Option(
        "prometheus.interval",
        "15s",
        "how often the agents are discovered and scraped, and the rules are evaluated",
        _DURATION,
        (
            (PROMETHEUS, "  scrape_interval: {0}\n  evaluation_interval: {0}"),
            (PROMETHEUS, "refresh_interval: {}"),
            (VM_SCRAPE, "scrape_interval: {}"),
            (DATASOURCE, "timeInterval: {}"),
        ),
    ),
    Option(
        "prometheus.token_file",
        "",
        "file with the token of the agents, as Prometheus sees it",
        _PATH,
        _places((PROMETHEUS, VM_SCRAPE), "    authorization:\n      credentials_file: {}"),
        "/etc/prometheus/secrets/sentinel_token",
    ),
    Option(
        "prometheus.cluster",
        "",
        "label `cluster` of everything that this Prometheus sends on",
        r"[\w.-]+",
        _places((PROMETHEUS, VM_SCRAPE), "  external_labels:\n    cluster: {}"),
        "a100",
    ),
    Option(
        "alertmanager.group_wait",
        "10s",
        "how long Alertmanager waits for further alerts of a case before the first message",
        _DURATION,
        ((ALERTMANAGER, "group_wait: {}"),),
    ),
    Option(
        "alertmanager.slack_url_file",
        "/etc/alertmanager/secrets/slack_webhook_url",
        "file with the address of a Slack webhook, as Alertmanager sees it",
        _PATH,
        ((ALERTMANAGER, "api_url_file: {}"),),
    ),
    Option(
        "grafana.prometheus_url",
        "http://127.0.0.1:9090",
        "address at which Grafana reads Prometheus",
        _URL,
        ((DATASOURCE, "url: {}"),),
    ),
    Option(
        "grafana.datasource_uid",
        "sentinel-prometheus",
        "identifier of that Prometheus in Grafana",
        r"[\w-]{1,40}",
        ((DATASOURCE, "uid: {}"), (GRAFANA_ALERTS, "datasourceUid: {}")),
    ),
    Option(
        "grafana.page_url",
        "http://127.0.0.1:13120",
        "address of the pages of sentinel, to which the dashboards link",
        _URL,
        tuple((f"grafana/dashboards/{name}.json", '"query": "{}"') for name in BOARDS),
    ),
    Option(
        "kubernetes.namespace",
        "training",
        "namespace of the trainings",
        _NAME,
        (
            ("deploy/kubernetes/job/kustomization.yaml", "namespace: {}"),
            *((path, "namespace: {}") for path in (MONITORING, BY_SERVICE)),
            *((path, "--namespace {}") for path in (*EXAMPLES, CHART)),
        ),
    ),
    Option(
        "kubernetes.run",
        "grpo-7b",
        "name of the run, and of the Job",
        _NAME,
        tuple((path, "{}") for path in (JOB, *EXAMPLES, CHART)),
    ),
    Option(
        "kubernetes.image",
        "registry.example.org/training:1.0",
        "image of the training, with sentinel installed",
        _IMAGE,
        tuple((path, "image: {}") for path in (JOB, *EXAMPLES, CHART)),
    ),
    Option(
        "kubernetes.agent_image",
        "sentinel:0.2.0",
        "image of the agent",
        _IMAGE,
        _places((JOB, CHART), "image: {}"),
    ),
    Option(
        "kubernetes.gpus",
        "8",
        "GPUs of each Pod, and ranks that it starts",
        r"[1-9]\d{0,2}",
        (
            *((path, "nvidia.com/gpu: {}") for path in (JOB, *EXAMPLES)),
            *((path, '--nproc-per-node, "{}"') for path in (JOB, CHART)),
            (JOBSET, "--nproc-per-node={}"),
            (PYTORCHJOB, 'nprocPerNode: "{}"'),
            (MPIJOB, "slotsPerWorker: {}"),
            (CHART, "gpus: {}"),
        ),
    ),
    Option(
        "kubernetes.shared_memory",
        "16Gi",
        "shared memory of the ranks and their rings",
        _QUANTITY,
        (
            *((path, "sizeLimit: {}") for path in (JOB, *EXAMPLES)),
            (CHART, "sharedMemory: {}"),
        ),
    ),
    Option(
        "kubernetes.release",
        "kube-prometheus-stack",
        "value of the label `release` by which Prometheus finds rules and targets",
        _NAME,
        _places((MONITORING, BY_SERVICE, CHART), "release: {}}}"),
    ),
    Option(
        "kubernetes.monitoring_namespace",
        "monitoring",
        "namespace of Prometheus, which may connect to the agents",
        _NAME,
        (
            ("deploy/kubernetes/monitoring/network-policy.yaml", "kubernetes.io/metadata.name: {}"),
            (CHART, "namespace: {}"),
        ),
    ),
    Option(
        "slurm.run",
        "grpo-7b",
        "name of the job; with its id, that of the run",
        _NAME,
        _places(SLURM, "--job-name={}", 'SENTINEL_RUN_ID="{}-$SLURM_JOB_ID"'),
    ),
    Option(
        "slurm.partition",
        "gpu",
        "partition of the job",
        r"[\w.,-]+",
        _places(SLURM, "#SBATCH --partition={}"),
    ),
    Option(
        "slurm.account",
        "",
        "account of the job; by default that of the user",
        r"[\w.-]+",
        _places(SLURM, "#SBATCH --account={}"),
        "research",
    ),
    Option(
        "slurm.nodes",
        "4",
        "nodes of a job on several",
        r"[1-9]\d{0,4}",
        _places(SLURM_NODES, "#SBATCH --nodes={}"),
    ),
    Option(
        "slurm.gpus",
        "8",
        "GPUs of a node, and ranks on it",
        r"[1-9]\d{0,2}",
        _places(SLURM, "#SBATCH --gpus-per-node={}", "--nproc-per-node {}"),
    ),
    Option(
        "slurm.time",
        "24:00:00",
        "time limit of the job",
        r"(\d+-)?\d{1,4}(:\d{2}){0,2}",
        _places(SLURM, "#SBATCH --time={}"),
    ),
    Option(
        "systemd.user",
        "training",
        "user of the trainings and their agents",
        r"[a-z_][a-z0-9_-]{0,31}",
        ((AGENT_UNIT, "User={}"), (TRAINING_UNIT, "User={}")),
    ),
    Option(
        "systemd.environment",
        "/opt/sentinel",
        "virtual environment in which sentinel is installed",
        _PATH,
        ((AGENT_UNIT, "ExecStart={}/bin/"), (TRAINING_UNIT, "ExecStart={}/bin/")),
    ),
    Option(
        "systemd.trainings",
        "/srv/training",
        "directory with one directory for each training",
        _PATH,
        ((TRAINING_UNIT, "WorkingDirectory={}/%i"),),
    ),
    Option(
        "compose.retention",
        "30d",
        "how long Prometheus keeps samples",
        r"\d+[smhdwy]",
        ((COMPOSE, "retention.time={}"),),
    ),
)


def parse_assignment(text: str) -> tuple[str, str]:
    """Name and value of `NAME=VALUE`.

    Raises OptionError for an unknown name, with the nearest one, and for a value that is not valid.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f'"{text}" is not NAME=VALUE.')
    option_of(name).check(value)
    return name, value


def option_of(name: str) -> Option:
    """The option of that name. Raises OptionError with the nearest name if there is none."""
    for option in OPTIONS:
        if option.name == name:
            return option
    hint = nearest_hint(name, [each.name for each in OPTIONS], similarity=0.5)
    raise OptionError(
        f'There is no option "{name}".{hint} `sentinel assets list` shows all of them.'
    )


def _commented(block: str) -> str:
    r"""Lines of YAML as a comment.

    >>> print(_commented("  authorization:\n    file: x"))
      # authorization:
      #   file: x
    """
    margin = " " * (len(block) - len(block.lstrip(" ")))
    return "\n".join(f"{margin}# {line.removeprefix(margin)}" for line in block.split("\n"))
