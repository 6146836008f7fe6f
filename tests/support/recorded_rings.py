"""What the rings under `$SENTINEL_RUNTIME_DIR` hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sentinel.model.record import Record
from sentinel.transport import paths
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingHeader, RingReader


def read_rings() -> dict[int, list[Record]]:
    """Records of every ring under `$SENTINEL_RUNTIME_DIR`, by rank, attempts joined."""
    found: dict[int, list[Record]] = {}
    for header, reader in open_rings():
        identity = header.identity
        decoder = RecordDecoder(identity.run, identity.attempt, identity.rank)
        batch = reader.read(RingCursor())
        assert (batch.lost_frames, batch.corrupt_frames) == (0, 0)
        records = [decoder.decode(payload) for payload in batch.payloads]
        found.setdefault(identity.rank, []).extend(r for r in records if r is not None)
    return found


def open_rings() -> Iterator[tuple[RingHeader, RingReader]]:
    """Header and reader of each ring; the reader is closed after its turn."""
    root = Path(os.environ["SENTINEL_RUNTIME_DIR"])
    for run in sorted(root.iterdir()) if root.is_dir() else []:
        for path in paths.list_rings(run.name):
            reader = RingReader(path)
            yield reader.read_header(), reader
            reader.close()
