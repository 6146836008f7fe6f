"""Lightning by its older name, `pytorch_lightning`: a package of its own, of the same make."""

from __future__ import annotations

from sentinel.client.capture.patcher import Patcher
from sentinel.integrations.lightning import attach_package

FRAMEWORK = "pytorch_lightning"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    attach_package(patcher, FRAMEWORK)
