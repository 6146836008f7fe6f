"""Detector documentation: the docstring and the settings of each detector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from sentinel.config.plugins import load_modules
from sentinel.signals.catalogue import SIGNALS, Signal
from sentinel.signals.setting_names import with_setting_names

_PARAGRAPH = re.compile(r"^(\w+)\n((?:[ ]{4}.*(?:\n+|$))+)", re.MULTILINE)

_CATALOGUE_HEAD = """# Detectors

<!-- Written by `make generate`; edit the docstrings of `sentinel/detectors` instead. -->

Each detector is one file. Its docstring is its manual: formula, units, source, and what its
defaults cost on healthy runs. `info` incidents are shown and not sent.

| detector | severity | needs | what it finds |
|---|---|---|---|
"""


@dataclass(frozen=True)
class DetectorDoc:
    """A detector: the name of its file, its class and its module docstring."""

    name: str
    detector: Any
    docstring: str

    @property
    def alert(self) -> str:
        """Name of its Prometheus alert."""
        return alert_name(self.name)

    @property
    def headline(self) -> str:
        """First line of the docstring, without its full stop."""
        return self.docstring.partition("\n")[0].rstrip(".")

    @property
    def title(self) -> str:
        """The name in words: the headline up to the colon."""
        return self.headline.partition(":")[0]

    @property
    def remedy(self) -> str:
        """The remedy of the detector, without names of settings of a framework."""
        return with_setting_names(str(self.detector.remedy), {})

    @property
    def remedy_settings(self) -> list[str]:
        """The settings that its remedy names, in their order."""
        found = re.findall(r"\{([^}]+)\}", str(self.detector.remedy))
        return list(dict.fromkeys(found))

    @property
    def signal(self) -> Signal | None:
        """The signal it evaluates; None if that is not in the catalogue."""
        return SIGNALS.get(self.detector.signal)

    @property
    def settings(self) -> dict[str, Any]:
        """Default of each setting by name."""
        return {field.name: field.default for field in fields(self.detector) if field.init}

    @property
    def paragraphs(self) -> dict[str, str]:
        """The indented paragraphs of the docstring by their title, without indent."""
        return parse_paragraphs(self.docstring)


def alert_name(name: str) -> str:
    """Name of the Prometheus alert of a detector or an agent alert.

    >>> alert_name("kl_blowup")
    'SentinelKlBlowup'
    """
    return f"Sentinel{_camel_case(name)}"


def parse_paragraphs(docstring: str) -> dict[str, str]:
    r"""The indented paragraphs of a docstring by their title, without indent.

    >>> parse_paragraphs("It is.\n\nSource\n    A book.")
    {'Source': 'A book.'}
    """
    found = _PARAGRAPH.findall(f"{docstring}\n")
    return {
        title: re.sub(r"^ {4}", "", text, flags=re.MULTILINE).strip("\n") for title, text in found
    }


def detector_docs() -> Iterator[DetectorDoc]:
    """One DetectorDoc per module of `sentinel.detectors`; plug-ins document themselves."""
    for name, module in load_modules("detectors").items():
        yield DetectorDoc(name, getattr(module, _camel_case(name)), (module.__doc__ or "").strip())


def _camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def detectors_page(detectors: Iterable[DetectorDoc]) -> str:
    """docs/detectors.md: one row per detector."""
    return _CATALOGUE_HEAD + "".join(f"{_catalogue_row(doc)}\n" for doc in detectors)


def _catalogue_row(doc: DetectorDoc) -> str:
    needs = ", ".join(f"`{name}`" for name in sorted(doc.detector.needs)) or "any record"
    text = doc.headline.partition(": ")[2].replace("|", "\\|")
    severity = doc.detector.severity.value
    return f"| [`{doc.name}`](runbooks/{doc.name}.md) | {severity} | {needs} | {text} |"
