"""Runs one line of a batch as a client's request, and interprets the response."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gatewayd.errors import AdmissionPaused, GatewayError, Unauthorized
from gatewayd.http.asgi import App, encode_json
from gatewayd.resources.batches.internal_calls import InternalAnswer, call
from gatewayd.resources.batches.lines import BatchLine
from gatewayd.resources.batches.records import BatchRow, LineResult
from gatewayd.store.ids import new_id
from gatewayd.tenants.directory import Directory

_PAUSE_SECONDS = 5.0
"""Maximum backoff while admission is paused: it may be resumed early."""
_ATTEMPTS = 3
"""Attempts at a line whose engine was lost: the line itself may be the cause."""


class LineRetry(NamedTuple):
    """A line has to be retried.

    Attributes:
        seconds: delay before the next attempt.
        is_lost: whether its engine was lost during this one.
    """

    seconds: float
    is_lost: bool


async def attempt(
    app: App, directory: Directory, row: BatchRow, line: BatchLine, *, losses: int, seconds: float
) -> LineResult | LineRetry:
    """Run a line; its result is final: a retry would not change it.

    It runs with the present rights of its batch's key: after a revocation it is refused.

    Args:
        app: the data plane's app.
        directory: provides the principal.
        row: row of its batch.
        line: the line.
        losses: engines lost during earlier attempts.
        seconds: backoff after a refusal without a hint.
    """
    try:
        # At each attempt, since the key may have been changed or revoked since the last.
        principal = directory.principal_of(row.tenant, row.key_id)
    except Unauthorized as error:
        return refused_line(row.id, line, error)
    answer = await call(app, row.endpoint, line.body, principal)
    # Responses may be large, and are not parsed for a code that they cannot have.
    code = "" if answer.status < 429 else _failed(answer.body).error.code
    is_lost = answer.status == 500 and code == "engine_restarted"
    if is_lost and losses + 1 < _ATTEMPTS:
        return LineRetry(_wait(code, answer, seconds), is_lost=True)
    if answer.status in (429, 503) and not _is_final(code, answer):
        # Jittered, so that tenants do not all retry at once.
        wait = _wait(code, answer, seconds) * random.uniform(1.0, 1.25)
        return LineRetry(wait, is_lost=False)
    return _result(row.id, line, answer)


def refused_line(batch_id: str, line: BatchLine, error: GatewayError) -> LineResult:
    """The result of a line that is refused without being sent."""
    return _result(
        batch_id, line, InternalAnswer(error.status, encode_json(error.body()), "", None)
    )


def _wait(code: str | None, answer: InternalAnswer, seconds: float) -> float:
    """Seconds until a retry may succeed."""
    if code == AdmissionPaused.code:
        # The hint is the end of the pause, which an operator may end much earlier.
        return min(seconds, _PAUSE_SECONDS)
    return max(seconds, answer.retry_after or 0)


def _is_final(code: str | None, answer: InternalAnswer) -> bool:
    """Whether the condition cannot resolve by itself, so that a retry is pointless."""
    # With a hint, running requests hold the rest of the budget and may return some.
    is_spent = code == "insufficient_quota" and answer.retry_after is None
    return is_spent or code in ("strategy_unavailable", "cancelled")


def output_line(
    custom_id: str, *, response: dict[str, Any] | None, error: Mapping[str, str] | None
) -> bytes:
    """Encode a line of the output or error file, in OpenAI's format."""
    shown = {
        "id": new_id("batch_req_"),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return encode_json(shown) + b"\n"


def _result(batch_id: str, line: BatchLine, answer: InternalAnswer) -> LineResult:
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        # Copied as bytes, neither decoded nor encoded again.
        "body": msgspec.Raw(answer.body),
    }
    usage = _usage(answer.body).usage or _Usage()
    return LineResult(
        batch_id=batch_id,
        line=line.number,
        is_ok=answer.status == 200,
        output=output_line(line.custom_id, response=response, error=None),
        input_tokens=usage.prompt_tokens or usage.input_tokens,
        cached_tokens=(usage.prompt_tokens_details or usage.input_tokens_details).cached_tokens,
        output_tokens=usage.completion_tokens or usage.output_tokens,
        reasoning_tokens=(
            usage.completion_tokens_details or usage.output_tokens_details
        ).reasoning_tokens,
    )


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """Token usage, with the field names of chat completions and of responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details = msgspec.field(default_factory=_Details)
    output_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Answered(msgspec.Struct):
    usage: _Usage | None = None


_usage = msgspec.json.Decoder(_Answered).decode


class _Error(msgspec.Struct):
    code: str | None = None


class _Failed(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)


_failed = msgspec.json.Decoder(_Failed).decode
