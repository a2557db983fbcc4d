"""Time for a body that is long and keeps coming.

The edge gives a body a fixed time, which an upload of hundreds of megabytes may need many times.
A route that takes one tells the edge of its progress, through an ASGI extension.
"""

from __future__ import annotations

from collections.abc import Callable

from gatewayd.http.asgi import Scope

EXTENSION = "gatewayd.patience"


def more_time(scope: Scope) -> None:
    """A good part of the body has come: its time begins anew."""
    extend: Callable[[], None] | None = scope.get("extensions", {}).get(EXTENSION)
    if extend is not None:
        extend()
