"""Causes of plug-ins: one that cannot be used costs itself, and neither the watch nor a page."""

from __future__ import annotations

import pytest
from support.case_books import Storm

from sentinel.config import plugins, settings


class Raising(Storm):
    def __init__(self) -> None:
        raise ZeroDivisionError


class Listing(Storm):
    explains = ["wind", "rain"]  # noqa: RUF012


class Shouting(Storm):
    severity = "critical"


class Nameless:
    title = "nothing else"


@pytest.mark.quiet
@pytest.mark.parametrize("kind", [Raising, Listing, Shouting, Nameless])
def test_a_cause_that_cannot_be_used_is_left_out_and_the_others_are_not(monkeypatch, kind):
    monkeypatch.setattr(plugins, "load_classes", lambda room: {"odd": kind, "storm": Storm})

    assert list(settings.build_causes()) == ["storm"]
