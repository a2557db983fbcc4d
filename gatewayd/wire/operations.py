"""What the admin API speaks where operators act on requests, pages and the daemon itself."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PriorityName = Literal["realtime", "standard", "batch"]


class BumpBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/requests/{id}/bump``.

    Attributes:
        priority: the new class; None puts the request first in the one it has.
    """

    priority: PriorityName | None = None


class RequestAnswer(msgspec.Struct, frozen=True):
    """What became of a request.

    Attributes:
        request: the ``x-request-id`` of its answer.
        done: ``cancelled``, ``held``, ``released`` or ``bumped``.
    """

    request: str
    done: str


class PauseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/pause``.

    Attributes:
        seconds: until new requests are taken again by themselves; None until somebody resumes.
    """

    seconds: float | None = None


class UnloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /admin/models/{name}/unload``.

    Attributes:
        seconds: that requests have which are at the engines.
    """

    seconds: float = 10.0


class StateAnswer(msgspec.Struct, frozen=True):
    """How the daemon is now.

    Attributes:
        state: as ``/readyz`` has it, or ``draining``.
        replicas: what each is doing, by its number.
    """

    state: str
    replicas: dict[str, str]


class PagePinBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /admin/prefixes/{engine}/{page}/pin``.

    Attributes:
        seconds: for which the page and those before it are kept; 0 takes its pin back.
    """

    seconds: float


class PagePinAnswer(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        tokens: up to the end of the page.
    """

    tokens: int


class EvictAnswer(msgspec.Struct, frozen=True):
    """``DELETE /admin/prefixes``: what came of it.

    Attributes:
        pages: that are free now, of all engines.
        in_use: that sequences use, and which stay.
    """

    pages: int
    in_use: int


SloBody = dict[str, dict[str, Any]]
"""``PATCH /admin/slo``: targets to change by class; null for no promise."""
