"""The queue: every live sequence has a slot, and columns say what schedulers may see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.tenant_ids import Tenants
from gatewayd_hooks.scheduling import QueueView


class Queue:
    """Live sequences by slot and by id, and their columns.

    Attributes:
        view: what strategies see; its arrays are replaced when the capacity grows.
        waiting: slots without a row, in no particular order.
        parked: slots without a row that an operator holds: no scheduler knows them.
        running: slots with a row, in order of admission.
        limit: tokens each may reach, shape ``[slots]``.
        prompt_len: shape ``[slots]``.
        num_pages: pages each holds, shape ``[slots]``.
        num_reserved: pages each was admitted with or promised, shape ``[slots]``.
        num_published: full pages that the prefix cache was told of, shape ``[slots]``.
        row: row of the batch, -1 for waiting ones, shape ``[slots]``.
        ids: the gateway's numbers, -1 for nobody, shape ``[slots]``.
        waits: steps each has waited for others to compute its beginning, shape ``[slots]``.
        in_flight: of the computed tokens, those whose step has not landed, shape ``[slots]``.
        placeholders: tokens that it has and only the device knows, shape ``[slots]``.
        beginning: equal for prompts with the same salt and first page, shape ``[slots]``.
        drafted: tokens that were guessed for each, shape ``[slots]``.
        accepted: of these, shape ``[slots]``.
        tenants: their numbers.
        on_remove: told of a sequence that has ended, while it has its slot.
    """

    def __init__(
        self,
        slots: int,
        token_budget: int,
        max_running: int,
        page_size: int,
        uncached: Callable[[int], int],
    ) -> None:
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
        self.limit = np.zeros(slots, np.int32)
        self.prompt_len = np.zeros(slots, np.int32)
        self.num_pages = np.zeros(slots, np.int32)
        self.num_absent = np.zeros(slots, np.int32)
        self.num_reserved = np.zeros(slots, np.int32)
        self.num_published = np.zeros(slots, np.int32)
        self.row = np.full(slots, -1, np.int32)
        self.ids = np.full(slots, -1, np.int64)
        self.waits = np.zeros(slots, np.int32)
        self.in_flight = np.zeros(slots, np.int32)
        self.placeholders = np.zeros(slots, np.int32)
        self.beginning = np.zeros(slots, np.int64)
        self.drafted = np.zeros(slots, np.int32)
        self.accepted = np.zeros(slots, np.int32)
        self.view = QueueView(
            running=np.zeros(0, np.int32),
            num_tokens=np.zeros(slots, np.int32),
            num_computed=np.zeros(slots, np.int32),
            priority=np.zeros(slots, np.int8),
            tenant=np.zeros(slots, np.int32),
            arrival=np.zeros(slots, np.float64),
            token_budget=token_budget,
            max_running=max_running,
            free_pages=0,
            page_size=page_size,
            uncached=uncached,
            weight=np.ones(slots),
            deadline=np.full(slots, np.inf),
            preemptions=np.zeros(slots, np.int32),
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
        view = self.view
        view.num_tokens[slot] = sequence.prompt_len
        view.num_computed[slot] = 0
        view.priority[slot] = sequence.priority
        view.tenant[slot] = self.tenants.number_of(sequence.tenant)
        view.arrival[slot] = sequence.submitted
        view.weight[slot] = sequence.weight
        view.deadline[slot] = sequence.deadline
        view.preemptions[slot] = 0
        self.limit[slot] = sequence.limit
        self.prompt_len[slot] = sequence.prompt_len
        self.num_pages[slot] = 0
        self.num_absent[slot] = 0
        self.num_reserved[slot] = 0
        self.num_published[slot] = 0
        self.row[slot] = -1
        self.ids[slot] = sequence.id
        self.waits[slot] = 0
        self.drafted[slot] = self.accepted[slot] = 0
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
        view = self.view
        for owner, names in (
            (
                view,
                (
                    "num_tokens",
                    "num_computed",
                    "priority",
                    "tenant",
                    "arrival",
                    "weight",
                    "deadline",
                    "preemptions",
                ),
            ),
            (
                self,
                (
                    "limit",
                    "prompt_len",
                    "num_pages",
                    "num_absent",
                    "num_reserved",
                    "num_published",
                    "row",
                    "ids",
                    "waits",
                    "in_flight",
                    "placeholders",
                    "beginning",
                    "drafted",
                    "accepted",
                ),
            ),
        ):
            for name in names:
                column = getattr(owner, name)
                setattr(owner, name, np.concatenate([column, np.zeros_like(column)]))
        self.row[old:] = -1
        self.ids[old:] = -1
