"""Schedulers: who computes how many tokens in the next step.

There are no phases. Every sequence has ``num_computed`` tokens in the KV cache and wants to
reach ``num_tokens``; a step hands out a budget of tokens. Chunked prefill, prefix hits,
preemption and speculation all follow from that one rule (vLLM v1's formulation).
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
    """Classes of service; the number is what the columns and the wire carry."""

    REALTIME = 0
    STANDARD = 1
    BATCH = 2


class Plan(NamedTuple):
    """How many tokens each chosen sequence computes in the next step.

    The engine takes the grants in order and refuses the whole plan when it breaks a rule:
    ``tokens`` at least 1 and at most what the sequence still needs, no slot twice, the sum
    within ``token_budget``, only running or waiting slots, at most ``max_running`` running.
    A waiting sequence that finds no free pages stays waiting, and so do all waiting ones
    behind it: while somebody runs, grant no two steps in a row to such ones alone, or nobody ever
    gives pages back (``gatewayd_hooks.helpers.shortage``). A grant to one that is held, or that the
    engine finds had better be, is ignored and holds up nobody.
    """

    slots: NDArray[np.int32]
    """Sequences to compute, shape ``[num_grants]``."""
    tokens: NDArray[np.int32]
    """Tokens for each, shape ``[num_grants]``."""
    preempt: NDArray[np.int32] | None = None
    """Running sequences that wait again, before anybody is admitted; None for nobody. None of them
    may be granted, and they no longer count as running. The preemption strategy says what becomes
    of what they have computed. New in 1.7.
    """


def _nothing() -> Any:  # noqa: ANN401 - a column that is made with the others
    return ()


@dataclass(slots=True)
class QueueView:
    """What a scheduler may see of the engine's queue, made once and updated in place.

    Columns are indexed by slot. A slot names one live sequence, running or waiting, and is
    reused after it has ended. Do not write to a column.
    """

    running: NDArray[np.int32]
    """Slots that hold a row of the batch, in order of admission, shape ``[num_running]``."""
    num_tokens: NDArray[np.int32]
    """Tokens a sequence has: its prompt and what was generated, shape ``[slots]``."""
    num_computed: NDArray[np.int32]
    """Tokens of a running sequence in the KV cache, 0 for a waiting one, shape ``[slots]``."""
    priority: NDArray[np.int8]
    """``Priority`` of each sequence, shape ``[slots]``."""
    tenant: NDArray[np.int32]
    """A small number that stands for the tenant, shape ``[slots]``. When nothing is left of one, no
    sequence, no cached page and no quota, its number may come to stand for another."""
    arrival: NDArray[np.float64]
    """When it came, seconds of ``time.monotonic``, shape ``[slots]``."""
    token_budget: int
    """Tokens the next step may compute."""
    max_running: int
    """Sequences that may run at once."""
    free_pages: int
    """Pages that can be had without preempting anyone: free ones and evictable ones."""
    page_size: int
    """Tokens per page."""
    uncached: Callable[[int], int]
    """Tokens that a waiting sequence would have to compute if admitted now; changes nothing.

    At least 1, because the last token is always computed: its logits are wanted.
    """
    held: Set[int] = frozenset()
    """Waiting sequences that had better wait this step: another computes the beginning they share,
    or a KV tier brings their pages. Pass over them, and leave tokens and places to others; they
    keep their places in line. Nobody is held for long. New in 1.5.
    """
    unplaced: Set[int] = frozenset()
    """Waiting sequences that the last plan granted and that found no pages, and those behind them.
    Whoever was granted and is not among them, nor runs, had better wait. New in 1.5.
    """
    now: float = 0.0
    """When the step is planned, on the clock of ``arrival``. New in 1.7."""
    weight: NDArray[np.float64] = field(default_factory=_nothing)
    """What is due to the tenant, as ratio to others; above 0, shape ``[slots]``. The newest request
    of a tenant counts. New in 1.7.
    """
    deadline: NDArray[np.float64] = field(default_factory=_nothing)
    """When its first token is wanted, on the clock of ``arrival``; infinite for those of whom
    nobody said, shape ``[slots]``. New in 1.7.
    """
    preemptions: NDArray[np.int32] = field(default_factory=_nothing)
    """How often each has had to wait again, shape ``[slots]``. New in 1.7."""
    urgent: Set[int] = frozenset()
    """Sequences, waiting or running, that an operator has put first in their class. Waiting ones
    were also enqueued again, at the front, and running ones stand first in ``running``; who keeps
    an order of another kind looks here. New in 1.8.
    """

    def __post_init__(self) -> None:
        """Whoever makes a view without the newer columns has one tenant, no wishes."""
        import numpy as np

        slots = len(self.num_tokens)
        if not len(self.weight):
            self.weight = np.ones(slots)
        if not len(self.deadline):
            self.deadline = np.full(slots, np.inf)
        if not len(self.preemptions):
            self.preemptions = np.zeros(slots, np.int32)


class SchedulerStrategy(Strategy, Protocol):
    """Decides the plan of each step; keeps the order of the waiting sequences itself."""

    def open(self, resources: EngineResources) -> None:
        """Learn the engine's sizes."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """A sequence waits from now on.

        Args:
            slot: the sequence; its columns are filled in.
            view: where to read the columns.
            front: it ran before and was preempted, or came back, or an operator wants it so: put
                it first in its class.
        """

    def dequeue(self, slot: int) -> None:
        """A waiting sequence was admitted or has gone. Unknown slots are ignored.

        It may come again: an operator may hold a sequence for a while, or change its class. One
        that was admitted is already among those of ``view.running``.
        """

    def plan(self, view: QueueView) -> Plan:
        """Choose the next step.

        Called once per step while anything runs or waits. Must not change the view. The
        waiting sequences it grants leave its queue only by ``dequeue``.
        """
