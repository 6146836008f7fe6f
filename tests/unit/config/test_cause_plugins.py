"""Invalid causes of plug-ins are left out; the others are used."""

from __future__ import annotations

import pytest
from support.case_books import Storm

from sentinel.config import plugins, settings


class Raising(Storm):
    def __init__(self) -> None:
        raise ZeroDivisionError


class ListOfDetectors(Storm):
    explains = ["wind", "rain"]  # noqa: RUF012


class TextSeverity(Storm):
    severity = "critical"


class Incomplete:
    title = "nothing else"


@pytest.mark.swallows_errors
@pytest.mark.parametrize("kind", [Raising, ListOfDetectors, TextSeverity, Incomplete])
def test_an_invalid_cause_is_left_out(monkeypatch, kind):
    monkeypatch.setattr(plugins, "load_classes", lambda group: {"odd": kind, "storm": Storm})

    assert list(settings.build_causes()) == ["storm"]
