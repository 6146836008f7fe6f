"""`python -m tools.generate [--check]`: write or check the generated files."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.generate import panels
from tools.generate.agent_alerts import AGENT_ALERTS
from tools.generate.boards import boards, dashboards_kustomization
from tools.generate.cause_docs import cause_docs, diagnosis_page
from tools.generate.detector_docs import detector_docs, detectors_page
from tools.generate.grafana_alerting import grafana_alerting
from tools.generate.layers import with_layers
from tools.generate.metrics_reference import metrics_page
from tools.generate.prometheus_rules import (
    detector_rule_tests,
    prometheus_rule,
    prometheus_rules,
    rule_groups,
)
from tools.generate.reliability import reliability_page
from tools.generate.rule_variants import mimir_rules, thanos_rules, vmalert_rules
from tools.generate.runbooks import runbook_pages

ROOT = Path(__file__).parents[2]
RUNBOOK_DIR, DASHBOARD_DIR = "docs/runbooks", "grafana/dashboards"


def documents() -> dict[str, str]:
    """Text of every generated file by its path in the repository.

    Dashboards are left out if grafana-foundation-sdk is not installed.
    """
    detectors, causes = list(detector_docs()), list(cause_docs())
    pages = runbook_pages(detectors, AGENT_ALERTS, causes).items()
    texts = {"deploy/prometheus/rules.yml": prometheus_rules(detectors, AGENT_ALERTS)}
    texts["deploy/prometheus/rules_detectors_test.yml"] = detector_rule_tests(detectors)
    groups = rule_groups(detectors, AGENT_ALERTS)
    texts["deploy/kubernetes/monitoring/prometheus-rule.yaml"] = prometheus_rule(groups)
    texts["deploy/vmalert/rules.yml"] = vmalert_rules(groups)
    texts["deploy/mimir/rules.yml"] = mimir_rules(groups)
    texts["deploy/thanos/rules.yml"] = thanos_rules(groups)
    texts["deploy/grafana-alerting/rules.yaml"] = grafana_alerting(groups)
    dashboards = (path.stem for path in (ROOT / DASHBOARD_DIR).glob("*.json"))
    texts[f"{DASHBOARD_DIR}/kustomization.yaml"] = dashboards_kustomization(dashboards)
    texts["docs/metrics.md"] = metrics_page(detectors)
    texts["docs/diagnosis.md"] = diagnosis_page(causes)
    texts["docs/detectors.md"] = detectors_page(detectors)
    texts["docs/reliability.md"] = reliability_page(ROOT)
    architecture = ROOT / "docs" / "architecture.md"
    texts["docs/architecture.md"] = with_layers(architecture.read_text(encoding="utf-8"), ROOT)
    texts |= {f"{RUNBOOK_DIR}/{name}.md": text for name, text in pages}
    if panels.IS_SDK_INSTALLED:
        texts |= {f"{DASHBOARD_DIR}/{name}.json": text for name, text in boards(detectors).items()}
    return texts


def stale_paths(root: Path) -> list[str]:
    """Paths of files under `root` that are missing or differ, and of runbooks without an alert."""
    texts = documents()
    stale = [path for path, text in texts.items() if _read(root / path) != text]
    runbooks = (str(path.relative_to(root)) for path in (root / RUNBOOK_DIR).glob("*.md"))
    return sorted([*stale, *(path for path in runbooks if path not in texts)])


def write_documents(root: Path) -> None:
    """Write every generated file under `root`, and delete runbooks without an alert."""
    texts = documents()
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for path in stale_paths(root):
        (root / path).unlink()


def main(arguments: list[str]) -> int:
    """Exit status: 0 if all is written or current, 1 if a file is stale, 2 on wrong usage."""
    if arguments not in ([], ["--check"]):
        return _print_and_return("Usage: python -m tools.generate [--check]", 2)
    if not (ROOT / "pyproject.toml").exists():
        return _print_and_return(f"{ROOT} is not a checkout of sentinel; nothing is written.", 2)
    if not panels.IS_SDK_INSTALLED:
        _print_and_return("Dashboards are left out: grafana-foundation-sdk is not installed.", 0)
    if not arguments:
        write_documents(ROOT)
        return 0
    stale = stale_paths(ROOT)
    return _print_and_return(f"Stale: {', '.join(stale)}. Run `make generate`.", 1) if stale else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _print_and_return(text: str, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
