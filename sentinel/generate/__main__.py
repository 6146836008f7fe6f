"""`python -m sentinel.generate [--check]`: write what follows from the catalogue, or compare it."""

from __future__ import annotations

import sys
from pathlib import Path

from sentinel.generate import panels
from sentinel.generate.agent_alerts import WATCHES
from sentinel.generate.causes import cause_sheets, causes
from sentinel.generate.dashboards import run_health
from sentinel.generate.detector_docs import data_sheets
from sentinel.generate.reference import reference
from sentinel.generate.rules import rules
from sentinel.generate.runbooks import runbooks

ROOT = Path(__file__).parents[2]
RUNBOOKS = "docs/runbooks"


def documents() -> dict[str, str]:
    """Text of every generated file by its path in the repository.

    Without Grafana's library, which needs Python 3.11, dashboards are left out.
    """
    sheets, known = list(data_sheets()), list(cause_sheets())
    pages = runbooks(sheets, WATCHES, known).items()
    written = {"deploy/prometheus/rules.yml": rules(sheets, WATCHES)}
    written["docs/metrics.md"] = reference(sheets)
    written["docs/diagnosis.md"] = causes(known)
    written |= {f"{RUNBOOKS}/{name}.md": text for name, text in pages}
    if panels.AVAILABLE:
        written["grafana/dashboards/run-health.json"] = run_health(sheets)
    return written


def stale(root: Path) -> list[str]:
    """Paths whose file under `root` is missing, differs, or is a runbook of nothing."""
    texts = documents()
    wrong = [path for path, text in texts.items() if _read(root / path) != text]
    found = (str(path.relative_to(root)) for path in (root / RUNBOOKS).glob("*.md"))
    return sorted([*wrong, *(path for path in found if path not in texts)])


def write(root: Path) -> None:
    """Write every generated file under `root`, and remove runbooks of nothing."""
    texts = documents()
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for path in stale(root):
        (root / path).unlink()


def main(arguments: list[str]) -> int:
    """0 when all is written, or up to date; 1 when something is stale; 2 on a wrong use."""
    if arguments not in ([], ["--check"]):
        return _say("Usage: python -m sentinel.generate [--check]", 2)
    if not (ROOT / "pyproject.toml").exists():
        return _say(f"{ROOT} is not a checkout of sentinel, so there is nothing to write to.", 2)
    if not panels.AVAILABLE:
        _say(
            "Dashboards are left out: grafana-foundation-sdk is missing (it needs Python 3.11).", 0
        )
    if not arguments:
        write(ROOT)
        return 0
    old = stale(ROOT)
    return _say(f"Stale: {', '.join(old)}. Run `make generate`.", 1) if old else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
