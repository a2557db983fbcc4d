"""Calls several callbacks, even if some of them raise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable


def call_all(callbacks: Iterable[Callable[[], None]], log: logging.Logger, failure: str) -> None:
    """Call each callback; exceptions are logged and do not affect the others.

    Args:
        callbacks: callbacks in order.
        log: logger of the caller.
        failure: message to log, with the traceback.
    """
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception(failure)
