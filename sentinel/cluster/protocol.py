"""Formats that client and server share: keys of the message store, and their values.

The head publishes its `HeadInfo` at HEAD_INFO_KEY. A node takes the next number from
SLOT_COUNTER_KEY, its slot, and writes its node info to the hello key of that slot. Then it writes
one message at a time to the mailbox, and reads the acknowledgement of the head at the ack key,
which ends with the head's report on the run.
All values are signed, see `sentinel.cluster.authentication`; the counter is not.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import NamedTuple

PROTOCOL_VERSION = 4
"""Incremented with each change that agents of two versions would misunderstand."""

HEAD_INFO_KEY, SLOT_COUNTER_KEY = "sentinel/head_info", "sentinel/slots"

MAX_MESSAGE_BYTES = 4 << 20
"""Size limit of one message, without its signature."""

ACK_STRUCT = struct.Struct("<IQB")
"""Number of the acknowledged message, last stored row, and whether the node is the deputy.

The report of the head follows, as JSON: see `sentinel.metrics.run_status.run_report`."""

MAX_REPORT_BYTES = 1 << 14
"""Size limit of a report; a longer one is not sent."""


class SlotKeys(NamedTuple):
    """Keys of one slot: the node's hello, its mailbox, and the head's acknowledgement."""

    hello: str
    mailbox: str
    ack: str


@lru_cache(maxsize=1 << 15)
def slot_keys(slot: int) -> SlotKeys:
    """The keys of that slot.

    >>> slot_keys(7).mailbox
    'sentinel/mailbox/7'
    """
    return SlotKeys(f"sentinel/hello/{slot}", f"sentinel/mailbox/{slot}", f"sentinel/ack/{slot}")


class HeadInfo(NamedTuple):
    """What a server publishes about itself.

    `instance_id` names this life of the store. `redirect_to` is the address of the head where that
    is another agent, else "". `run_finished` is whether every rank of the run has ended,
    `is_flooded` whether other programs flood the store.
    """

    instance_id: str
    redirect_to: str = ""
    run_finished: bool = False
    is_flooded: bool = False

    def serialize(self) -> bytes:
        """As JSON, for `deserialize`."""
        fields = {
            "instance_id": self.instance_id,
            "redirect_to": self.redirect_to,
            "run_finished": self.run_finished,
            "is_flooded": self.is_flooded,
        }
        return json.dumps(fields).encode()

    @classmethod
    def deserialize(cls, body: bytes) -> HeadInfo:
        """From JSON. Raises ValueError, LookupError or TypeError for anything else."""
        fields = json.loads(body)
        return cls(
            str(fields["instance_id"]),
            str(fields.get("redirect_to", "")),
            bool(fields.get("run_finished")),
            bool(fields.get("is_flooded")),
        )
