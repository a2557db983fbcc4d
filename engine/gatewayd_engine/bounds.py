"""What tenants are promised of the KV cache, by name, and who could never run within it."""

from __future__ import annotations

import msgspec

from gatewayd_engine.kv.pages import Pages
from gatewayd_engine.kv.quotas import Bounds
from gatewayd_engine.messages import Amount, Submit, TenantQuota
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
        most, quotas = self._most(tenant), self._pages.quotas
        pages = -(-num_tokens // self._queue.view.page_size)
        if quotas is None or most is None or pages <= most:
            return
        takes = f"a prompt and an answer of {num_tokens} tokens take {pages} pages of the KV cache"
        if quotas.of(self._queue.number_of(tenant)).ceiling == most:
            raise Refused(
                f"{takes} and the tenant may hold {most}: ask for fewer tokens, or the operator "
                "for more",
                TOO_LARGE,
            )
        raise Refused(
            f"{takes}; all but {most} of its {self._pages.num_pages} may be kept for other "
            "tenants: ask for fewer tokens",
            TOO_LARGE,
        )

    def _most(self, tenant: str) -> int | None:
        """Pages that a tenant's sequence may hold when nobody else does; None without quotas."""
        quotas = self._pages.quotas
        if quotas is None:
            return None
        number = self._queue.number_of(tenant)
        kept = sum(one.floor for other, one in quotas.bounds.items() if other != number)
        left, ceiling = self._pages.num_pages - kept, quotas.of(number).ceiling
        return left if ceiling is None else min(left, ceiling)


def _pages(amount: Amount, num_pages: int) -> int:
    """An amount of a pool of so many pages."""
    return min(num_pages, amount.pages + int(amount.share * num_pages))
