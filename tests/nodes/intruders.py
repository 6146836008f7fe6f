"""Intruders that write to the store of a head, with its token or without."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from hosts import TIMEOUT_SECONDS
from support.rank_processes import until

from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.endpoints import head_endpoint
from sentinel.cluster.protocol import (
    HEAD_INFO_KEY,
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    SLOT_COUNTER_KEY,
    HeadInfo,
    slot_keys,
)
from sentinel.cluster.torch_store import MessageStoreError, TorchStore
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.batch_codec import BatchEncoder
from sentinel.transport.rendezvous import Rendezvous, detect_rendezvous

HOUR_SECONDS = 3600.0
LARGE_STEP_INDEX = 1 << 40
SLOT_FLOOD_COUNT = 500


def connect_to_head(job, host) -> tuple[TorchStore, Rendezvous]:
    """The store of the job's head and its rendezvous, found from that host as by its agent."""
    environ = {"MASTER_ADDR": job.hosts[0].address, "MASTER_PORT": str(job.port)}
    endpoint = head_endpoint(detect_rendezvous(environ))

    def find_store():
        for port in endpoint.ports:
            with suppress(MessageStoreError):
                store = TorchStore.connect(endpoint.host, port)
                if store.has(HEAD_INFO_KEY):
                    return store
        return None

    store = host.within(lambda: until(find_store, TIMEOUT_SECONDS, "the store of the head exists"))
    return store, detect_rendezvous(environ)


def write_garbage(store: TorchStore, slots: range) -> None:
    """Write garbage to the keys of these slots, and take many more slots."""
    foreign = MessageAuthenticator.for_job("", "another job").sign("hello", b"{}")
    for message in (b"", b"garbage", bytes([PROTOCOL_VERSION + 1]) + bytes(64), foreign):
        store.write({slot_keys(store.increment(SLOT_COUNTER_KEY)).hello: message})
    for slot in slots:
        keys = slot_keys(slot)
        store.write({keys.mailbox: bytes(MAX_MESSAGE_BYTES + 1024), keys.ack: b"garbage"})
    store.increment(SLOT_COUNTER_KEY, SLOT_FLOOD_COUNT)


class Insider:
    """A node with the secret of the job that sends invalid messages."""

    def __init__(self, store: TorchStore, job: Rendezvous) -> None:
        self.store, self.authenticator = store, MessageAuthenticator.for_job("", job.job_id)
        (message,) = store.read([HEAD_INFO_KEY])
        head = HeadInfo.deserialize(self.authenticator.verify(HEAD_INFO_KEY, message))
        self.instance_id = head.instance_id

    def join(self) -> None:
        """Start a session, and wait for its acknowledgement."""
        self.encoder = BatchEncoder()
        self.keys = slot_keys(self.store.increment(SLOT_COUNTER_KEY))
        node_info = {"host": "elsewhere", "run": "strange", "spool_id": "its own"}
        self.store.write({self.keys.mailbox: b"", self.keys.ack: b""})
        self._write(self.keys.hello, json.dumps(node_info).encode())
        until(lambda: self.store.read([self.keys.ack])[0], TIMEOUT_SECONDS, "an ack")

    def encode(self, *records: Record) -> bytes:
        """The next message of its session."""
        return self.encoder.encode(records, 1, len(records), time.time())

    def send(self, message: bytes) -> None:
        """Write it to the mailbox, and wait until the head has emptied or deleted the mailbox."""
        self._write(self.keys.mailbox, message)

        def is_empty() -> bool:
            mailbox = self.keys.mailbox
            return not (self.store.has(mailbox) and self.store.read([mailbox])[0])

        until(is_empty, TIMEOUT_SECONDS, "an empty mailbox")

    def _write(self, key: str, body: bytes) -> None:
        self.store.write({key: self.authenticator.sign(f"{key}/{self.instance_id}", body)})


def metadata(sequence: int, *, later: float = 0.0, step_index: int = 1) -> Record:
    """A record of the whole run that has no effect."""
    record_time = time.time() + later
    return Record(
        "", WHOLE_RUN, 1, record_time, Event.METADATA, step_index=step_index, sequence=sequence
    )
