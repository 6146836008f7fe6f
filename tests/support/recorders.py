"""A recorder whose ring can be read back, and objects whose code must never run."""

from sentinel.client.guard import ErrorGuard
from sentinel.client.recorder import Recorder
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import DROP_REASONS, RingCursor, RingReader, RingWriter


class RecordedRank:
    """A recorder, and the contents of its ring."""

    def __init__(self, path, strict=False):
        ring = RingWriter(path, Identity("run"), 1 << 20)
        self.poll_count = 0
        self.recorder = Recorder(ring, ErrorGuard(ring.count_error, strict), self._on_poll)
        self.reader = RingReader(path)

    def _on_poll(self):
        self.poll_count += 1

    def records(self):
        decoder = RecordDecoder("run", 0, 0)
        decoded = map(decoder.decode, self.reader.read(RingCursor()).payloads)
        return [record for record in decoded if record is not None]

    def values(self):
        return [dict(record.values) for record in self.records()]

    def drops(self):
        counts = zip(DROP_REASONS, self.reader.read_header().drop_counts, strict=True)
        return {reason: count for reason, count in counts if count}

    def take_step(self, **values):
        """One optimizer step, as the training loop records it."""
        self.recorder.clock.in_progress = True
        self.recorder.record_step(values, {})


class Hostile:
    """An object of which every operation raises."""

    def _raise(self, *args):
        raise RuntimeError("accessed")

    __float__ = __int__ = __index__ = __str__ = __repr__ = __eq__ = __len__ = __bool__ = _raise
    __hash__ = _raise
    __getattr__ = _raise


class HostileFloat(float):
    __float__ = __str__ = __repr__ = __eq__ = Hostile._raise
    __hash__ = Hostile._raise
