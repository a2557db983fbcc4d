"""The queue: every live sequence has a slot, and columns say what schedulers may see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.state.columns import ColumnSet, column
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.tenant_ids import Tenants
from gatewayd_hooks.scheduling import QueueView


class _ViewColumns(ColumnSet):
    """The columns of ``QueueView``, which holds the same arrays."""

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
        parked: slots without a row that an operator holds: no scheduler knows them.
        running: slots with a row, in order of admission.
        tenants: their numbers.
        on_remove: told of a sequence that has ended, while it has its slot.
    """

    limit = column(np.int32)
    """Tokens each may reach."""
    prompt_len = column(np.int32)
    num_pages = column(np.int32)
    """Pages each holds."""
    num_absent = column(np.int32)
    """Of these, ``NO_PAGE``: those that its front has no need of."""
    num_reserved = column(np.int32)
    """Pages each was admitted with or promised."""
    num_published = column(np.int32)
    """Full pages that the prefix cache was told of."""
    row = column(np.int32, -1)
    """Row of the batch, -1 for waiting ones."""
    ids = column(np.int64, -1)
    """The gateway's numbers, -1 for nobody."""
    waits = column(np.int32)
    """Steps each has waited for others to compute its beginning."""
    in_flight = column(np.int32)
    """Of the computed tokens, those whose step has not landed."""
    placeholders = column(np.int32)
    """Tokens that it has and only the device knows."""
    beginning = column(np.int64)
    """Equal for prompts with the same salt and first page."""
    drafted = column(np.int32)
    """Tokens that were guessed for each."""
    accepted = column(np.int32)
    """Of these, those that the model accepted."""

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
        self.waiting: dict[int, None] = {}
        self.parked: dict[int, None] = {}
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
        """The live sequence of a slot; KeyError if there is none."""
        sequence = self._by_slot[slot] if 0 <= slot < len(self._by_slot) else None
        if sequence is None:
            raise KeyError(slot)
        return sequence

    def find(self, sequence_id: int) -> Sequence | None:
        """The live sequence that the gateway calls by this number."""
        return self._by_id.get(sequence_id)

    def add(self, sequence: Sequence) -> int:
        """Give a sequence a slot; it waits from now on."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        sequence.slot = slot
        self._by_slot[slot] = sequence
        self._by_id[sequence.id] = sequence
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
        self.beginning[slot] = hash((sequence.salt, first))
        self.waiting[slot] = None
        if sequence.is_urgent:
            self.urge(slot)
        return slot

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended; its slot is free."""
        slot = sequence.slot
        if self.on_remove is not None:
            self.on_remove(sequence)
        self.waiting.pop(slot, None)
        self.parked.pop(slot, None)
        if slot in self.view.urgent:
            self.view.urgent = self.view.urgent - {slot}
        self.stop_running(slot)
        self._by_slot[slot] = None
        del self._by_id[sequence.id]
        self.ids[slot] = -1
        self._free.append(slot)
        sequence.slot = -1

    def waiting_alike(self, beginning: int) -> NDArray[np.int64]:
        """Slots of waiting sequences with this beginning, shape ``[n]``."""
        is_live = self.ids >= 0  # a slot that nobody has keeps what was in its columns
        alike = np.flatnonzero((self.beginning == beginning) & (self.row < 0) & is_live)
        return alike[~np.isin(alike, list(self.parked))] if self.parked else alike

    def start_running(self, slot: int) -> None:
        """A waiting sequence got a row."""
        del self.waiting[slot]
        self.running[slot] = None
        if slot in self.view.urgent:
            self.urge(slot)
        else:
            self._show_running()

    def stop_running(self, slot: int) -> None:
        """A sequence has no row any more."""
        if slot in self.running:
            del self.running[slot]
            self._hidden.discard(slot)
            self.row[slot] = -1
            self.in_flight[slot] = self.placeholders[slot] = 0
            self._show_running()

    def hide(self, slots: list[int]) -> None:
        """Running sequences compute nothing any more: their last token is on its way."""
        self._hidden.update(slots)
        self._show_running()

    def wait_again(self, slot: int) -> None:
        """A preempted sequence waits, with nothing computed."""
        self.stop_running(slot)
        self.view.num_computed[slot] = 0
        self.num_pages[slot] = 0
        self.num_absent[slot] = 0
        self.waiting[slot] = None

    def park(self, slot: int) -> None:
        """A waiting sequence is not to be scheduled."""
        del self.waiting[slot]
        self.parked[slot] = None

    def unpark(self, slot: int) -> None:
        """It waits again."""
        del self.parked[slot]
        self.waiting[slot] = None

    def urge(self, slot: int) -> None:
        """A sequence goes first in its class; among those that run it is as if admitted first."""
        self.view.urgent = self.view.urgent | {slot}
        if slot in self.running:
            self.running = {slot: None, **self.running}
            self._show_running()

    def _show_running(self) -> None:
        view, hidden = self.view, self._hidden
        shown = [slot for slot in self.running if slot not in hidden] if hidden else self.running
        view.running = np.fromiter(shown, np.int32, len(shown))
        # They keep their rows until then.
        view.max_running = self._max_running - len(hidden)

    def _grow(self) -> None:
        old = len(self._by_slot)
        self._by_slot.extend([None] * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))
        self.grow_columns(2 * old)
        self._shown.grow_columns(2 * old)
        for name, grown in self._shown.columns().items():
            setattr(self.view, name, grown)
