"""Cross-origin resource sharing (CORS) for browsers."""

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
"""Response headers exposed to scripts."""


def with_cors(origins: Sequence[str], app: App) -> App:
    """Wrap an app to answer CORS preflight requests and add CORS headers to responses.

    It must be the outermost layer, because preflights have no API key, and scripts read refusals.

    Args:
        origins: that may send requests, ``*`` for all; empty disables CORS.
        app: the app to wrap.
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
