"""docs/detectors.md: every detector with its severity, its signals and its runbook."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.generate.detector_docs import DetectorDoc

_HEAD = """# Detectors

<!-- Written by `make generate`; edit the docstrings of `sentinel/detectors` instead. -->

Each detector is one file. Its docstring is its manual: formula, units, source, and what its
defaults cost on healthy runs. `info` incidents are shown and not sent.

| detector | severity | needs | what it finds |
|---|---|---|---|
"""


def detectors_page(detectors: Iterable[DetectorDoc]) -> str:
    """The page: one row per detector."""
    return _HEAD + "".join(f"{_row(doc)}\n" for doc in detectors)


def _row(doc: DetectorDoc) -> str:
    needs = ", ".join(f"`{name}`" for name in sorted(doc.detector.needs)) or "any record"
    text = doc.headline.partition(": ")[2].replace("|", "\\|")
    severity = doc.detector.severity.value
    return f"| [`{doc.name}`](runbooks/{doc.name}.md) | {severity} | {needs} | {text} |"
