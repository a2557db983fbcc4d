"""Bodies of the admin API for operator actions on requests, pages and the daemon."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PriorityName = Literal["realtime", "standard", "batch"]


# Request bodies refuse unknown fields: a misspelt one would otherwise be ignored silently.
class BumpBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/requests/{id}/bump``.

    Attributes:
        priority: the new class; None moves the request to the front of its class.
    """

    priority: PriorityName | None = None


class RequestAnswer(msgspec.Struct, frozen=True):
    """Result of an action on a request.

    Attributes:
        request: the ``x-request-id`` of its response.
        done: ``cancelled``, ``held``, ``released`` or ``bumped``.
    """

    request: str
    done: str


class PauseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/pause``.

    Attributes:
        seconds: duration of the pause; None until resumed.
    """

    seconds: float | None = None


class UnloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/models/{name}/unload``.

    Attributes:
        seconds: grace period for requests at the engines.
    """

    seconds: float = 10.0


class StateAnswer(msgspec.Struct, frozen=True):
    """State of the daemon.

    Attributes:
        state: as in ``/readyz``, or ``draining``.
        replicas: state of each replica, by its number.
    """

    state: str
    replicas: dict[str, str]


class PagePinBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/prefixes/{engine}/{page}/pin``.

    Attributes:
        seconds: duration of the pin of the page and its ancestors; 0 removes it.
    """

    seconds: float


class PagePinAnswer(msgspec.Struct, frozen=True):
    """Result of a pin.

    Attributes:
        tokens: number of tokens up to the end of the page.
    """

    tokens: int


class EvictAnswer(msgspec.Struct, frozen=True):
    """``DELETE /admin/prefixes``: result of an eviction.

    Attributes:
        pages: pages freed, of all engines.
        in_use: pages that sequences use, and which stay.
    """

    pages: int
    in_use: int


SloBody = dict[str, dict[str, Any]]
"""``PATCH /admin/slo``: targets to change by class; null for no target."""
