"""Flooded message store: other programs fill the store through which the agents exchange messages.

Formula
    Finding  = the head agent closed its store and opened it again in the last 15 seconds

Units
    The store is closed above 1000 keys that no agent wrote, 1000 connections of no agent, or 48 MiB
    plus 0.5 MiB for each node.

Source
    The store of torch.distributed accepts every connection and every key. Who reaches its port can
    fill it, with a token too: the token protects only the content of messages.

Defaults
    No settings. The limits belong to the head agent.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope
from sentinel.model.record import Record


@dataclass
class StoreFlooded(DetectorDefaults):
    """Evaluates `store_flooded`."""

    needs = frozenset({"store_flooded"})
    signal = "store_flooded"
    scope = Scope.PROCESS
    remedy = (
        "Close the port of the head agent to other machines and users: `sentinel doctor` names it, "
        "and `ss -tnp` on its node lists what is connected. Until then records of the other nodes "
        "arrive late; none is lost."
    )

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one heartbeat of the head."""
        if not record.values["store_flooded"] >= 1.0:
            return CLEAR
        text = record.attributes.get("store_flood", "It was closed and opened again.")
        return Finding(f"Another program floods the message store of the head agent. {text}")
