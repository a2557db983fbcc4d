"""Encoder of ``/v1/chat/completions`` responses with tool calls and reasoning."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gatewayd.http.asgi import encode_json
from gatewayd.http.openai.chat_wire import ChatWire
from gatewayd.http.openai.wire import Identity, chunk_usage, stop_fields
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.generation import Generation
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall


class ChatPartsWire(ChatWire):
    """Encodes parsed parts, each as soon as the parsers return it."""

    def __init__(
        self,
        identity: Identity,
        tokenizer: Tokenizer | None,
        num_choices: int,
        call_id: Callable[[str], str],
        *,
        is_legacy: bool,
    ) -> None:
        """Create an encoder of one response.

        Args:
            identity: fields that every chunk repeats.
            tokenizer: of the model; None for an upstream's.
            num_choices: of the response.
            call_id: converts a call's id to the format of the model's template.
            is_legacy: whether the request uses ``function_call`` instead of ``tool_calls``.
        """
        super().__init__(identity, tokenizer, num_choices)
        self._call_id = call_id
        self._is_legacy = is_legacy

    def opening(self, generation: Generation) -> bytes:
        """Encode the role of each choice; content is null, as text may never follow."""
        return self._opening(generation, b'"role":"assistant","content":null')

    def chunk(self, generation: Generation, choice: Choice) -> bytes:
        """Encode a chunk per part, and the finish reason at the end."""
        parts = choice.pop_parts()
        scored, ids = choice.pop_scored_tokens(), choice.pop_token_ids()
        # Without braces, as the head opens the object.
        deltas = [encode_json(delta)[1:-1] for part in parts for delta in self._deltas(part)]
        # Text that parsers withhold or omit still has log-probabilities and ids.
        if (scored or ids) and not deltas:
            deltas = [b""]
        out = []
        for at, delta in enumerate(deltas):
            is_first = at == 0  # logprobs and token ids of all parts go with the first
            token_ids = b""
            if self._identity.with_ids:
                token_ids = b',"token_ids":' + encode_json(ids if is_first else [])
            out.append(
                b'%b%b},"logprobs":%b,"finish_reason":null%b}]%b'
                % (
                    self._heads[choice.index],
                    delta,
                    encode_json(self._logprobs(scored) if is_first else None),
                    token_ids,
                    chunk_usage(self._identity, generation),
                )
            )
        if choice.is_done:
            out.append(self._end(generation, choice))
        return b"".join(out)

    def _deltas(self, part: Part) -> Iterator[dict[str, Any]]:
        match part:
            case Text(text):
                yield {"content": text}
            case Reasoning(text):
                yield {"reasoning": text, "reasoning_content": text}
            case ToolCall(_, name) if self._is_legacy:
                yield {"function_call": {"name": name, "arguments": ""}}
            case Arguments(_, text) if self._is_legacy:
                yield {"function_call": {"arguments": text}}
            case ToolCall(call, name, own_id):
                function = {"name": name, "arguments": ""}
                head = {"index": call, "id": own_id or self._new_id(), "type": "function"}
                yield {"tool_calls": [{**head, "function": function}]}
            case Arguments(call, text):
                yield {"tool_calls": [{"index": call, "function": {"arguments": text}}]}

    def _message(self, choice: Choice) -> dict[str, Any]:
        parts = choice.pop_parts()
        text = "".join([part.text for part in parts if isinstance(part, Text)])
        thought = "".join([part.text for part in parts if isinstance(part, Reasoning)])
        calls = self._calls(parts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if thought or calls else ""),
            "refusal": None,
        }
        if thought:
            message["reasoning"] = message["reasoning_content"] = thought
        if calls and self._is_legacy:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _calls(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            if isinstance(part, ToolCall):
                function = {"name": part.name, "arguments": ""}
                calls[part.call] = {
                    "id": part.id or self._new_id(),
                    "type": "function",
                    "function": function,
                }
            elif isinstance(part, Arguments):
                calls[part.call]["function"]["arguments"] += part.text
        return list(calls.values())

    def _stop(self, choice: Choice) -> dict[str, Any]:
        fields = stop_fields(choice)
        if self._is_legacy and fields["finish_reason"] == "tool_calls":
            fields["finish_reason"] = "function_call"
        return fields

    def _new_id(self) -> str:
        return self._call_id(f"call_{uuid.uuid4().hex[:24]}")
