"""Converts completions, whole or as server-sent events, to ``ModelInferResponse``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gatewayd_hooks.protocols import RequestRefusal
from gatewayd_proto_kserve.messages import InferResponse
from gatewayd_proto_kserve.requests import OUTPUT, VERSION, InferCall
from gatewayd_proto_kserve.tensors import add_text

_EVENT = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"
FINAL = "triton_final_response"
"""Parameter of a stream's last response, by its name in Triton."""


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Tokens(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Failure(msgspec.Struct):
    message: str = ""
    code: str | None = None


class Completion(msgspec.Struct):
    """A completion, or one event of it.

    Attributes:
        choices: at most one.
        usage: at the end.
        error: that ended a stream.
    """

    choices: list[_Choice] = []
    usage: _Tokens | None = None
    error: _Failure | None = None


_decode = msgspec.json.Decoder(Completion).decode


def whole(call: InferCall, body: bytes, ignored: str, *, is_final: bool) -> Any:  # noqa: ANN401 - a message
    """Return the response of a completion.

    Args:
        call: that it answers.
        body: of the completion.
        ignored: fields of ``call.body`` without effect, separated by commas.
        is_final: whether to mark it as the last one of a stream's request.
    """
    completion = _decode(body)
    (choice,) = completion.choices
    return _response(
        *(call, completion, choice.text),
        finish_reason=choice.finish_reason,
        ignored=ignored,
        is_final=is_final,
    )


async def streamed(
    call: InferCall, pieces: AsyncIterator[bytes], ignored: str
) -> AsyncIterator[Any]:
    """Yield the responses of a streamed completion; the last one has no text.

    Raises:
        RequestRefusal: it failed before its end.
    """
    finish_reason: str | None = None
    async for event in _events(pieces):
        if event.error is not None:
            raise RequestRefusal(500, event.error.message, code=event.error.code or "")
        for choice in event.choices:
            finish_reason = choice.finish_reason or finish_reason
            if choice.text:
                yield _response(call, event, choice.text)
        if event.usage is not None:
            yield _response(
                *(call, event, ""), finish_reason=finish_reason, ignored=ignored, is_final=True
            )


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Completion]:
    """Yield events; pieces may end within one, and comments keep the connection alive."""
    rest = b""
    async for piece in pieces:
        *events, rest = (rest + piece).split(_EVENT)
        for event in events:
            data = event.removeprefix(_DATA)
            if event.startswith(_DATA) and data != _DONE:
                yield _decode(data)


def _response(
    call: InferCall,
    completion: Completion,
    text: str,
    *,
    finish_reason: str | None = None,
    ignored: str = "",
    is_final: bool = False,
) -> Any:  # noqa: ANN401 - a message
    response = InferResponse(model_name=call.model, model_version=VERSION, id=call.id)
    add_text(response, OUTPUT, text, is_raw=call.is_raw)
    parameters = response.parameters
    if finish_reason is not None:
        parameters["finish_reason"].string_param = finish_reason
    if completion.usage is not None:
        parameters["prompt_tokens"].int64_param = completion.usage.prompt_tokens
        parameters["completion_tokens"].int64_param = completion.usage.completion_tokens
        names = ", ".join([*call.ignored, *([ignored] if ignored else [])])
        if names:
            parameters["ignored_parameters"].string_param = names
    if is_final:
        parameters[FINAL].bool_param = True
    return response
