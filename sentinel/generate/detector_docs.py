"""DataSheet: what a detector's file says of it, taken apart for whoever shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from sentinel.config.plugins import load_modules
from sentinel.signals.catalogue import SIGNALS, Signal

_PARAGRAPH = re.compile(r"^(\w+)\n((?:[ ]{4}.*(?:\n+|$))+)", re.MULTILINE)


@dataclass(frozen=True)
class DetectorDoc:
    """One detector: its file's name, its class and its docstring."""

    name: str
    detector: Any
    docstring: str

    @property
    def alert(self) -> str:
        """Name of its Prometheus alert: `kl_blowup` is `SentinelKlBlowup`."""
        return f"Sentinel{_camel_case(self.name)}"

    @property
    def headline(self) -> str:
        """First line of the docstring, without its full stop."""
        return self.docstring.partition("\n")[0].rstrip(".")

    @property
    def remedy(self) -> str:
        """What to do."""
        return str(self.detector.remedy)

    @property
    def signal(self) -> Signal | None:
        """The signal it judges, where that is one of the catalogue."""
        return SIGNALS.get(self.detector.signal)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting and its default."""
        return {knob.name: knob.default for knob in fields(self.detector) if knob.init}

    @property
    def paragraphs(self) -> dict[str, str]:
        """The indented paragraphs of the docstring by their title, indent taken off."""
        return parse_paragraphs(self.docstring)


def parse_paragraphs(docstring: str) -> dict[str, str]:
    r"""The indented paragraphs of a docstring by their title, indent taken off.

    >>> paragraphs("It is.\n\nSource\n    A book.")
    {'Source': 'A book.'}
    """
    found = _PARAGRAPH.findall(f"{docstring}\n")
    return {
        title: re.sub(r"^ {4}", "", text, flags=re.MULTILINE).strip("\n") for title, text in found
    }


def detector_docs() -> Iterator[DetectorDoc]:
    """One per file of the room; plug-ins bring their own pages."""
    for name, module in load_modules("detectors").items():
        yield DetectorDoc(name, getattr(module, _camel_case(name)), (module.__doc__ or "").strip())


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
