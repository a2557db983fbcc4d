"""KV cache quotas of tenants by name, and rejection of requests that could never fit them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.quotas import NO_BOUNDS, PageQuota
from gatewayd_engine.process.messages import Amount, Submit, TenantQuota
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence

_log = logging.getLogger(__name__)
_MAX_FLOORS = 0.9
"""Share of the pool that all floors may reserve: tenants without one must find room as well."""

TOO_LARGE = "kv_quota_exceeded"
"""Error code of a request that needs more pages than its tenant may ever hold."""


class _Need(NamedTuple):
    """Pages that a sequence admitted before a quota change may come to hold."""

    tenant: int
    pages: int


class TenantQuotas:
    """The KV cache quotas of this engine.

    A quota change does not end started sequences: while one is live for which the new quotas leave
    too little, its tenant's ceiling is raised to what it needs, and floors are lowered.

    Args:
        queue: the engine's sequence table, with the tenants' numbers.
        pages: the page allocator that enforces the quotas.
    """

    def __init__(self, queue: Queue, pages: Pages) -> None:
        self._queue = queue
        self._pages = pages
        self._bounds: dict[int, PageQuota] = {}
        self._exempt: dict[int, _Need] = {}  # by sequence id

    def set(self, quotas: list[TenantQuota]) -> None:
        """Replace all quotas; started sequences continue."""
        size = self._pages.num_pages
        wanted = {
            self._queue.tenants.number_of(quota.tenant): PageQuota(
                0 if quota.floor is None else _pages(quota.floor, size),
                # A small share of a small pool must not exclude the tenant altogether.
                None if quota.ceiling is None else max(1, _pages(quota.ceiling, size)),
            )
            for quota in quotas
        }
        self._bounds = _lowered(wanted, int(_MAX_FLOORS * size))
        if self._bounds != wanted:
            total = sum(one.floor for one in wanted.values())
            _log.warning(
                "KV floors of tenants add up to %d of %d pages: scaled down to %.0f %% in total",
                *(total, size, 100 * _MAX_FLOORS),
            )
        self._exempt = {}
        for sequence in self._queue:
            need, most = self._need(sequence), self._most(sequence.tenant)
            if most is not None and need.pages > most and has_started(sequence):
                # Forks that wait for its prompt belong to a request that has started.
                ids = (sequence.id, *(fork.id for fork in sequence.forks))
                self._exempt |= dict.fromkeys(ids, need)
        self._apply()

    def tighten(self, is_live: Callable[[int], bool]) -> None:
        """Restore the configured quotas as sequences they were relaxed for end.

        Args:
            is_live: whether there is a sequence with an id.
        """
        left = {one: need for one, need in self._exempt.items() if is_live(one)}
        if len(left) == len(self._exempt):
            return
        self._exempt = left
        self._apply()

    def _apply(self) -> None:
        """Apply the configured quotas, relaxed as far as exempt sequences require."""
        bounds = self._bounds
        if self._exempt:
            most = max(need.pages for need in self._exempt.values())
            # Leaves room for the largest of them to run alone, like the check at submission.
            bounds = _lowered(bounds, self._pages.num_pages - most)
            for tenant, pages in self._exempt.values():
                floor, ceiling = bounds.get(tenant, NO_BOUNDS)
                if ceiling is not None:
                    bounds = {**bounds, tenant: PageQuota(floor, max(ceiling, pages))}
        self._pages.set_quotas(bounds)

    def release_idle(self) -> None:
        """Release the numbers of tenants without sequences, pages and quotas, when it is due."""
        tenants, pages, queue = self._queue.tenants, self._pages, self._queue
        if not tenants.is_due:
            return
        # Free pages keep the number of their last owner.
        is_filled = pages.known() | (pages.holders() > 0)
        tenants.retain_only(
            (
                queue.view.tenant[queue.ids >= 0],
                pages.owners()[is_filled],
                np.fromiter(self._bounds, np.int64, len(self._bounds)),
            )
        )

    def _need(self, sequence: Sequence) -> _Need:
        pages = -(-sequence.limit // self._queue.view.page_size)
        return _Need(self._queue.tenants.number_of(sequence.tenant), pages)

    def clamp_to_quota(self, message: Submit, prompt_len: int) -> Submit:
        """Reduce ``max_tokens`` to the tenant's quota, if the request allows a shorter output.

        Raises:
            RequestRejected: its tenant may never hold so many pages.
        """
        params = message.params
        most = self._most(message.tenant)
        if params.may_be_shorter and most is not None:
            left = most * self._queue.view.page_size - prompt_len
            if 0 < left < params.max_tokens:
                params = msgspec.structs.replace(
                    params, max_tokens=left, min_tokens=min(left, params.min_tokens)
                )
                return msgspec.structs.replace(message, params=params)
        self.check(message.tenant, prompt_len + params.max_tokens)
        return message

    def check(self, tenant: str, num_tokens: int) -> None:
        """Verify that a sequence could run if it were alone.

        Args:
            tenant: name of its tenant.
            num_tokens: tokens that it may reach.

        Raises:
            RequestRejected: its tenant may never hold so many pages.
        """
        most = self._most(tenant)
        pages = -(-num_tokens // self._queue.view.page_size)
        if most is None or pages <= most:
            return
        takes = f"a prompt and an answer of {num_tokens} tokens take {pages} pages of the KV cache"
        if self._bounds.get(self._queue.tenants.number_of(tenant), NO_BOUNDS).ceiling == most:
            raise RequestRejected(
                f"{takes} and the tenant may hold {most}: ask for fewer tokens, or the operator "
                "for more",
                TOO_LARGE,
            )
        raise RequestRejected(
            f"{takes}; all but {most} of its {self._pages.num_pages} may be reserved for other "
            "tenants: ask for fewer tokens",
            TOO_LARGE,
        )

    def _most(self, tenant: str) -> int | None:
        """Return the most pages that a sequence of a tenant may hold; None without quotas."""
        if not self._bounds:
            return None
        number = self._queue.tenants.number_of(tenant)
        # A tenant's own floor does not limit it.
        reserved = sum(one.floor for other, one in self._bounds.items() if other != number)
        left = max(0, self._pages.num_pages - reserved)
        ceiling = self._bounds.get(number, NO_BOUNDS).ceiling
        return left if ceiling is None else min(left, ceiling)


def has_started(sequence: Sequence) -> bool:
    """Whether the client may have received output: the sequence is running, or has run."""
    return sequence.was_admitted or bool(sequence.inherited)


def _lowered(bounds: Mapping[int, PageQuota], most: int) -> dict[int, PageQuota]:
    """Scale floors down in proportion, so that they add up to ``most`` pages at most."""
    total = sum(one.floor for one in bounds.values())
    if total <= most:
        return dict(bounds)
    return {
        tenant: one._replace(floor=one.floor * max(0, most) // total)
        for tenant, one in bounds.items()
    }


def _pages(amount: Amount, num_pages: int) -> int:
    """Convert an amount to pages of a pool of ``num_pages``."""
    return min(num_pages, amount.pages + int(amount.share * num_pages))
