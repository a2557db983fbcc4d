"""Cached pages that an operator wants kept: the eviction is asked to spare them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.plugin_faults import RequestRejected, blame
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind

_NO_PINS = "the eviction in use knows no pins; take another, such as retention"


class OperatorPins:
    """Asks the eviction for an operator.

    Args:
        pages: that the prefix cache knows.
        prefixes: finds those of a prompt.
        strategies: with the eviction that is in use.
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
        """Let the eviction spare what is cached of a prompt; see ``gatewayd_hooks.caching.Pins``.

        Args:
            tokens: ids of the prompt; none stands for all that is cached.
            salt: of the prefix cache.
            seconds: from now on; 0 takes pins back.

        Returns:
            Tokens of the prompt that are pinned now.

        Raises:
            Refused: there are no pins.
        """
        plan = self._strategies.plan
        if plan.match is None:
            raise RequestRejected("there is no prefix cache, and so nothing to pin")
        if plan.pin is None:
            raise RequestRejected(_NO_PINS)
        self._pages.put_back_aside()
        num_tokens = 0
        if not len(tokens):
            pages = [page for page in range(self._pages.num_pages) if self._pages.is_known(page)]
        else:
            found = self._prefixes.cached_of(tokens, salt)
            pages = list(found.pages[-1:])  # those before it are pinned with it
            num_tokens = found.num_tokens
        with blame(Kind.EVICTION):
            for page in pages:
                plan.pin(page, seconds)
        return num_tokens if seconds else 0

    def pin_page(self, page: int, seconds: float) -> int:
        """Let the eviction spare a cached page and those before it.

        Returns:
            Tokens up to its end; 0 if it is not cached.

        Raises:
            Refused: there are no pins.
        """
        plan = self._strategies.plan
        if plan.pin is None:
            raise RequestRejected(_NO_PINS)
        if not self._pages.is_known(page):
            return 0
        self._pages.put_back_aside()
        with blame(Kind.EVICTION):
            plan.pin(page, seconds)
        origin = self._pages.origin(page)
        return ((0 if origin is None else origin.depth) + 1) * self._page_size
