"""A tenant's account: rate limits and budgets that admit its requests, and their charges."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
    """Service terms of a tenant: limits, budgets, weight, KV-cache quota and rights.

    Attributes:
        limits: rate and concurrency limits of its requests.
        has_token_budget: whether it has a budget in tokens.
        has_money_budget: whether it has a budget in money.
        weight: share of its requests in fair scheduling, relative to other tenants.
        quota: KV-cache quota; None for none.
        grant: rights beyond the default service class and cache retention.
    """

    limits: TenantLimits = TenantLimits()
    has_token_budget: bool = False
    has_money_budget: bool = False
    weight: float = 1.0
    quota: TenantQuota | None = None
    grant: Grant = Grant()

    @property
    def are_unlimited(self) -> bool:
        """Whether no limit, budget, weight or quota is set, so that nothing has to be counted."""
        # A grant only bounds what a request may ask for: nothing is counted for it.
        return self._replace(grant=Grant()) == RequestTerms()


class TenantAccount:
    """Runtime account of one tenant: its limits, prices and ledger, while the daemon runs.

    Attributes:
        tenant: the tenant's name.
        salt: salt of its prefix-cache keys; empty for the default tenant.
        terms: its present service terms.
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
        """Apply new terms and prices to later requests; running requests keep theirs."""
        self._prices = prices
        if terms.limits != self._gate.limits:
            self._gate.change(terms.limits)
        self.terms = terms

    @property
    def counts_requests(self) -> bool:
        """Whether a request-rate or concurrency limit requires counting of arrivals."""
        return self._gate.counts_requests

    def acquire_slot(self, *, is_read: bool) -> ConcurrencySlot:
        """See ``RateGate.acquire_slot``."""
        return self._gate.acquire_slot(is_read=is_read)

    def limit_status(self) -> dict[str, Any]:
        """The limits, and what remains of each now."""
        return self._gate.limit_status()

    async def reserve(self, asked: RequestedCost) -> Ticket:
        """Admit a request and reserve its maximum cost; awaits a disk write only with a budget.

        Raises:
            RateLimited: a limit is reached.
            InsufficientQuota: the remaining budget is too small.
            PermissionDenied: the budget is in money and the model has no price.
            StoreUnavailable: the reservation cannot be written.
        """
        terms, ledger = self.terms, self._ledger
        # The price at arrival: the request is settled at it, whatever the price is then.
        price = self._prices.of(asked.model)
        if price is None and terms.has_money_budget:
            raise PermissionDenied(
                f"the model {asked.model} has no price, and the tenant's budget is in money: ask "
                "the operator for one",
                param="model",
                code="model_not_priced",
            )
        # Before anything is reserved.
        ledger.check()
        is_reserved = terms.has_token_budget or terms.has_money_budget
        entry = LedgerEntry(
            new_id("use_"), asked, price or FREE, int(self._believed()), is_reserved
        )
        # The rate limit first, without an await; the budget may wait for the disk.
        taken = self._gate.reserve_tokens(asked)
        mark_slot = None
        if is_reserved:
            try:
                mark_slot = await ledger.reserve(entry)
            except BaseException:
                self._gate.settle_tokens(taken, 0)
                raise
        # Last: the ticket holds the slot from here on, and its caller has to end it.
        held = current_slot()
        if held is not None:
            held.acquire()
        return Ticket(self._gate, ledger, entry, taken, mark_slot, held)


@dataclass(slots=True, eq=False, repr=False)
class Ticket:
    """Reservation of one admitted request; ends with ``settle`` or ``cancel``.

    It holds the concurrency slot, rate-limit tokens and budget reservation. ``release`` may release
    the first two before the final usage is known.
    """

    _gate: RateGate
    _ledger: BudgetLedger
    entry: LedgerEntry
    _taken: int
    _mark_slot: int | None
    _held: ConcurrencySlot | None
    _is_inside: bool = True

    @property
    def is_marked(self) -> bool:
        """Whether the request has a crash mark, so that ``mark`` writes anything."""
        return self._mark_slot is not None

    def mark(self, generated: int, prompt: int, cached: int) -> None:
        """Record the request's progress before it is sent to the client; see ``Mark``."""
        if self._mark_slot is not None:
            self._ledger.marks.write(self._mark_slot, generated, prompt, cached)

    def remaining_capacity(self, queue: QueueCapacity) -> QueueCapacity:
        """Remaining capacity under the tenant's limits, for the rate-limit headers."""
        return self._gate.remaining_capacity(queue)

    def release(self, tokens: int) -> None:
        """Release the slot and charge ``tokens`` to the rate limit, before engine time is known."""
        # Both ends call it, and an aborted request may have been released before its settlement.
        if self._is_inside:
            self._is_inside = False
            self._gate.settle_tokens(self._taken, tokens)
            if self._held is not None:  # the HTTP request that started it may have ended long ago
                self._held.release()
                self._held = None

    def settle(self, spent: Spent) -> None:
        """Charge the final usage."""
        self.release(self._ledger.settle(self.entry, spent).tokens)

    def cancel(self) -> None:
        """Cancel the reservation of a request that never ran."""
        self.release(0)
        if self.entry.is_reserved:
            self._ledger.withdraw(self.entry)
