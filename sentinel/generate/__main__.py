"""`python -m sentinel.generate [--check]`: write what follows from the catalogue, or compare it."""

from __future__ import annotations

import sys
from pathlib import Path

from sentinel.generate import panels
from sentinel.generate.agent_alerts import AGENT_ALERTS
from sentinel.generate.causes import cause_docs, diagnosis_page
from sentinel.generate.dashboards import run_health_dashboard
from sentinel.generate.detector_docs import detector_docs
from sentinel.generate.reference import metrics_page
from sentinel.generate.rules import prometheus_rules
from sentinel.generate.runbooks import runbook_pages

ROOT = Path(__file__).parents[2]
RUNBOOK_DIR = "docs/runbooks"


def documents() -> dict[str, str]:
    """Text of every generated file by its path in the repository.

    Without Grafana's library, which needs Python 3.11, dashboards are left out.
    """
    sheets, known = list(detector_docs()), list(cause_docs())
    pages = runbook_pages(sheets, AGENT_ALERTS, known).items()
    written = {"deploy/prometheus/rules.yml": prometheus_rules(sheets, AGENT_ALERTS)}
    written["docs/metrics.md"] = metrics_page(sheets)
    written["docs/diagnosis.md"] = diagnosis_page(known)
    written |= {f"{RUNBOOK_DIR}/{name}.md": text for name, text in pages}
    if panels.IS_SDK_INSTALLED:
        written["grafana/dashboards/run-health.json"] = run_health_dashboard(sheets)
    return written


def stale_paths(root: Path) -> list[str]:
    """Paths whose file under `root` is missing, differs, or is a runbook of nothing."""
    texts = documents()
    wrong = [path for path, text in texts.items() if _read(root / path) != text]
    found = (str(path.relative_to(root)) for path in (root / RUNBOOK_DIR).glob("*.md"))
    return sorted([*wrong, *(path for path in found if path not in texts)])


def write_documents(root: Path) -> None:
    """Write every generated file under `root`, and remove runbooks of nothing."""
    texts = documents()
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for path in stale_paths(root):
        (root / path).unlink()


def main(arguments: list[str]) -> int:
    """0 when all is written, or up to date; 1 when something is stale; 2 on a wrong use."""
    if arguments not in ([], ["--check"]):
        return _print_and_return("Usage: python -m sentinel.generate [--check]", 2)
    if not (ROOT / "pyproject.toml").exists():
        return _print_and_return(
            f"{ROOT} is not a checkout of sentinel, so there is nothing to write to.", 2
        )
    if not panels.IS_SDK_INSTALLED:
        _print_and_return(
            "Dashboards are left out: grafana-foundation-sdk is missing (it needs Python 3.11).", 0
        )
    if not arguments:
        write_documents(ROOT)
        return 0
    old = stale_paths(ROOT)
    return _print_and_return(f"Stale: {', '.join(old)}. Run `make generate`.", 1) if old else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _print_and_return(text: str, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
