"""Pages of other origins, whose browsers ask first whether they may call (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware

from gatewayd.http.asgi import App

_METHODS = ("GET", "POST", "DELETE")
_EXPOSED = (
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "server-timing",
    "x-gateway-ignored-params",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
)
"""Headers of ours that a page may read."""


def shared_with(origins: Sequence[str], app: App) -> App:
    """Answer the questions of browsers, and say in each answer who may read it.

    It stands outside of everything: browsers ask without a key, and read refusals too.

    Args:
        origins: of pages that may call, ``*`` for all; nobody is asked where there are none.
        app: what they call.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=_METHODS,
        allow_headers=["*"],
        expose_headers=_EXPOSED,
        max_age=3600,
    )
