"""Why a delivery was not made, beside the errors of the network."""

from __future__ import annotations


class AddressRefusedError(OSError):
    """The host name resolves to an address that must not receive notifications."""


class DeadlineExceededError(OSError):
    """The connection opened after the deadline of its request."""


class ThreadLimitError(OSError):
    """No thread can be started for the delivery."""


class PostponedError(OSError):
    """The delivery is not wanted at present."""
