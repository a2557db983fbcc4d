"""Extension of the deadline of long request bodies.

The edge limits the time of a body, but uploads of hundreds of megabytes may need many times that.
Routes for uploads report their progress to the edge through an ASGI extension.
"""

from __future__ import annotations

from collections.abc import Callable

from gatewayd.http.asgi import Scope

EXTENSION = "gatewayd.body_deadline"


def extend_deadline(scope: Scope) -> None:
    """Restart the body's deadline after a substantial part has been received."""
    extend: Callable[[], None] | None = scope.get("extensions", {}).get(EXTENSION)
    if extend is not None:
        extend()
