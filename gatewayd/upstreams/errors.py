"""Errors of upstreams as clients of the gateway see them: one honest answer for each fault."""

from __future__ import annotations

from gatewayd.errors import (
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    UnsupportedByModel,
    UpstreamBusy,
    UpstreamError,
    UpstreamRefused,
)
from gatewayd_hooks.upstreams import UpstreamRefusal

_MOST_TEXT = 1000
_CLIENTS_FAULT = (400, 413, 422)
_RETRY_SECONDS = 5.0
"""After a 429 or 503 that names no time."""


def error_of(
    refusal: UpstreamRefusal,
    upstream: str,
    retry_after: float | None,
    api_key: str,
    *,
    is_sent: bool = True,
) -> GatewayError:
    """Convert an upstream's error response.

    Its text is passed on only where the client's request is at fault: elsewhere it may name
    accounts and machines of the operator.

    Args:
        refusal: the response.
        upstream: its name in the configuration.
        retry_after: the response's header, in seconds.
        api_key: credential of the gateway, which no text may contain.
        is_sent: whether the upstream may have got the request; otherwise its strategy refuses it.
    """
    status = refusal.status
    if status in _CLIENTS_FAULT:
        text = _shown(refusal.message, api_key) or f"the request is refused with status {status}"
        code, param = refusal.code or "", refusal.param or ""
        # Another target of a route may have a longer context.
        kind = InvalidRequest
        if code == ContextLengthExceeded.code:
            kind = ContextLengthExceeded
        elif not is_sent:
            kind = UnsupportedByModel
        return kind(
            f"the upstream {upstream} refuses the request: {text}",
            param=param if _is_name(param, 200) else None,
            code=code if _is_name(code, 64) else None,
        )
    if status in (401, 402, 403):
        return UpstreamRefused(
            f"the upstream {upstream} refuses the gateway's credential (status {status})"
        )
    if status == 404:
        return UpstreamRefused(f"the upstream {upstream} does not serve the model (status 404)")
    if status in (429, 503, 529):
        return UpstreamBusy(
            f"the upstream {upstream} is busy (status {status}): retry later",
            retry_after=_RETRY_SECONDS if retry_after is None else retry_after,
        )
    return UpstreamError(f"the upstream {upstream} failed with status {status}")


def _is_name(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isascii() and text.isprintable()


def _shown(text: str, api_key: str) -> str:
    """Return the beginning of an upstream's text on one line, without the key."""
    if api_key:
        text = text.replace(api_key, "***")
    # Line separators and control characters would forge lines of logs.
    line = "".join([one if one.isprintable() else " " for one in text[:_MOST_TEXT]])
    return " ".join(line.split())
