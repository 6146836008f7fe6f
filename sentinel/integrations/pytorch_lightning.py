"""Lightning by its older name, `pytorch_lightning`: a package of its own, of the same make."""

from __future__ import annotations

from sentinel.client.capture.patcher import Tap
from sentinel.integrations.lightning import attach_to

FRAMEWORK = "pytorch_lightning"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    attach_to(tap, FRAMEWORK)
