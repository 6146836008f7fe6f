"""A recorder with a ring to read back; and things nobody should look at."""

from sentinel.client.guard import ErrorGuard
from sentinel.client.recorder import Recorder
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import DROP_REASONS, RingCursor, RingReader, RingWriter


class Told:
    """A recorder, and what its ring holds."""

    def __init__(self, path, strict=False):
        ring = RingWriter(path, Identity("run"), 1 << 20)
        self.ticks = 0
        self.recorder = Recorder(ring, ErrorGuard(ring.count_error, strict), self._tick)
        self.reader = RingReader(path)

    def _tick(self):
        self.ticks += 1

    def records(self):
        unpacker = RecordDecoder("run", 0, 0)
        found = map(unpacker.decode, self.reader.read(RingCursor()).payloads)
        return [record for record in found if record is not None]

    def values(self):
        return [dict(record.values) for record in self.records()]

    def drops(self):
        counts = zip(DROP_REASONS, self.reader.read_header().drop_counts, strict=True)
        return {reason: count for reason, count in counts if count}

    def stepped(self, **values):
        """One optimizer step, as the taps tell of it."""
        self.recorder.clock.in_progress = True
        self.recorder.record_step(values, {})


class Evil:
    """Every question about it raises."""

    def _raise(self, *args):
        raise RuntimeError("looked at")

    __float__ = __int__ = __index__ = __str__ = __repr__ = __eq__ = __len__ = __bool__ = _raise
    __hash__ = _raise
    __getattr__ = _raise


class EvilFloat(float):
    __float__ = __str__ = __repr__ = __eq__ = Evil._raise
    __hash__ = Evil._raise
