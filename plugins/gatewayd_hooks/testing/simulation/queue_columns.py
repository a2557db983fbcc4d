"""Columns of a fake queue's view, which grow and are read-only for a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.scheduling import QueueView
from gatewayd_hooks.testing.simulation.resources import FIRST_SLOTS

_COLUMNS = (
    "num_tokens",
    "num_computed",
    "priority",
    "tenant",
    "arrival",
    "weight",
    "deadline",
    "preemptions",
)


def view_of(resources: EngineResources, uncached: Callable[[int], int]) -> QueueView:
    """Return the view of an empty queue.

    Args:
        resources: of the simulated engine.
        uncached: returns the tokens that a slot would compute if admitted now.
    """
    return QueueView(
        running=np.zeros(0, np.int32),
        num_tokens=np.zeros(FIRST_SLOTS, np.int32),
        num_computed=np.zeros(FIRST_SLOTS, np.int32),
        priority=np.zeros(FIRST_SLOTS, np.int8),
        tenant=np.zeros(FIRST_SLOTS, np.int32),
        arrival=np.zeros(FIRST_SLOTS, np.float64),
        token_budget=resources.max_batch_tokens,
        max_running=resources.max_running,
        free_pages=resources.num_pages,
        page_size=resources.page_size,
        uncached=uncached,
        held=frozenset(),
    )


def grow(view: QueueView) -> None:
    """Double the size of every column, as an engine does when all slots are taken."""
    for name in _COLUMNS:
        column = getattr(view, name)
        setattr(view, name, np.concatenate([column, np.zeros_like(column)]))


@contextmanager
def read_only(view: QueueView) -> Iterator[None]:
    """Make the columns read-only, so that a scheduler that writes to one raises."""
    columns = [view.running, *(getattr(view, name) for name in _COLUMNS)]
    for column in columns:
        column.flags.writeable = False
    try:
        yield
    finally:
        for column in columns:
            column.flags.writeable = True
