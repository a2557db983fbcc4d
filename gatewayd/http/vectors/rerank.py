"""``POST /v1/rerank`` and ``POST /v1/score``: cosine similarity of embeddings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gatewayd.errors import InvalidRequest
from gatewayd.http.asgi import encode_json
from gatewayd.http.schema.rerank import DocumentText, RerankRequest, ScoreRequest
from gatewayd.http.vectors.pooling import PoolingInput, Vectors, normalize
from gatewayd.http.vectors.routes import VectorResponse, VectorRoute

_Texts = str | Sequence[str] | Sequence[str | DocumentText]


class Rerank(VectorRoute[RerankRequest]):
    """Route that ranks documents by similarity to a query."""

    label = "/v1/rerank"
    table = RerankRequest

    def inputs(self, request: RerankRequest) -> Sequence[PoolingInput]:
        """Return the query followed by the documents."""
        limit = request.max_tokens_per_doc
        documents = enumerate(_each(request.documents))
        return [
            PoolingInput(request.query, "query"),
            *[PoolingInput(one, "documents", at, limit) for at, one in documents],
        ]

    def write(self, request: RerankRequest, answered: VectorResponse) -> bytes:
        """Encode the documents by descending similarity; ties keep their order."""
        scores = cosines(answered.vectors[:1], answered.vectors[1:])
        order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
        documents = _each(request.documents)
        results = []
        for at in order[: request.top_n or None]:
            result: dict[str, Any] = {"index": at, "relevance_score": scores[at]}
            if request.return_documents is not False:
                result["document"] = {"text": documents[at]}
            results.append(result)
        return encode_json(
            {
                "id": f"rerank-{answered.id}",
                "model": answered.model,
                "usage": answered.usage,
                "results": results,
            }
        )


class Score(VectorRoute[ScoreRequest]):
    """Route that scores the similarity of pairs of texts."""

    label = "/v1/score"
    table = ScoreRequest

    def inputs(self, request: ScoreRequest) -> Sequence[PoolingInput]:
        """Return the first texts followed by the second texts."""
        (first, one), (second, other) = _sides(request)
        if len(one) not in (1, len(other)):
            raise InvalidRequest(
                f"{first} has {len(one)} texts and {second} has {len(other)}; {first} must have "
                "one, or as many",
                param=first,
            )
        return [
            *[PoolingInput(text, first, at) for at, text in enumerate(one)],
            *[PoolingInput(text, second, at) for at, text in enumerate(other)],
        ]

    def write(self, request: ScoreRequest, answered: VectorResponse) -> bytes:
        """Encode a score for each of the second texts."""
        middle = len(_sides(request)[0][1])
        scores = cosines(answered.vectors[:middle], answered.vectors[middle:])
        return encode_json(
            {
                "id": f"score-{answered.id}",
                "object": "list",
                "created": int(time.time()),
                "model": answered.model,
                "data": [
                    {"index": at, "object": "score", "score": score}
                    for at, score in enumerate(scores)
                ],
                "usage": answered.usage,
            }
        )


def cosines(one: Vectors, other: Vectors) -> list[float]:
    """Return the cosine similarities of vectors row by row; a single row is broadcast."""
    products = np.sum(normalize(one) * normalize(other), axis=1)
    # Rounding may exceed the bounds.
    scores: list[float] = products.clip(-1, 1).tolist()
    return scores


def _sides(request: ScoreRequest) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
    """Return both fields with their texts.

    Raises:
        InvalidRequest: one is missing, or given under both of its names.
    """
    return (
        _side("text_1", request.text_1, "queries", request.queries),
        _side("text_2", request.text_2, "documents", request.documents),
    )


def _side(
    name: str, texts: _Texts | None, other_name: str, others: _Texts | None
) -> tuple[str, list[str]]:
    if texts is not None and others is not None:
        raise InvalidRequest(f"{name} and {other_name} are the same; send one", param=other_name)
    if texts is not None:
        return name, _each(texts)
    if others is not None:
        return other_name, _each(others)
    raise InvalidRequest(f"{name} is required", param=name, code="missing_required_parameter")


def _each(texts: _Texts) -> list[str]:
    if isinstance(texts, str):
        return [texts]
    return [one.text if isinstance(one, DocumentText) else one for one in texts]
