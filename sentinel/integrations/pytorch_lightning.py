"""Lightning under its older name `pytorch_lightning`, a separate package with the same code."""

from __future__ import annotations

from sentinel.client.capture.patcher import Patcher
from sentinel.integrations.lightning import attach_package

FRAMEWORK = "pytorch_lightning"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    attach_package(patcher, FRAMEWORK)
