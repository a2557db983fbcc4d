"""Tensors of one element: texts (``BYTES``) and flags (``BOOL``), in both of their encodings."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from gatewayd_hooks.protocols import RequestRefusal

_LENGTH = struct.Struct("<I")
"""Before each element of ``BYTES`` in raw contents."""


def read_inputs(request: Any, known: dict[str, str]) -> dict[str, Any]:  # noqa: ANN401
    """Return the values of a request's inputs, by name: text as ``str``, flags as ``bool``.

    Args:
        request: a ``ModelInferRequest``.
        known: datatypes of all inputs.

    Raises:
        RequestRefusal: an input is unknown, repeated or invalid.
    """
    raw: Sequence[bytes] = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise _refusal(
            "raw_input_contents", f"has {len(raw)} entries; it must have one for each input"
        )
    found: dict[str, Any] = {}
    for at, tensor in enumerate(request.inputs):
        name = tensor.name
        if name not in known:
            raise _refusal(
                f"inputs[{at}].name", f"is {name[:64]!r}; the inputs are {', '.join(known)}"
            )
        if name in found:
            raise _refusal(name, "is repeated; an input must be given once")
        if tensor.datatype != known[name]:
            raise _refusal(name, f"has datatype {tensor.datatype[:16]!r}; it must be {known[name]}")
        found[name] = _value(tensor, raw[at] if raw else None)
    return found


def _value(tensor: Any, raw: bytes | None) -> str | bool:  # noqa: ANN401
    name, shape = tensor.name, list(tensor.shape)
    if len(shape) > 8 or any(size != 1 for size in shape):
        # Not the product: of -1 twice it would be 1.
        raise _refusal(name, f"has shape {shape[:8]}; it must have one element, such as [1]")
    if raw is not None and tensor.HasField("contents"):
        raise _refusal(name, "has both contents and raw contents; send one of them")
    if tensor.datatype == "BOOL":
        flags = tensor.contents.bool_contents if raw is None else raw
        if len(flags) != 1:
            raise _refusal(name, f"has {len(flags)} elements; its shape says 1")
        return bool(flags[0])
    texts = list(tensor.contents.bytes_contents) if raw is None else _elements(name, raw)
    if len(texts) != 1:
        raise _refusal(name, f"has {len(texts)} elements; its shape says 1")
    try:
        return texts[0].decode()
    except UnicodeDecodeError as error:
        raise _refusal(name, f"is not UTF-8 at byte {error.start}") from None


def _elements(name: str, raw: bytes) -> list[bytes]:
    """Split raw contents into elements, at most two: more are refused by their number."""
    found: list[bytes] = []
    at = 0
    while at < len(raw) and len(found) < 2:
        end = at + _LENGTH.size
        size: int = _LENGTH.unpack_from(raw, at)[0] if end <= len(raw) else len(raw)
        if end + size > len(raw):
            raise _refusal(
                name, "is cut off: each element is its length, 4 bytes little-endian, and its bytes"
            )
        found.append(raw[end : end + size])
        at = end + size
    return found


def add_text(response: Any, name: str, text: str, *, is_raw: bool) -> None:  # noqa: ANN401
    """Add an output of one text.

    Args:
        response: a ``ModelInferResponse``.
        name: of the output.
        text: its element.
        is_raw: whether as raw contents.
    """
    output = response.outputs.add(name=name, datatype="BYTES", shape=[1])
    data = text.encode()
    if is_raw:
        response.raw_output_contents.append(_LENGTH.pack(len(data)) + data)
    else:
        output.contents.bytes_contents.append(data)


def _refusal(place: str, reason: str) -> RequestRefusal:
    return RequestRefusal(400, f"{place} {reason}", param=place)
