"""Calls functions that have to be called all, whatever one of them raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable


def call_all(callbacks: Iterable[Callable[[], None]], log: logging.Logger, failure: str) -> None:
    """Call each; one that raises is logged, and the others are called nevertheless.

    Args:
        callbacks: in the order in which they are called.
        log: of the caller.
        failure: what is logged, with the traceback.
    """
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception(failure)
