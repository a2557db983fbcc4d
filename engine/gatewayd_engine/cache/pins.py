"""Operator pins: cached pages that the eviction strategy is asked to spare."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.plugin_faults import RequestRejected, attribute_faults
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind

_NO_PINS = "the eviction strategy in use does not support pins; use another, such as retention"


class OperatorPins:
    """Operator pins, held by the eviction strategy.

    Args:
        pages: the page allocator.
        prefixes: finds the cached pages of a prompt.
        strategies: the active eviction strategy.
        page_size: tokens per page.
    """

    def __init__(
        self, pages: Pages, prefixes: PrefixCache, strategies: Strategies, page_size: int
    ) -> None:
        self._pages = pages
        self._prefixes = prefixes
        self._strategies = strategies
        self._page_size = page_size

    def pin(self, tokens: NDArray[np.int32], salt: bytes, seconds: float) -> int:
        """Pin the cached prefix of a prompt; see ``gatewayd_hooks.caching.Pins``.

        Args:
            tokens: token ids of the prompt; empty to pin everything that is cached.
            salt: cache salt.
            seconds: duration of the pin; 0 removes it.

        Returns:
            Tokens of the prompt that are pinned now.

        Raises:
            RequestRejected: pins are not supported.
        """
        plan = self._strategies.plan
        if plan.match is None:
            raise RequestRejected("there is no prefix cache, so nothing can be pinned")
        if plan.pin is None:
            raise RequestRejected(_NO_PINS)
        # The strategy does not know pages that quotas have set aside, and would ignore them.
        self._pages.restore_protected()
        num_tokens = 0
        if not len(tokens):
            pages = [page for page in range(self._pages.num_pages) if self._pages.is_known(page)]
        else:
            found = self._prefixes.match_prompt(tokens, salt)
            pages = list(found.pages[-1:])  # those before it are pinned with it
            num_tokens = found.num_tokens
        with attribute_faults(Kind.EVICTION):
            for page in pages:
                plan.pin(page, seconds)
        return num_tokens if seconds else 0

    def pin_page(self, page: int, seconds: float) -> int:
        """Pin a cached page and those before it.

        Returns:
            Tokens up to its end; 0 if it is not cached.

        Raises:
            RequestRejected: pins are not supported.
        """
        plan = self._strategies.plan
        if plan.pin is None:
            raise RequestRejected(_NO_PINS)
        if not self._pages.is_known(page):
            return 0
        self._pages.restore_protected()
        with attribute_faults(Kind.EVICTION):
            plan.pin(page, seconds)
        origin = self._pages.origin(page)
        return ((0 if origin is None else origin.depth) + 1) * self._page_size
