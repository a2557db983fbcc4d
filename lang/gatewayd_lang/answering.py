"""Sends one ``gen`` to the server, and determines the token ids of its text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from gatewayd_lang.errors import GenError, ServerError
from gatewayd_lang.gen import Gen
from gatewayd_lang.server import Server
from gatewayd_lang.variable import Answer

_OF_THE_CACHE = ("model", "cache_salt", "prompt_cache_key", "priority", "service_tier", "user")
"""Fields that determine where a prompt is computed, and who can reuse it."""


async def compute(gen: Gen, server: Server, prompt: list[int]) -> None:
    """Let the server prefill a prompt that this ``gen`` and others begin with.

    Errors are ignored: they occur again in the actual requests.
    """
    shared = {name: gen.fields[name] for name in _OF_THE_CACHE if name in gen.fields}
    try:
        # One token is the smallest answer: the request is for the prefill.
        events = server.complete({"prompt": prompt, "max_tokens": 1, **shared})
        async with aclosing(events):
            async for _ in events:
                pass
    except ServerError:
        pass


async def answer_to(
    gen: Gen,
    server: Server,
    prompt: list[int],
    *,
    stream: bool,
    on_text: Callable[[str], None],
) -> Answer:
    """Request a continuation of token ids.

    Args:
        gen: the request.
        server: to send it to.
        prompt: ids so far.
        stream: whether to request a stream.
        on_text: called with each piece of text.

    Raises:
        ServerError: there is no answer.
        GenError: it does not satisfy the request.
    """
    body: dict[str, Any] = {"prompt": prompt, **gen.fields, "return_token_ids": True}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    texts: list[str] = []
    ids: list[int] = []
    last: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    # Closed also if the reader is cancelled, so that the server stops generating.
    async with aclosing(server.complete(body)) as events:
        async for event in events:
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                texts.append(choice["text"])
                ids += choice.get("token_ids") or []
                last = choice
                on_text(choice["text"])
    text = "".join(texts)
    answer = Answer(
        text,
        await _ids_of_text(server, text, ids, last),
        last.get("finish_reason") or "",
        last.get("stop_reason"),
        usage.get("prompt_tokens", 0),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        usage.get("completion_tokens", 0),
    )
    _check(gen, answer)
    return answer


async def _ids_of_text(
    server: Server, text: str, ids: list[int], last: dict[str, Any]
) -> list[int]:
    """Return the ids of the text alone.

    The server returns no end token. A stop string is removed from the text but not from the ids,
    and may begin within a token: the rest of that token is encoded separately.
    """
    if not isinstance(last.get("stop_reason"), str):
        return ids
    # From the longest: the stop string usually takes the last few tokens.
    for count in range(len(ids) - 1, 0, -1):
        shown = await server.detokenize(ids[:count])
        if text.startswith(shown):
            rest = text[len(shown) :]
            return ids[:count] + (await server.tokenize(rest) if rest else [])
    return await server.tokenize(text) if text else []


def _check(gen: Gen, answer: Answer) -> None:
    if gen.is_bound and answer.finish_reason == "length":
        raise GenError(
            gen.name,
            f"the answer was cut off after {answer.completion_tokens} tokens, before it was "
            "complete: raise max_tokens",
            text=answer.text,
        )
    if gen.choices and answer.text not in gen.choices:
        raise GenError(gen.name, "the answer is none of the choices", text=answer.text)
