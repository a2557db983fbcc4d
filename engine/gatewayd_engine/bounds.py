"""What tenants are promised of the KV cache, by name, and who could never run within it."""

from __future__ import annotations

from gatewayd_engine.kv.pages import Pages
from gatewayd_engine.kv.quotas import Bounds
from gatewayd_engine.messages import Amount, TenantQuota
from gatewayd_engine.queue import Queue
from gatewayd_engine.submission import Refused

TOO_LARGE = "kv_quota_exceeded"
"""The code of a request that is beyond what its tenant may ever hold."""


class TenantBounds:
    """The quotas of this engine.

    Args:
        queue: has the tenants' numbers.
        pages: kept within them.
    """

    def __init__(self, queue: Queue, pages: Pages) -> None:
        self._queue = queue
        self._pages = pages

    def set(self, quotas: list[TenantQuota]) -> None:
        """These from now on, and no others."""
        size = self._pages.num_pages
        self._pages.bound(
            {
                self._queue.number_of(quota.tenant): Bounds(
                    0 if quota.floor is None else _pages(quota.floor, size),
                    None if quota.ceiling is None else max(1, _pages(quota.ceiling, size)),
                )
                for quota in quotas
            }
        )

    def check(self, tenant: str, num_tokens: int) -> None:
        """See that a sequence could run if it were alone.

        Args:
            tenant: whose it is.
            num_tokens: that it may reach.

        Raises:
            Refused: its tenant may never hold so many pages.
        """
        quotas = self._pages.quotas
        if quotas is None:
            return
        number = self._queue.number_of(tenant)
        pages = -(-num_tokens // self._queue.view.page_size)
        ceiling = quotas.of(number).ceiling
        if ceiling is not None and pages > ceiling:
            raise Refused(
                f"a prompt and an answer of {num_tokens} tokens take {pages} pages of the KV cache "
                f"and the tenant may hold {ceiling}: ask for fewer, or the operator for more",
                TOO_LARGE,
            )
        kept = sum(one.floor for other, one in quotas.bounds.items() if other != number)
        if pages > self._pages.num_pages - kept:
            raise Refused(
                f"a prompt and an answer of {num_tokens} tokens take {pages} pages; the KV cache "
                f"has {self._pages.num_pages}, of which {kept} may be kept for other tenants: "
                "ask for fewer tokens",
                TOO_LARGE,
            )


def _pages(amount: Amount, num_pages: int) -> int:
    """An amount of a pool of so many pages."""
    return min(num_pages, amount.pages + int(amount.share * num_pages))
