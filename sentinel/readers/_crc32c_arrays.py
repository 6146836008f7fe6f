"""CRC-32C of many buffers at once.

Computed for one buffer at a time it would cost more than the rest of reading; for buffers of equal
length, numpy processes one byte of each at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sentinel.readers.crc32c import ALL_ONES, CRC_TABLE, MASK_DELTA, masked_crc32c

MAX_UNVECTORIZED = 4
"""Number of buffers of one length up to which a loop is faster than numpy."""
_CRC_TABLE_ARRAY = np.array(CRC_TABLE, dtype=np.uint32)


def masked_crc32c_batch(buffers: Sequence[bytes]) -> list[int]:
    """The checksum of each buffer."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, buffer in enumerate(buffers):
        by_length[len(buffer)].append(index)
    checksums = [0] * len(buffers)
    for length, indices in by_length.items():
        if len(indices) <= MAX_UNVECTORIZED:
            for index in indices:
                checksums[index] = masked_crc32c(buffers[index])
            continue
        joined = np.frombuffer(b"".join([buffers[i] for i in indices]), dtype=np.uint8)
        sums = _masked_crc32c_rows(joined.reshape(len(indices), length))
        for index, value in zip(indices, sums.tolist(), strict=True):
            checksums[index] = value
    return checksums


def find_record_header(data: bytes) -> int:
    """Offset of the first 12 bytes whose last four are the checksum of the first eight; else -1.

    A record starts with such bytes, and almost nothing else matches.
    """
    if len(data) < 12:
        return -1
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, dtype=np.uint8), 12)
    stored = np.ascontiguousarray(windows[:, 8:]).view("<u4")[:, 0]
    hits = np.flatnonzero(_masked_crc32c_rows(windows[:, :8]) == stored)
    return int(hits[0]) if len(hits) else -1


def _masked_crc32c_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    crc = np.full(len(rows), ALL_ONES, dtype=np.uint32)
    for column in rows.T:
        crc = _CRC_TABLE_ARRAY[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc ^= np.uint32(ALL_ONES)
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(MASK_DELTA)
