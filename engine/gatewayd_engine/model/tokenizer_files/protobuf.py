"""Fields of a protobuf message, without a schema: what SentencePiece's files consist of.

Source: the encoding that protobuf.dev documents. Groups, which are deprecated, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_LONGEST_VARINT = 10


class NotProtobuf(ValueError):
    """The bytes are no message; the message says where."""


def fields(data: memoryview) -> Iterator[tuple[int, int | float | memoryview]]:
    """Yield numbers and values of fields in order; copies nothing.

    Integers are unsigned, 32 bits are float32, and the rest are bytes.

    Raises:
        NotProtobuf: the bytes are cut, or no message.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or number == 0:
            raise NotProtobuf(f"byte {at} begins no field")
        if size > len(data) - at:
            raise NotProtobuf(f"a field of {size} bytes at {at} is cut")
        part = data[at : at + size]
        yield number, struct.unpack("<f", part)[0] if kind == 5 else part
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise NotProtobuf(f"no number ends at byte {at}")
