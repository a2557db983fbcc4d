"""Conversion of chunks to deltas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall
from gatewayd_hooks.upstreams import Delta, UpstreamCounts
from gatewayd_upstream_openai.chunks import (
    CallDelta,
    ChunkChoice,
    ChunkDelta,
    ChunkLogprobs,
    ChunkUsage,
    FunctionDelta,
)

_REASONS = {"function_call": "tool_calls", "eos": "stop", "eos_token": "stop"}


def counts_of(usage: ChunkUsage) -> UpstreamCounts:
    """Convert token counts."""
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return UpstreamCounts(
        usage.prompt_tokens,
        usage.completion_tokens,
        (prompt.cached_tokens or 0) if prompt is not None else 0,
        completion.reasoning_tokens if completion is not None else None,
    )


class ChoiceReader:
    """Reads the pieces of one choice.

    Args:
        index: of the choice.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        # The upstream's index of each call: the gateway's are 0, 1, and so on.
        self._calls: dict[int, int] = {}

    def read(self, choice: ChunkChoice) -> Delta | None:
        """Convert a piece; None if it has nothing new.

        Raises:
            ValueError: it has arguments of a call that has not begun.
        """
        parts = list(self._parts(choice))
        logprobs = [] if choice.logprobs is None else list(_logprobs(choice.logprobs))
        reason = choice.finish_reason
        if not (parts or logprobs or reason):
            return None
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        return Delta(self._index, parts, reason and _REASONS.get(reason, reason), stop, logprobs)

    def _parts(self, choice: ChunkChoice) -> Iterator[Part]:
        if choice.text:
            yield Text(choice.text)
        if choice.delta is not None:
            yield from self._of_message(choice.delta)

    def _of_message(self, delta: ChunkDelta) -> Iterator[Part]:
        if thought := delta.reasoning_content or delta.reasoning:
            yield Reasoning(thought)
        if text := delta.content or delta.refusal:
            yield Text(text)
        for call in delta.tool_calls or ():
            yield from self._of_call(call)
        if delta.function_call is not None:
            yield from self._of_call(CallDelta(0, None, delta.function_call))

    def _of_call(self, call: CallDelta) -> Iterator[Part]:
        function = call.function or FunctionDelta()
        # Without an index: each piece is a whole call.
        theirs = len(self._calls) if call.index is None else call.index
        index = self._calls.get(theirs)
        if index is None:
            if not function.name:
                raise ValueError("a tool call begins without a name")
            index = self._calls[theirs] = len(self._calls)
            yield ToolCall(index, function.name, call.id or "")
        if function.arguments:
            yield Arguments(index, function.arguments)


def _logprobs(found: ChunkLogprobs) -> Iterator[dict[str, Any]]:
    """Convert log-probabilities to OpenAI's objects of chats."""
    for token in found.content or ():
        yield msgspec.to_builtins(token)
    tops = found.top_logprobs or [None] * len(found.tokens)
    # A token of an echoed prompt has none; the gateway never asks for an echo.
    for name, logprob, top in zip(found.tokens, found.token_logprobs, tops, strict=True):
        yield {
            "token": name,
            "logprob": 0.0 if logprob is None else logprob,
            "bytes": None,
            "top_logprobs": [
                {"token": one, "logprob": value, "bytes": None}
                for one, value in (top or {}).items()
            ],
        }
