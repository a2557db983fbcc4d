"""Conformance tests of upstreams, for any API."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.parsing import Part, Reasoning, Text, ToolCall
from gatewayd_hooks.testing.samples.campaign import campaign
from gatewayd_hooks.testing.samples.fake_upstream import FakeUpstreamHttp, ScriptedResponse
from gatewayd_hooks.upstreams import (
    Delta,
    EmbedsInputs,
    UpstreamCall,
    UpstreamCounts,
    UpstreamOutput,
    UpstreamRefusal,
    UpstreamResources,
    UpstreamStrategy,
    UpstreamVectors,
    VectorsDecoder,
)

KEY = "a-key-of-the-kit"
CHAT = UpstreamCall(
    "chat",
    {"model": "theirs", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "req_1",
)
EMBEDDING = UpstreamCall("embedding", {"model": "theirs", "input": ["hi", "ho"]}, "req_2")
_STATUSES = (400, 401, 403, 404, 413, 429, 500, 503)
_ERRORS = (b"", b"<html>", b'{"error":{"message":"a reason","type":"x"}}', b"[1]")
_REASONS = ("stop", "length", "tool_calls", "content_filter")


class RecordedAnswer(NamedTuple):
    """An answer of the upstream, as it was recorded.

    Attributes:
        call: the request.
        body: of the response.
        text: of the answer.
        reasoning: of the answer.
        tools: names of the functions that it calls.
        finish_reason: of its only choice.
        counts: that it reports at last; None for none.
        content_type: of the response.
    """

    call: UpstreamCall
    body: bytes
    text: str = ""
    reasoning: str = ""
    tools: tuple[str, ...] = ()
    finish_reason: str = "stop"
    counts: UpstreamCounts | None = None
    content_type: str = "text/event-stream"


class RecordedVectors(NamedTuple):
    """An answer of embeddings, as it was recorded.

    Attributes:
        call: the request.
        body: of the response.
        vectors: of the inputs, in their order; of float32 values.
        prompt_tokens: that it reports; None for none.
        content_type: of the response.
    """

    call: UpstreamCall
    body: bytes
    vectors: Sequence[Sequence[float]]
    prompt_tokens: int | None = None
    content_type: str = "application/json"


class UpstreamConformance:
    """Subclass it and build your upstream in ``make``."""

    def make(self) -> UpstreamStrategy:
        """Build the upstream; the tests open and close it."""
        raise NotImplementedError("return your upstream, built and not opened")

    def recordings(self) -> list[RecordedAnswer]:
        """Return recorded answers of one choice; the more, the more is tested."""
        return []

    def recorded_vectors(self) -> list[RecordedVectors]:
        """Return recorded answers of embeddings, if the upstream embeds."""
        return []

    def _recordings(self) -> list[RecordedAnswer]:
        return self.recordings() or pytest.skip("recordings() returns no answers")

    @contextmanager
    def opened(self) -> Iterator[UpstreamStrategy]:
        """Yield an opened upstream."""
        upstream = self.make()
        try:
            upstream.open(UpstreamResources("theirs", KEY))
            yield upstream
        finally:
            upstream.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_recorded_answers_are_translated(self) -> None:
        for recorded in self._recordings():
            http = FakeUpstreamHttp([_response(recorded)])
            with self.opened() as upstream:
                outputs, error = asyncio.run(_read(upstream, recorded.call, http))
            assert error is None
            parts = _parts(outputs)
            assert "".join(one.text for one in parts if isinstance(one, Text)) == recorded.text
            thought = "".join(one.text for one in parts if isinstance(one, Reasoning))
            assert thought == recorded.reasoning
            calls = [one for one in parts if isinstance(one, ToolCall)]
            assert tuple(call.name for call in calls) == recorded.tools
            assert [call.call for call in calls] == list(range(len(calls)))
            assert _reasons(outputs) == [recorded.finish_reason]
            counts = [one for one in outputs if isinstance(one, UpstreamCounts)]
            assert (counts[-1] if counts else None) == recorded.counts

    def test_its_requests_are_posts_with_the_model_and_the_key(self) -> None:
        for recorded in self._recordings():
            http = FakeUpstreamHttp([_response(recorded)])
            with self.opened() as upstream:
                asyncio.run(_read(upstream, recorded.call, http))
            assert http.sent
            for sent in http.sent:
                assert (sent.method, sent.path[:1]) == ("POST", "/")
                assert isinstance(msgspec.json.decode(sent.body), dict)
                assert recorded.call.body["model"].encode() in sent.path.encode() + sent.body
                assert any(KEY in value for value in sent.headers.values())
                # Bodies are logged and stored where headers are not.
                assert KEY.encode() not in sent.body + sent.path.encode()

    def test_an_answer_that_breaks_off_is_not_complete(self) -> None:
        """However much of it has arrived; the gateway tells by the missing finish reason."""
        for recorded in self._recordings():
            lines = recorded.body.splitlines(keepends=True)
            for count in range(len(lines)):
                response = ScriptedResponse(
                    b"".join(lines[:count]), content_type=recorded.content_type, breaks=True
                )
                with self.opened() as upstream:
                    outputs, error = asyncio.run(
                        _read(upstream, recorded.call, FakeUpstreamHttp([response]))
                    )
                assert isinstance(error, OSError) or _reasons(outputs), "it hides that it broke"

    def test_errors_keep_their_status(self) -> None:
        for status in _STATUSES:
            for body in _ERRORS:
                http = FakeUpstreamHttp([ScriptedResponse(body, status, "application/json")])
                with self.opened() as upstream:
                    outputs, error = asyncio.run(_read(upstream, CHAT, http))
                assert not outputs
                assert isinstance(error, UpstreamRefusal)
                assert error.status == status
                assert KEY not in str(error)

    @campaign
    @given(
        lines=st.lists(
            st.binary(max_size=30)
            | st.sampled_from(
                [b"data: {}", b"data: []", b'data: {"choices": [{}]}', b"{}", b"", b"event: x"]
            ),
            max_size=8,
        ),
        content_type=st.sampled_from(["text/event-stream", "application/json", ""]),
    )
    def test_any_answer_is_read_or_refused(self, lines: list[bytes], content_type: str) -> None:
        """Any other exception would be a fault of the strategy instead of the upstream's."""
        response = ScriptedResponse(b"\n".join(lines), content_type=content_type)
        with self.opened() as upstream:
            outputs, error = asyncio.run(_read(upstream, CHAT, FakeUpstreamHttp([response])))
        assert error is None or isinstance(error, UpstreamRefusal | ValueError | OSError)
        assert all(isinstance(one, Delta | UpstreamCounts) for one in outputs)

    def test_recorded_embeddings_are_decoded(self) -> None:
        for recorded in self._recorded_vectors():
            http = FakeUpstreamHttp([_whole(recorded)])
            with self.opened() as upstream:
                found = _embedded(upstream, recorded.call, http)
            assert isinstance(found, UpstreamVectors)
            assert [_numbers(one) for one in found.vectors] == [list(v) for v in recorded.vectors]
            assert found.prompt_tokens == recorded.prompt_tokens
            assert http.sent
            for sent in http.sent:
                assert (sent.method, sent.path[:1]) == ("POST", "/")
                assert recorded.call.body["model"].encode() in sent.path.encode() + sent.body
                assert any(KEY in value for value in sent.headers.values())
                assert KEY.encode() not in sent.body + sent.path.encode()

    def test_embeddings_that_break_off_are_an_error(self) -> None:
        for recorded in self._recorded_vectors():
            for length in (0, len(recorded.body) // 2):
                cut = recorded._replace(body=recorded.body[:length])
                with self.opened() as upstream:
                    broken = FakeUpstreamHttp([_whole(cut, breaks=True)])
                    assert isinstance(_embedded(upstream, recorded.call, broken), OSError)
                    ended = FakeUpstreamHttp([_whole(cut)])
                    assert isinstance(_embedded(upstream, recorded.call, ended), ValueError)

    def test_errors_of_embeddings_keep_their_status(self) -> None:
        for status in _STATUSES if self._embeds() else ():
            for body in _ERRORS:
                http = FakeUpstreamHttp([ScriptedResponse(body, status, "application/json")])
                with self.opened() as upstream:
                    error = _embedded(upstream, EMBEDDING, http)
                assert isinstance(error, UpstreamRefusal)
                assert error.status == status
                assert KEY not in str(error)

    @campaign
    @given(
        body=st.binary(max_size=60)
        | st.sampled_from(
            [b"{}", b"[]", b"null", b'{"data": [{}]}', b'{"embeddings": [[1, null]]}', b"[" * 9999]
        ),
        content_type=st.sampled_from(["application/json", "text/plain", ""]),
    )
    def test_any_answer_of_embeddings_is_read_or_refused(
        self, body: bytes, content_type: str
    ) -> None:
        if self._embeds():
            http = FakeUpstreamHttp([ScriptedResponse(body, content_type=content_type)])
            with self.opened() as upstream:
                found = _embedded(upstream, EMBEDDING, http)
            assert isinstance(found, UpstreamVectors | UpstreamRefusal | ValueError | OSError)

    def _embeds(self) -> bool:
        return isinstance(self.make(), EmbedsInputs)

    def _recorded_vectors(self) -> list[RecordedVectors]:
        if not self._embeds():
            return []
        return self.recorded_vectors() or pytest.skip("recorded_vectors() returns no answers")

    def test_a_probe_tells_whether_it_serves(self) -> None:
        with self.opened() as upstream:
            asyncio.run(_probe(upstream, ScriptedResponse(b"{}")))
            with pytest.raises(UpstreamRefusal):
                asyncio.run(_probe(upstream, ScriptedResponse(b"", 503)))


def _response(recorded: RecordedAnswer) -> ScriptedResponse:
    return ScriptedResponse(recorded.body, content_type=recorded.content_type)


def _whole(recorded: RecordedVectors, *, breaks: bool = False) -> ScriptedResponse:
    return ScriptedResponse(recorded.body, content_type=recorded.content_type, breaks=breaks)


def _embedded(
    upstream: UpstreamStrategy, call: UpstreamCall, http: FakeUpstreamHttp
) -> UpstreamVectors | Exception:
    """Return decoded embeddings, or the error instead of these."""
    assert isinstance(upstream, EmbedsInputs)
    try:
        return asyncio.run(_received(upstream.embed(call, http)))()
    except Exception as error:  # noqa: BLE001 - the tests tell which are allowed
        return error


async def _received(answer: Awaitable[VectorsDecoder]) -> VectorsDecoder:
    return await answer


def _numbers(vector: Sequence[float] | bytes) -> list[float]:
    if isinstance(vector, bytes):
        return [number for (number,) in struct.iter_unpack("<f", vector)]
    return list(vector)


async def _probe(upstream: UpstreamStrategy, response: ScriptedResponse) -> None:
    await upstream.probe(FakeUpstreamHttp([response]))


async def _read(
    upstream: UpstreamStrategy, call: UpstreamCall, http: FakeUpstreamHttp
) -> tuple[list[UpstreamOutput], Exception | None]:
    """Read an answer to its end; return its output and the error that ended it."""
    outputs: list[UpstreamOutput] = []
    try:
        async for output in upstream.answer(call, http):
            outputs.append(output)  # noqa: PERF401 - what came before an error counts
    except Exception as error:  # noqa: BLE001 - the tests tell which are allowed
        return outputs, error
    return outputs, None


def _parts(outputs: list[UpstreamOutput]) -> list[Part]:
    return [part for one in outputs if isinstance(one, Delta) for part in one.parts]


def _reasons(outputs: list[UpstreamOutput]) -> list[str]:
    found = [one.finish_reason for one in outputs if isinstance(one, Delta) and one.finish_reason]
    assert all(reason in _REASONS for reason in found)
    return found
