"""Answers of embeddings: vectors as numbers or base64, in the order of their indices."""

from __future__ import annotations

import binascii
from array import array

import msgspec

from gatewayd_hooks.upstreams import UpstreamVectors


class EmbeddingRow(msgspec.Struct):
    """Vector of one input, not decoded yet."""

    index: int
    embedding: msgspec.Raw


class EmbeddingUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int


class EmbeddingAnswer(msgspec.Struct):
    """Body of an answer."""

    data: list[EmbeddingRow]
    usage: EmbeddingUsage | None = None


_decode = msgspec.json.Decoder(EmbeddingAnswer).decode
_decode_vector = msgspec.json.Decoder(list[float] | str).decode


def vectors_of(body: bytes) -> UpstreamVectors:
    """Decode an answer.

    Raises:
        ValueError: it is no answer of embeddings, or its indices are not 0, 1, and so on.
    """
    try:
        answer = _decode(body)
        rows = sorted(answer.data, key=lambda row: row.index)
        if [row.index for row in rows] != list(range(len(rows))):
            raise ValueError("the indices of its embeddings are not 0, 1, and so on")
        # One by one: numbers as objects take much memory, and decoding holds the interpreter lock.
        vectors = [_vector(row.embedding) for row in rows]
    except (msgspec.DecodeError, RecursionError):
        # Without the reason, which may quote the answer.
        raise ValueError("it is no answer of embeddings") from None
    usage = answer.usage
    return UpstreamVectors(vectors, None if usage is None else usage.prompt_tokens)


def _vector(raw: msgspec.Raw) -> array[float] | bytes:
    found = _decode_vector(raw)
    if isinstance(found, str):
        try:
            return binascii.a2b_base64(found, strict_mode=True)
        except ValueError:
            raise ValueError("an embedding is no base64") from None
    return array("d", found)
