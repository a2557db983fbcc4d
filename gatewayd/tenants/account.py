"""A tenant's account: what its requests must pass before they run, and are counted by after."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gatewayd.errors import PermissionDenied
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.store.ids import new_id
from gatewayd.tenants.billing.budget_ledger import BudgetLedger
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Spent
from gatewayd.tenants.billing.prices import FREE, Prices
from gatewayd.tenants.grants import Grant
from gatewayd.tenants.limits import ConcurrencySlot, RateGate, TenantLimits, current_slot
from gatewayd_engine.process.messages import TenantQuota


class RequestTerms(NamedTuple):
    """What a tenant was promised.

    Attributes:
        limits: of its requests.
        has_token_budget: whether its tokens are limited in all.
        has_money_budget: whether its money is.
        weight: of its requests beside those of others.
        quota: of the KV cache; None for none.
        grant: of more than the usual service.
    """

    limits: TenantLimits = TenantLimits()
    has_token_budget: bool = False
    has_money_budget: bool = False
    weight: float = 1.0
    quota: TenantQuota | None = None
    grant: Grant = Grant()

    @property
    def are_usual(self) -> bool:
        """Whether nothing was promised that is counted."""
        return self._replace(grant=Grant()) == RequestTerms()


class TenantAccount:
    """Of one tenant, as long as the daemon runs.

    Attributes:
        tenant: whose it is.
        salt: of its prefix cache; empty for the tenant of everybody.
        terms: what it was promised.
    """

    def __init__(
        self,
        tenant: str,
        terms: RequestTerms,
        ledger: BudgetLedger,
        salt: bytes,
        clock: Callable[[], float] = time.monotonic,
        believed: Callable[[], float] = time.time,
    ) -> None:
        self.tenant = tenant
        self.salt = salt
        self.terms = terms
        self._ledger = ledger
        self._believed = believed
        self._prices = Prices()
        self._gate = RateGate(terms.limits, clock)

    def change(self, terms: RequestTerms, prices: Prices) -> None:
        """From now on; what runs goes on as it began."""
        self._prices = prices
        if terms.limits != self._gate.limits:
            self._gate.change(terms.limits)
        self.terms = terms

    @property
    def counts_requests(self) -> bool:
        """Whether its requests are limited, whatever they ask for."""
        return self._gate.counts_requests

    def arrive(self, *, is_read: bool) -> ConcurrencySlot:
        """See ``RateGate.arrive``."""
        return self._gate.arrive(is_read=is_read)

    def standing(self) -> dict[str, Any]:
        """Its limits, and what is left of each now."""
        return self._gate.standing()

    async def admit(self, asked: RequestedCost) -> Ticket:
        """Let a request in; waits for the disk only where there is a budget.

        Raises:
            RateLimited: a limit is reached.
            InsufficientQuota: the budget has too little left.
            PermissionDenied: there is a budget in money and the model has no price.
            StoreUnavailable: it could not be counted.
        """
        terms, ledger = self.terms, self._ledger
        price = self._prices.of(asked.model)
        if price is None and terms.has_money_budget:
            raise PermissionDenied(
                f"the model {asked.model} has no price, and the tenant's budget is in money: ask "
                "the operator for one",
                param="model",
                code="model_not_priced",
            )
        ledger.check()
        is_reserved = terms.has_token_budget or terms.has_money_budget
        entry = LedgerEntry(
            new_id("use_"), asked, price or FREE, int(self._believed()), is_reserved
        )
        taken = self._gate.enter(asked)
        mark_slot = None
        if is_reserved:
            try:
                mark_slot = await ledger.reserve(entry)
            except BaseException:
                self._gate.leave(taken, 0)
                raise
        held = current_slot()
        if held is not None:
            held.hold()
        return Ticket(self._gate, ledger, entry, taken, mark_slot, held)


class Ticket:
    """One request that was let in: it must ``settle`` or ``give_back``; ``leave`` may come before.

    Until then it is inside: it holds its slot, its tokens and its reservation.
    """

    __slots__ = ("_gate", "_held", "_is_inside", "_ledger", "_mark_slot", "_taken", "entry")

    def __init__(
        self,
        gate: RateGate,
        ledger: BudgetLedger,
        entry: LedgerEntry,
        taken: int,
        mark_slot: int | None,
        held: ConcurrencySlot | None,
    ) -> None:
        self._gate = gate
        self._ledger = ledger
        self._taken = taken
        self._mark_slot = mark_slot
        self._is_inside = True
        self._held = held
        self.entry = entry

    @property
    def is_marked(self) -> bool:
        """Whether ``mark`` writes anything."""
        return self._mark_slot is not None

    def mark(self, generated: int, prompt: int, cached: int) -> None:
        """It has come so far, which nobody was told yet; see ``Mark``."""
        if self._mark_slot is not None:
            self._ledger.marks.write(self._mark_slot, generated, prompt, cached)

    def room(self, queue: QueueCapacity) -> QueueCapacity:
        """What may come yet, for the answer's headers."""
        return self._gate.room(queue)

    def leave(self, tokens: int) -> None:
        """It is answered, and has used so many tokens; only the seconds may not be known yet."""
        if self._is_inside:
            self._is_inside = False
            self._gate.leave(self._taken, tokens)
            if self._held is not None:  # the HTTP request that started it may have ended long ago
                self._held.let_go()
                self._held = None

    def settle(self, spent: Spent) -> None:
        """All that it took is known."""
        self.leave(self._ledger.settle(self.entry, spent).tokens)

    def give_back(self) -> None:
        """It never ran."""
        self.leave(0)
        if self.entry.is_reserved:
            self._ledger.withdraw(self.entry)
