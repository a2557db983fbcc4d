"""What tenants are promised of the KV cache, by name, and who could never run within it."""

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
_MOST_KEPT = 0.9
"""Of the pool, for all floors together: somebody without one must find room."""

TOO_LARGE = "kv_quota_exceeded"
"""The code of a request that is beyond what its tenant may ever hold."""


class _Need(NamedTuple):
    """What a sequence may come to hold that had begun when quotas changed."""

    tenant: int
    pages: int


class TenantBounds:
    """The quotas of this engine.

    A sequence that has begun ends as it was promised: while one lives for which the quotas leave
    too little, its tenant's ceiling is as high as it needs, and floors are lower.

    Args:
        queue: has the tenants' numbers.
        pages: kept within them.
    """

    def __init__(self, queue: Queue, pages: Pages) -> None:
        self._queue = queue
        self._pages = pages
        self._bounds: dict[int, PageQuota] = {}
        self._spared: dict[int, _Need] = {}  # by sequence id

    def set(self, quotas: list[TenantQuota]) -> None:
        """These from now on, and no others; those that have begun go on."""
        size = self._pages.num_pages
        wanted = {
            self._queue.tenants.number_of(quota.tenant): PageQuota(
                0 if quota.floor is None else _pages(quota.floor, size),
                None if quota.ceiling is None else max(1, _pages(quota.ceiling, size)),
            )
            for quota in quotas
        }
        self._bounds = _lowered(wanted, int(_MOST_KEPT * size))
        if self._bounds != wanted:
            kept = sum(one.floor for one in wanted.values())
            _log.warning(
                "KV floors of tenants add up to %d of %d pages: scaled down to %.0f %% in total",
                *(kept, size, 100 * _MOST_KEPT),
            )
        self._spared = {}
        for sequence in self._queue:
            need, most = self._need(sequence), self._most(sequence.tenant)
            if most is not None and need.pages > most and has_begun(sequence):
                ids = (sequence.id, *(fork.id for fork in sequence.forks))
                self._spared |= dict.fromkeys(ids, need)
        self._apply()

    def tighten(self, lives: Callable[[int], bool]) -> None:
        """Hold again what was lowered for sequences that have ended since.

        Args:
            lives: whether there is a sequence of an id.
        """
        left = {one: need for one, need in self._spared.items() if lives(one)}
        if len(left) == len(self._spared):
            return
        self._spared = left
        self._apply()

    def _apply(self) -> None:
        """Bound tenants as near to what was set as those that are spared can bear."""
        bounds = self._bounds
        if self._spared:
            most = max(need.pages for need in self._spared.values())
            bounds = _lowered(bounds, self._pages.num_pages - most)
            for tenant, pages in self._spared.values():
                floor, ceiling = bounds.get(tenant, NO_BOUNDS)
                if ceiling is not None:
                    bounds = {**bounds, tenant: PageQuota(floor, max(ceiling, pages))}
        self._pages.bound(bounds)

    def forget_idle(self) -> None:
        """Of tenants that have no sequence, no page and no bounds nothing is kept, in time."""
        tenants, pages, queue = self._queue.tenants, self._pages, self._queue
        if not tenants.is_due:
            return
        is_filled = pages.known() | (pages.holders() > 0)
        tenants.keep(
            (
                queue.view.tenant[queue.ids >= 0],
                pages.owners()[is_filled],
                np.fromiter(self._bounds, np.int64, len(self._bounds)),
            )
        )

    def _need(self, sequence: Sequence) -> _Need:
        pages = -(-sequence.limit // self._queue.view.page_size)
        return _Need(self._queue.tenants.number_of(sequence.tenant), pages)

    def fitted(self, message: Submit, prompt_len: int) -> Submit:
        """A request as long as its tenant may have it, where it did not say how long it is.

        Raises:
            Refused: its tenant may never hold so many pages.
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
        """See that a sequence could run if it were alone.

        Args:
            tenant: whose it is.
            num_tokens: that it may reach.

        Raises:
            Refused: its tenant may never hold so many pages.
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
            f"{takes}; all but {most} of its {self._pages.num_pages} may be kept for other "
            "tenants: ask for fewer tokens",
            TOO_LARGE,
        )

    def _most(self, tenant: str) -> int | None:
        """Pages that a tenant's sequence may hold when nobody else does; None without quotas."""
        if not self._bounds:
            return None
        number = self._queue.tenants.number_of(tenant)
        kept = sum(one.floor for other, one in self._bounds.items() if other != number)
        left = max(0, self._pages.num_pages - kept)
        ceiling = self._bounds.get(number, NO_BOUNDS).ceiling
        return left if ceiling is None else min(left, ceiling)


def has_begun(sequence: Sequence) -> bool:
    """Whether its client may have had something of its request: it runs, or has run."""
    return sequence.was_admitted or bool(sequence.inherited)


def _lowered(bounds: Mapping[int, PageQuota], most: int) -> dict[int, PageQuota]:
    """With floors that add up to so many pages at most, each lowered in proportion."""
    total = sum(one.floor for one in bounds.values())
    if total <= most:
        return dict(bounds)
    return {
        tenant: one._replace(floor=one.floor * max(0, most) // total)
        for tenant, one in bounds.items()
    }


def _pages(amount: Amount, num_pages: int) -> int:
    """An amount of a pool of so many pages."""
    return min(num_pages, amount.pages + int(amount.share * num_pages))
