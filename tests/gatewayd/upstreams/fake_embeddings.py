"""Answers of an upstream's embeddings, and faults of these, for a fake upstream."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from aiohttp import web

from tests.gatewayd.upstreams.fake_upstream import Answer, cut

DIMENSIONS = 6


def vector_of(text: object, dimensions: int | None = None) -> Any:
    """Made up; the same for the same input. Not of length 1, as a gateway's own are."""
    seed = zlib.crc32(json.dumps(text).encode())
    return 3 * np.random.default_rng(seed).normal(size=dimensions or DIMENSIONS)


def inputs_of(body: dict[str, Any]) -> list[Any]:
    given = body["input"]
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given


@dataclass
class Embeds:
    """Whole answers, whose rows are in the reverse order of their indices.

    Attributes:
        charged: prompt tokens of all answers so far.
        is_plain: whether ``encoding_format`` has no effect.
        counts: whether it reports token counts.
    """

    charged: int = 0
    is_plain: bool = False
    counts: bool = True

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        given = inputs_of(body)
        packs = body.get("encoding_format") == "base64" and not self.is_plain
        rows = []
        for at, one in enumerate(given):
            vector = vector_of(one, body.get("dimensions"))
            packed = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            rows.append(row(at, packed if packs else vector.tolist()))
        tokens = sum(len(one) for one in given) + len(given)
        self.charged += tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens} if self.counts else None
        return web.json_response(
            {"object": "list", "data": rows[::-1], "model": "theirs", "usage": usage}
        )


def row(at: int, vector: object) -> dict[str, Any]:
    return {"object": "embedding", "index": at, "embedding": vector}


def answers(*rows: object) -> Answer:
    """A whole answer with these rows."""
    data = {"data": list(rows), "usage": {"prompt_tokens": 7}}

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=json.dumps(data), content_type="application/json")

    return answer


def begins(*pieces: bytes, ends: str) -> Answer:
    """The beginning of an answer, which then ``hangs``, is ``cut`` or ``trickles``."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if ends == "cut":
            await asyncio.sleep(0.05)  # otherwise nothing of it arrives
            cut(request)
        while ends == "trickles":
            await response.write(b" ")
            await asyncio.sleep(0.05)
        if ends != "well":
            await asyncio.sleep(60)
        return response

    return answer


def packed(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()
