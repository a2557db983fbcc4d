"""Observers of requests, and error handling around them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gatewayd_hooks.events import RequestAdmitted, RequestFinished

_log = logging.getLogger(__name__)

EventT = TypeVar("EventT")


def ignore_event(event: object) -> None:
    """Placeholder for a missing observer; events are not built for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Observers of requests.

    Attributes:
        admitted: called when a request was sent to an engine.
        finished: called when it ended; exactly once for each admitted one.
    """

    admitted: Callable[[RequestAdmitted], None] = ignore_event
    finished: Callable[[RequestFinished], None] = ignore_event


def notify_observer(notify: Callable[[EventT], None], event: EventT) -> None:
    """Notify an observer; exceptions are logged."""
    try:
        notify(event)
    except Exception:  # noqa: BLE001 - a plugin may raise anything
        _log.exception("request observer failed")
