"""Embeddings of an upstream: received within bounds, decoded in a thread, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewayd.errors import GatewayError, UnsupportedByModel, UpstreamError
from gatewayd.fairness.fair_threads import FairThreads
from gatewayd.upstreams.response import MOST_ANSWER_BYTES
from gatewayd_hooks.upstreams import UpstreamVectors, VectorsDecoder

Vectors = NDArray[np.float64]

_VECTOR_BYTES = 1 << 20
"""Maximum length of a vector in an answer: 40,000 numbers as text."""
_MOST_NUMBER = float(np.finfo(np.float32).max)

# Few, and separate from those that encode answers: each competes with the event loop for the GIL.
_threads = FairThreads("gatewayd-upstream", 2)


class RelayedVectors(NamedTuple):
    """Checked embeddings.

    Attributes:
        vectors: in the order of the inputs, shape ``[inputs, dimensions]``.
        prompt_tokens: of all inputs; None if the upstream reports none.
    """

    vectors: Vectors
    prompt_tokens: int | None


def num_inputs(body: Mapping[str, Any]) -> int:
    """Return the number of inputs of a request; token ids in a list are one input."""
    given: str | Sequence[Any] = body["input"]
    return 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)


def most_bytes(body: Mapping[str, Any]) -> int:
    """Return the maximum length of the answer to a request."""
    return min(MOST_ANSWER_BYTES, (1 + num_inputs(body)) * _VECTOR_BYTES)


async def decoded(decode: VectorsDecoder, body: Mapping[str, Any], upstream: str) -> RelayedVectors:
    """Decode an answer and check its vectors.

    Args:
        decode: the strategy's decoder of the answer.
        body: of the request.
        upstream: its name, for errors.

    Raises:
        ValueError: the answer does not follow the upstream's API.
        GatewayError: its vectors cannot be used, which depends on the request.
    """
    count, dimensions = num_inputs(body), body.get("dimensions")
    found = await _threads.run(lambda: _checked(decode(), count, dimensions, upstream))
    if isinstance(found, GatewayError):
        raise found
    return found


def _checked(
    answer: UpstreamVectors, count: int, dimensions: int | None, upstream: str
) -> RelayedVectors | GatewayError:
    """Check an answer; return an error that is no fault of the endpoint.

    Raises:
        ValueError: the answer does not follow the upstream's API.
    """
    given, tokens = answer.vectors, answer.prompt_tokens
    if len(given) != count:
        raise ValueError(f"it has {len(given)} embeddings; the request has {count} inputs")
    rows = [_row(one) for one in given]
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1 or lengths == [0]:
        raise ValueError(f"its embeddings have {lengths[0]} and {lengths[-1]} dimensions")
    # Neither of these two ejects an endpoint: a client could cause them by its request.
    if dimensions is not None and lengths != [dimensions]:
        return UnsupportedByModel(
            f"the upstream {upstream} does not reduce embeddings to {dimensions} dimensions, it "
            f"returns {lengths[0]}: omit dimensions",
            param="dimensions",
        )
    vectors: Vectors = np.stack(rows)
    # Also of what base64 of the answer could not hold; NaN compares as false.
    if not (np.abs(vectors) <= _MOST_NUMBER).all():
        return UpstreamError(f"the upstream {upstream} failed: its embeddings are not finite")
    return RelayedVectors(vectors, tokens)


def _row(vector: Sequence[float] | bytes) -> Vectors:
    """Convert one vector; ``frombuffer`` refuses bytes that are no whole numbers."""
    if isinstance(vector, bytes):
        return np.frombuffer(vector, "<f4").astype(np.float64)
    return np.array(vector, dtype=np.float64)
