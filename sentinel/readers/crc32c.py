"""CRC-32C, the checksum of TensorBoard's records.

The standard library has no CRC with Castagnoli's polynomial. `_crc32c_arrays` computes that of many
buffers.
"""

from __future__ import annotations

POLYNOMIAL = 0x82F63B78
ALL_ONES = 0xFFFFFFFF
MASK_DELTA = 0xA282EAD8
"""Constant that the format adds after a rotation by 15 bits, so that a checksum of data that holds
checksums stays strong."""


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


CRC_TABLE = tuple(map(_table_entry, range(256)))


def masked_crc32c(data: bytes) -> int:
    """The checksum as the format stores it."""
    crc = ALL_ONES
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= ALL_ONES
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & ALL_ONES
