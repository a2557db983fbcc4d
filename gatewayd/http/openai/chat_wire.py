"""Encoder of ``/v1/chat/completions`` responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewayd.http.asgi import encode_json
from gatewayd.http.openai.prompt_logprobs import encode_prompt_logprobs, pop_prompt_logprobs
from gatewayd.http.openai.wire import (
    Identity,
    chunk_usage,
    finite,
    last_events,
    local,
    stop_fields,
    token_text,
    usage_of,
)
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.choice_types import RelayedToken, ScoredToken
from gatewayd.pipeline.generation import Generation
from gatewayd.text.tokenizer import Tokenizer

_CHUNK = b"chat.completion.chunk"
_AFTER_TEXT = b'},"logprobs":null,"finish_reason":null}]'


class ChatWire:
    """Encodes chat completions and their chunks."""

    def __init__(self, identity: Identity, tokenizer: Tokenizer | None, num_choices: int) -> None:
        self._identity = identity
        self._tokenizer = tokenizer
        tier = identity.service_tier
        self._tier = b"" if tier is None else b'"service_tier":%b,' % encode_json(tier)
        head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,%b"choices":[{"index":' % (
            encode_json(identity.id),
            _CHUNK,
            identity.created,
            encode_json(identity.model),
            self._tier,
        )
        self._heads = [head + b'%d,"delta":{' % index for index in range(num_choices)]
        self._is_plain = not (identity.with_ids or identity.with_logprobs)
        # None if the usage changes with each chunk.
        self._tail = None
        if not identity.continuous_usage:
            self._tail = b',"usage":null}\n\n' if identity.include_usage else b"}\n\n"

    def opening(self, generation: Generation) -> bytes:
        """Encode the role of each choice."""
        return self._opening(generation, b'"role":"assistant","content":""')

    def _opening(self, generation: Generation, role: bytes) -> bytes:
        ids = b""
        if self._identity.with_ids:
            ids = b',"prompt_token_ids":' + encode_json(list(generation.work.requests[0].prompt))
        tail = ids + chunk_usage(self._identity, generation)
        return b"".join([head + role + _AFTER_TEXT + tail for head in self._heads])

    def before_chunk(self, generation: Generation, choice: Choice) -> None:
        """Return None: chunks are small."""

    def chunk(self, generation: Generation, choice: Choice) -> bytes:
        """Encode the new text, and the finish reason at the end."""
        text = choice.pop_text()
        out = b""
        if self._is_plain:
            if text:
                head = self._heads[choice.index]
                tail = self._tail or chunk_usage(self._identity, generation)
                out = b"".join((head, b'"content":', encode_json(text), _AFTER_TEXT, tail))
        else:
            out = self._rich_chunk(generation, choice, text)
        if choice.is_done:
            out += self._end(generation, choice)
        return out

    def closing(self, generation: Generation) -> bytes:
        """Encode the usage, if requested, and the end of the stream."""
        return last_events(self._identity, _CHUNK, generation)

    def answer(self, generation: Generation) -> bytes:
        """Encode the completion object."""
        identity = self._identity
        choices = [encode_json(self._choice(choice)) for choice in generation.choices]
        ids = b""
        if identity.with_ids:
            ids = b',"prompt_token_ids":' + encode_json(list(generation.work.requests[0].prompt))
        if identity.with_prompt_logprobs:
            scored = pop_prompt_logprobs(generation, 0)
            ids += b',"prompt_logprobs":' + encode_prompt_logprobs(scored, local(self._tokenizer))
        return (
            b'{"id":%b,"object":"chat.completion","created":%d,"model":%b,%b"choices":[%b],'
            b'"usage":%b%b}'
            % (
                encode_json(identity.id),
                identity.created,
                encode_json(identity.model),
                self._tier,
                b",".join(choices),
                usage_of(generation),
                ids,
            )
        )

    def _choice(self, choice: Choice) -> dict[str, Any]:
        message = self._message(choice)  # first, as scored tokens are available after their text
        shown: dict[str, Any] = {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.pop_scored_tokens()),
            **self._stop(choice),
        }
        if self._identity.with_ids:
            shown["token_ids"] = choice.pop_token_ids()
        return shown

    def _message(self, choice: Choice) -> dict[str, Any]:
        return {"role": "assistant", "content": choice.pop_text(), "refusal": None}

    def _stop(self, choice: Choice) -> dict[str, Any]:
        return stop_fields(choice)

    def _rich_chunk(self, generation: Generation, choice: Choice, text: str) -> bytes:
        scored, ids = choice.pop_scored_tokens(), choice.pop_token_ids()
        if not (text or scored or ids):
            return b""
        tail = chunk_usage(self._identity, generation)
        token_ids = b',"token_ids":' + encode_json(ids) if self._identity.with_ids else b""
        return b'%b"content":%b},"logprobs":%b,"finish_reason":null%b}]%b' % (
            self._heads[choice.index],
            encode_json(text),
            encode_json(self._logprobs(scored)),
            token_ids,
            tail,
        )

    def _end(self, generation: Generation, choice: Choice) -> bytes:
        stop = self._stop(choice)
        return b'%b},"logprobs":null,"finish_reason":%b,"stop_reason":%b}]%b' % (
            self._heads[choice.index],
            encode_json(stop["finish_reason"]),
            encode_json(stop["stop_reason"]),
            chunk_usage(self._identity, generation),
        )

    def _logprobs(self, scored: Sequence[ScoredToken | RelayedToken]) -> dict[str, Any] | None:
        if not self._identity.with_logprobs:
            return None
        return {"content": chat_logprobs(self._tokenizer, scored), "refusal": None}


def chat_logprobs(
    tokenizer: Tokenizer | None, scored: Sequence[ScoredToken | RelayedToken]
) -> list[dict[str, Any]]:
    """Return OpenAI's objects for tokens with their log-probabilities.

    Args:
        tokenizer: of the model; None for an upstream's, whose tokens come as such objects.
        scored: the tokens.
    """
    return [
        dict(one.shown) if isinstance(one, RelayedToken) else _scored(local(tokenizer), one)
        for one in scored
    ]


def _scored(tokenizer: Tokenizer, scored: ScoredToken) -> dict[str, Any]:
    """Return OpenAI's object of a token."""
    own, opens = scored.logprobs, scored.opens

    def named(token: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.piece(token, opens=opens)
        return {"token": token_text(piece), "logprob": finite(logprob), "bytes": list(piece)}

    return {
        **named(own.token, own.logprob),
        "top_logprobs": [
            named(one, logprob)
            for one, logprob in zip(own.top_tokens, own.top_logprobs, strict=True)
        ],
    }
