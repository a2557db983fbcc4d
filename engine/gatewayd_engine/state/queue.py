"""Table of live sequences: a slot for each, with the columns that schedulers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.state.columns import ColumnSet, column
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.tenant_ids import Tenants
from gatewayd_hooks.scheduling import QueueView


class _ViewColumns(ColumnSet):
    """The columns of ``QueueView``, which refers to the same arrays."""

    num_tokens = column(np.int32)
    num_computed = column(np.int32)
    priority = column(np.int8)
    tenant = column(np.int32)
    arrival = column(np.float64)
    weight = column(np.float64, 1.0)
    deadline = column(np.float64, np.inf)
    preemptions = column(np.int32)


class Queue(ColumnSet):
    """Live sequences by slot and by id, and their columns, each of shape ``[slots]``.

    Attributes:
        view: what strategies see; its arrays are replaced when the capacity grows.
        waiting: slots without a row, in no particular order.
        paused: slots without a row that an operator holds, unknown to the scheduler.
        running: slots with a row, in order of admission.
        tenants: numbers of tenants.
        on_remove: called with a sequence that has ended, while it still has its slot.
    """

    limit = column(np.int32)
    """Maximum length in tokens."""
    prompt_len = column(np.int32)
    num_pages = column(np.int32)
    """Pages of each sequence."""
    num_absent = column(np.int32)
    """Of these, ``NO_PAGE`` entries, replaced by a compacted prefix."""
    num_reserved = column(np.int32)
    """Pages each was admitted with, allocated or reserved."""
    num_published = column(np.int32)
    """Full pages published to the prefix cache."""
    row = column(np.int32, -1)
    """Batch row, -1 for waiting sequences."""
    ids = column(np.int64, -1)
    """Sequence ids of the gateway, -1 for free slots."""
    waits = column(np.int32)
    """Steps each has been deferred for others to compute its prefix."""
    in_flight = column(np.int32)
    """Computed tokens of a step that has not completed."""
    placeholders = column(np.int32)
    """Tokens sampled on the device that are not known here yet."""
    beginning = column(np.int64)
    """Hash of the salt and the first page of the prompt."""
    drafted = column(np.int32)
    """Draft tokens of each sequence."""
    accepted = column(np.int32)
    """Draft tokens that were accepted."""

    def __init__(
        self,
        slots: int,
        token_budget: int,
        max_running: int,
        page_size: int,
        uncached: Callable[[int], int],
    ) -> None:
        super().__init__(slots)
        self._by_slot: list[Sequence | None] = [None] * slots
        self._by_id: dict[int, Sequence] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._max_running = max_running
        self._hidden: set[int] = set()
        self.on_remove: Callable[[Sequence], None] | None = None
        self.tenants = Tenants()
        # Dicts as ordered sets, from which a slot in the middle is removed in constant time.
        self.waiting: dict[int, None] = {}
        self.paused: dict[int, None] = {}
        self.running: dict[int, None] = {}
        self._shown = _ViewColumns(slots)
        self.view = QueueView(
            running=np.zeros(0, np.int32),
            token_budget=token_budget,
            max_running=max_running,
            free_pages=0,
            page_size=page_size,
            uncached=uncached,
            **self._shown.columns(),
        )

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_id.values())

    def __getitem__(self, slot: int) -> Sequence:
        """Return the live sequence of a slot; KeyError if there is none."""
        sequence = self._by_slot[slot] if 0 <= slot < len(self._by_slot) else None
        if sequence is None:
            raise KeyError(slot)
        return sequence

    def find(self, sequence_id: int) -> Sequence | None:
        """Return the live sequence with an id; None if there is none."""
        return self._by_id.get(sequence_id)

    def add(self, sequence: Sequence) -> int:
        """Assign a slot to a new waiting sequence."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        sequence.slot = slot
        self._by_slot[slot] = sequence
        self._by_id[sequence.id] = sequence
        # A free slot keeps the column values of the sequence before.
        self.clear_columns(slot)
        self._shown.clear_columns(slot)
        view = self.view
        view.num_tokens[slot] = sequence.prompt_len
        view.priority[slot] = sequence.priority
        view.tenant[slot] = self.tenants.number_of(sequence.tenant)
        view.arrival[slot] = sequence.submitted
        view.weight[slot] = sequence.weight
        view.deadline[slot] = sequence.deadline
        self.limit[slot] = sequence.limit
        self.prompt_len[slot] = sequence.prompt_len
        self.ids[slot] = sequence.id
        first = sequence.tokens[: view.page_size].tobytes()
        # Only preselects sequences that may share a prefix: tokens are compared before one waits.
        self.beginning[slot] = hash((sequence.salt, first))
        self.waiting[slot] = None
        if sequence.is_urgent:
            self.prioritize(slot)
        return slot

    def remove(self, sequence: Sequence) -> None:
        """Remove an ended sequence, and free its slot."""
        slot = sequence.slot
        if self.on_remove is not None:
            # First, because it reads columns that are reset below.
            self.on_remove(sequence)
        self.waiting.pop(slot, None)
        self.paused.pop(slot, None)
        if slot in self.view.urgent:
            self.view.urgent = self.view.urgent - {slot}
        self.stop_running(slot)
        self._by_slot[slot] = None
        del self._by_id[sequence.id]
        self.ids[slot] = -1
        self._free.append(slot)
        sequence.slot = -1

    def waiting_with_prefix(self, beginning: int) -> NDArray[np.int64]:
        """Return the slots of waiting sequences with this prefix hash, shape ``[n]``."""
        is_live = self.ids >= 0  # a free slot keeps its old column values
        alike = np.flatnonzero((self.beginning == beginning) & (self.row < 0) & is_live)
        return alike[~np.isin(alike, list(self.paused))] if self.paused else alike

    def start_running(self, slot: int) -> None:
        """Move a waiting sequence that got a batch row to the running ones."""
        del self.waiting[slot]
        self.running[slot] = None
        if slot in self.view.urgent:
            self.prioritize(slot)
        else:
            self._show_running()

    def stop_running(self, slot: int) -> None:
        """Remove a sequence from the running ones."""
        if slot in self.running:
            del self.running[slot]
            self._hidden.discard(slot)
            self.row[slot] = -1
            self.in_flight[slot] = self.placeholders[slot] = 0
            self._show_running()

    def hide(self, slots: list[int]) -> None:
        """Hide running sequences from the scheduler whose last token is in flight."""
        self._hidden.update(slots)
        self._show_running()

    def requeue(self, slot: int) -> None:
        """Move a preempted sequence back to the waiting ones, with nothing computed."""
        self.stop_running(slot)
        self.view.num_computed[slot] = 0
        self.num_pages[slot] = 0
        self.num_absent[slot] = 0
        self.waiting[slot] = None

    def pause(self, slot: int) -> None:
        """Exclude a waiting sequence from scheduling."""
        del self.waiting[slot]
        self.paused[slot] = None

    def resume(self, slot: int) -> None:
        """Move a paused sequence back to the waiting ones."""
        del self.paused[slot]
        self.waiting[slot] = None

    def prioritize(self, slot: int) -> None:
        """Move a sequence to the front of its class; if running, as if admitted first."""
        self.view.urgent = self.view.urgent | {slot}
        if slot in self.running:
            self.running = {slot: None, **self.running}
            self._show_running()

    def _show_running(self) -> None:
        view, hidden = self.view, self._hidden
        shown = [slot for slot in self.running if slot not in hidden] if hidden else self.running
        view.running = np.fromiter(shown, np.int32, len(shown))
        # A plan whose slots are this array grants to what runs: nothing may write to it.
        view.running.flags.writeable = False
        # Hidden sequences keep their rows until their step completes.
        view.max_running = self._max_running - len(hidden)

    def _grow(self) -> None:
        old = len(self._by_slot)
        self._by_slot.extend([None] * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))
        self.grow_columns(2 * old)
        self._shown.grow_columns(2 * old)
        for name, grown in self._shown.columns().items():
            # In place: the view is created once, and strategies may retain it.
            setattr(self.view, name, grown)
