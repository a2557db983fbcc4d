"""Who is told about requests, and the fence before them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gatewayd_hooks.events import RequestAdmitted, RequestFinished

_log = logging.getLogger(__name__)

EventT = TypeVar("EventT")


def nobody(event: object) -> None:
    """Stands for an observer where there is none; events for it are not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Who is told.

    Attributes:
        admitted: a request was sent to an engine.
        finished: it ended; exactly once for each admitted one.
    """

    admitted: Callable[[RequestAdmitted], None] = nobody
    finished: Callable[[RequestFinished], None] = nobody


def guarded(tell: Callable[[EventT], None], event: EventT) -> None:
    """Tell an observer; what it raises is logged."""
    try:
        tell(event)
    except Exception:  # noqa: BLE001 - a plugin may raise anything
        _log.exception("request observer failed")
