"""Upstream conformance: rejects invented ends, lost text, hidden errors and leaked keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gatewayd_hooks.parsing import Text
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.targets.upstreams import (
    CHAT,
    EMBEDDING,
    KEY,
    RecordedAnswer,
    RecordedVectors,
    UpstreamConformance,
)
from gatewayd_hooks.upstreams import (
    Delta,
    UpstreamCall,
    UpstreamCounts,
    UpstreamOutput,
    UpstreamRefusal,
    UpstreamVectors,
    VectorsDecoder,
)

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]
BODY = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)
VECTORS = (
    b'{"data":[{"index":1,"embedding":[3,4]},{"index":0,"embedding":[1,2]}],'
    b'"usage":{"prompt_tokens":5}}'
)


class Answers(UpstreamConformance):
    """With something to translate."""

    def recordings(self) -> list[RecordedAnswer]:
        return [RecordedAnswer(CHAT, BODY, "Hello", counts=UpstreamCounts(5, 2))]

    def recorded_vectors(self) -> list[RecordedVectors]:
        return [RecordedVectors(EMBEDDING, VECTORS, [[1.0, 2.0], [3.0, 4.0]], 5)]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(Answers, Kind.UPSTREAM, "openai") == []


def changed(
    upstream: Any, change: Callable[[AsyncIterator[UpstreamOutput]], AsyncIterator[UpstreamOutput]]
) -> None:
    own = upstream.answer
    upstream.answer = lambda call, http: change(own(call, http))


def invents_an_end(upstream: Any) -> None:
    async def change(outputs: AsyncIterator[UpstreamOutput]) -> AsyncIterator[UpstreamOutput]:
        try:
            async for output in outputs:
                yield output
        except OSError:
            return

    changed(upstream, change)


def loses_text(upstream: Any) -> None:
    async def change(outputs: AsyncIterator[UpstreamOutput]) -> AsyncIterator[UpstreamOutput]:
        async for output in outputs:
            yield output._replace(parts=[]) if isinstance(output, Delta) else output

    changed(upstream, change)


def counts_nothing(upstream: Any) -> None:
    async def change(outputs: AsyncIterator[UpstreamOutput]) -> AsyncIterator[UpstreamOutput]:
        async for output in outputs:
            if isinstance(output, Delta):
                yield output

    changed(upstream, change)


def answers_errors(upstream: Any) -> None:
    async def change(outputs: AsyncIterator[UpstreamOutput]) -> AsyncIterator[UpstreamOutput]:
        try:
            async for output in outputs:
                yield output
        except UpstreamRefusal as refusal:
            yield Delta(0, [Text(str(refusal))], "stop")

    changed(upstream, change)


def raises_a_key_error(upstream: Any) -> None:
    async def change(outputs: AsyncIterator[UpstreamOutput]) -> AsyncIterator[UpstreamOutput]:
        try:
            async for output in outputs:
                yield output
        except ValueError:
            raise KeyError("choices") from None

    changed(upstream, change)


def sends_its_key_in_the_body(upstream: Any) -> None:
    own = upstream.answer

    def answer(call: UpstreamCall, http: Any) -> AsyncIterator[UpstreamOutput]:
        found: AsyncIterator[UpstreamOutput] = own(
            call._replace(body={**call.body, "user": KEY}), http
        )
        return found

    upstream.answer = answer


def sends_no_key(upstream: Any) -> None:
    upstream.open = lambda resources: None


def changed_vectors(
    upstream: Any, change: Callable[[VectorsDecoder], Any], *, on_error: Any = None
) -> None:
    own = upstream.embed

    async def embed(call: UpstreamCall, http: Any) -> VectorsDecoder:
        try:
            decode = await own(call, http)
        except (UpstreamRefusal, OSError):
            if on_error is None:
                raise
            return lambda: UpstreamVectors(on_error)
        return lambda: change(decode)

    upstream.embed = embed


def mixes_up_vectors(upstream: Any) -> None:
    def change(decode: VectorsDecoder) -> UpstreamVectors:
        found = decode()
        return found._replace(vectors=found.vectors[::-1])

    changed_vectors(upstream, change)


def counts_no_inputs(upstream: Any) -> None:
    changed_vectors(upstream, lambda decode: decode()._replace(prompt_tokens=None))


def invents_vectors(upstream: Any) -> None:
    changed_vectors(upstream, lambda decode: decode(), on_error=[[1.0], [1.0]])


def embeds_garbage(upstream: Any) -> None:
    def change(decode: VectorsDecoder) -> UpstreamVectors:
        try:
            return decode()
        except ValueError:
            raise KeyError("data") from None

    changed_vectors(upstream, change)


def is_always_healthy(upstream: Any) -> None:
    async def probe(http: Any) -> None:
        await http.get("/", {})

    upstream.probe = probe


@pytest.mark.parametrize(
    "broken",
    [
        invents_an_end,
        loses_text,
        counts_nothing,
        answers_errors,
        raises_a_key_error,
        sends_its_key_in_the_body,
        sends_no_key,
        is_always_healthy,
        mixes_up_vectors,
        counts_no_inputs,
        invents_vectors,
        embeds_garbage,
    ],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(Answers, Kind.UPSTREAM, "openai", broken)
