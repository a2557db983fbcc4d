"""Schedulers: how many tokens each sequence computes in the next step.

There are no prefill and decode phases. Every sequence has ``num_computed`` tokens in the KV cache
and aims at ``num_tokens``; a step distributes a budget of tokens. Chunked prefill, prefix hits,
preemption and speculative decoding all follow from that one rule (vLLM v1's formulation).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


class Priority(IntEnum):
    """Service classes; the number is used in columns and on the wire."""

    REALTIME = 0
    STANDARD = 1
    BATCH = 2


class Plan(NamedTuple):
    """Number of tokens that each chosen sequence computes in the next step.

    The engine takes the grants in order and rejects the whole plan when it breaks a rule:
    ``tokens`` at least 1 and at most what the sequence still needs, no slot twice, the sum within
    ``token_budget``, only running or waiting slots, at most ``max_running`` running. A waiting
    sequence for which no free pages are found stays waiting, and so do all waiting ones after it:
    while any sequence runs, do not grant to such ones alone in two consecutive steps, or no pages
    are ever released (``gatewayd_hooks.helpers.shortage``). A grant to a held sequence, or to one
    that the engine decides to hold, is ignored and blocks no others.
    """

    slots: NDArray[np.int32]
    """Sequences to compute, shape ``[num_grants]``."""
    tokens: NDArray[np.int32]
    """Tokens for each, shape ``[num_grants]``."""
    preempt: NDArray[np.int32] | None = None
    """Running sequences to preempt before any admission.

    None for none. They must not be granted tokens, and they no longer count as running. The
    preemption strategy decides what happens to their KV. New in 1.7.
    """


def _nothing() -> Any:  # noqa: ANN401 - a column that is made with the others
    return ()


@dataclass(slots=True)
class QueueView:
    """Scheduler's view of the engine's queue, created once and updated in place.

    Columns are indexed by slot. A slot identifies one live sequence, running or waiting, and is
    reused after that has ended. Do not write to a column.
    """

    running: NDArray[np.int32]
    """Slots that have a row of the batch, in order of admission, shape ``[num_running]``."""
    num_tokens: NDArray[np.int32]
    """Tokens of a sequence: its prompt and what was generated, shape ``[slots]``."""
    num_computed: NDArray[np.int32]
    """Tokens of a running sequence in the KV cache, 0 for a waiting one, shape ``[slots]``."""
    priority: NDArray[np.int8]
    """``Priority`` of each sequence, shape ``[slots]``."""
    tenant: NDArray[np.int32]
    """Small integer id of the tenant, shape ``[slots]``. Once a tenant has no sequence, no cached
    page and no quota left, its id may be reused for another."""
    arrival: NDArray[np.float64]
    """Arrival time, seconds of ``time.monotonic``, shape ``[slots]``."""
    token_budget: int
    """Maximum of tokens computed in the next step."""
    max_running: int
    """Maximum of running sequences."""
    free_pages: int
    """Pages available without preemption: free ones and evictable ones."""
    page_size: int
    """Tokens per page."""
    uncached: Callable[[int], int]
    """Return the tokens a waiting sequence would have to compute if admitted now; changes nothing.

    At least 1, because the last token is always computed: its logits are needed.
    """
    held: Set[int] = frozenset()
    """Waiting sequences that should not run in this step: another sequence computes the prefix they
    share, or a KV tier loads their pages. Skip them, and give tokens and batch slots to others;
    they keep their position in the queue. Sequences are held briefly. New in 1.5."""
    unplaced: Set[int] = frozenset()
    """Waiting sequences that the last plan granted and for which no pages were found, and those
    after them. A granted sequence that is neither among them nor running should wait. New in
    1.5."""
    now: float = 0.0
    """Time at which the step is planned, on the clock of ``arrival``. New in 1.7."""
    weight: NDArray[np.float64] = field(default_factory=_nothing)
    """Fair-share weight of the tenant, relative to others.

    Above 0, shape ``[slots]``. The latest request of a tenant determines it. New in 1.7.
    """
    deadline: NDArray[np.float64] = field(default_factory=_nothing)
    """Time by which the first token is wanted, on the clock of ``arrival``.

    Infinite where not specified, shape ``[slots]``. New in 1.7.
    """
    preemptions: NDArray[np.int32] = field(default_factory=_nothing)
    """Number of times each was preempted, shape ``[slots]``. New in 1.7."""
    urgent: Set[int] = frozenset()
    """Sequences, waiting or running, that an operator has put first in their class. Waiting ones
    were also enqueued again, at the front, and running ones stand first in ``running``; a scheduler
    with an order of its own can consult this. New in 1.8."""

    def __post_init__(self) -> None:
        """Fill newer columns that the caller omitted: one tenant, no deadlines, no preemptions."""
        import numpy as np

        slots = len(self.num_tokens)
        if not len(self.weight):
            self.weight = np.ones(slots)
        if not len(self.deadline):
            self.deadline = np.full(slots, np.inf)
        if not len(self.preemptions):
            self.preemptions = np.zeros(slots, np.int32)


class SchedulerStrategy(Strategy, Protocol):
    """Decides the plan of each step; maintains the order of the waiting sequences itself."""

    def open(self, resources: EngineResources) -> None:
        """Read the engine's sizes."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Add a waiting sequence.

        Args:
            slot: the sequence; its columns are filled in.
            view: where to read the columns.
            front: put it first in its class: it was preempted or resumes, or an operator asked for
                it.
        """

    def dequeue(self, slot: int) -> None:
        """Remove a waiting sequence that was admitted or has left. Unknown slots are ignored.

        It may be enqueued again: an operator may hold a sequence for a while, or change its class.
        One that was admitted is already in ``view.running``.
        """

    def plan(self, view: QueueView) -> Plan:
        """Choose the next step.

        Called once per step while anything runs or waits. Must not change the view. The waiting
        sequences that it grants leave its queue only by ``dequeue``.
        """
