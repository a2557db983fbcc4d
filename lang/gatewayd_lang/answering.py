"""One ``gen`` sent to the server, and the token ids that its text is kept as."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from gatewayd_lang.errors import GenError, ServerError
from gatewayd_lang.gen import Gen
from gatewayd_lang.server import Server
from gatewayd_lang.variable import Answer

_OF_THE_CACHE = ("model", "cache_salt", "prompt_cache_key", "priority", "service_tier", "user")
"""Fields that say where a prompt is computed, and who finds it there."""


async def compute(gen: Gen, server: Server, prompt: list[int]) -> None:
    """Let the server compute a prompt that this ``gen`` and others begin with.

    What is wrong with it, they are told when they ask for more.
    """
    shared = {name: gen.fields[name] for name in _OF_THE_CACHE if name in gen.fields}
    try:
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
    """Let the server go on from token ids.

    Args:
        gen: what is asked for.
        server: is asked.
        prompt: ids so far.
        stream: whether to ask for the text piece by piece.
        on_text: told of each piece.

    Raises:
        ServerError: there is no answer.
        GenError: it is not what was asked for.
    """
    body: dict[str, Any] = {"prompt": prompt, **gen.fields, "return_token_ids": True}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    texts: list[str] = []
    ids: list[int] = []
    last: dict[str, Any] = {}
    usage: dict[str, Any] = {}
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
        await _kept(server, text, ids, last),
        last.get("finish_reason") or "",
        last.get("stop_reason"),
        usage.get("prompt_tokens", 0),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        usage.get("completion_tokens", 0),
    )
    _check(gen, answer)
    return answer


async def _kept(server: Server, text: str, ids: list[int], last: dict[str, Any]) -> list[int]:
    """Ids of the text alone.

    The server gives no end token. A stop string is cut out of the text but not out of the ids, and
    may begin within a token: what is left of that one is encoded by itself.
    """
    if not isinstance(last.get("stop_reason"), str):
        return ids
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
            f"the answer was cut off after {answer.completion_tokens} tokens, before it was what "
            "was asked for: raise max_tokens",
            text=answer.text,
        )
    if gen.choices and answer.text not in gen.choices:
        raise GenError(gen.name, "the answer is none of the choices", text=answer.text)
