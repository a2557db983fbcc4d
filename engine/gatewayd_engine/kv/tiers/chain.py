"""The chain of KV tiers of an engine, each isolated against faults.

A tier only ever saves work. One that raises or returns invalid answers is disabled at once, and
only its pages are lost; a new instance is opened before the next step, until its error budget is
exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.tiers.tier import PageRun, Tier
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.fence import StrategyFault
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.strategy import Kind

T = TypeVar("T")


class TierChain:
    """KV tiers, nearest first.

    Args:
        choices: the configured tiers that are not quarantined.
        open_: opens a strategy; its errors are passed on.
        close: closes a strategy, watched.
        record: counts a fault by name; returns whether the error budget is exceeded.
        plugin_times: measures call times.
        page_bytes: bytes of a page.

    Attributes:
        version: incremented whenever a page may have been added or removed.
    """

    def __init__(
        self,
        choices: Sequence[StrategyChoice],
        open_: Callable[[StrategyChoice], Any],
        close: Callable[[Any], None],
        record: Callable[[str, BaseException], bool],
        plugin_times: PluginTimes,
        page_bytes: int,
    ) -> None:
        self._open = open_
        self._plugin_times = plugin_times
        self._close = close
        self._record = record
        self._page_bytes = page_bytes
        self._choices = list(choices)
        self._broken = False
        self._tiers: list[Tier] = []
        self.version = 0
        try:
            for choice in self._choices:
                self._tiers.append(self._make(choice, open_))
        except BaseException:
            self.close()
            raise

    def __bool__(self) -> bool:
        return bool(self._choices)

    def _make(self, choice: StrategyChoice, open_: Callable[[StrategyChoice], Any]) -> Tier:
        strategy = open_(choice)
        is_slow = all(hasattr(strategy, name) for name in ("fetch", "ready", "page_seconds"))
        watched = self._plugin_times.watch(Kind.KV_TIER, choice.name, strategy)
        return Tier(choice, strategy, watched, self._page_bytes, is_slow)

    @property
    def names(self) -> list[str]:
        """Names of the active tiers."""
        return [tier.choice.name for tier in self._tiers]

    # Pages

    def locate(self, keys: list[bytes]) -> list[PageRun]:
        """Locate the leading pages, each in the nearest tier that has it."""
        found: list[PageRun] = []
        at = 0
        # A prefix may be split over tiers; it ends at the first page that none of them has.
        while at < len(keys):
            for tier in self._tiers:
                count = self._call(tier, 0, tier.find, keys[at:])
                if count:
                    found.append(PageRun(tier, keys[at : at + count]))
                    at += count
                    break
            else:
                break
        return found

    def put(self, key: bytes, page: NDArray[np.uint8]) -> None:
        """Store a page in the first tier, and what that evicts in the next one."""
        # Cached lookups may miss the new page, or find one that it has evicted.
        self.version += 1
        self._put(list(self._tiers), key, page)

    def _put(self, tiers: list[Tier], key: bytes, page: NDArray[np.uint8]) -> None:
        if not tiers:
            return
        tier = tiers[0]
        nothing: list[tuple[bytes, NDArray[np.uint8]]] = []
        for other, left in self._call(tier, nothing, tier.put, key, page):
            self._put(tiers[1:], other, left)

    def ready(self, located: PageRun) -> int:
        """Return the number of leading pages that are available without waiting."""
        tier, keys = located.tier, located.keys
        return self._call(tier, 0, tier.ready, keys) if tier.is_slow else len(keys)

    def fetch(self, located: PageRun) -> None:
        """Prefetch pages of a slow tier to memory."""
        self._call(located.tier, None, located.tier.watched.fetch, located.keys)

    def page_seconds(self, located: PageRun) -> float:
        """Return the expected seconds to prefetch a page of a slow tier; 0 if unknown."""
        return float(self._call(located.tier, 0.0, located.tier.watched.page_seconds))

    def get(self, located: PageRun) -> list[NDArray[np.uint8]]:
        """Get the leading pages that are available; the caller must ``release`` them."""
        return self._call(located.tier, [], located.tier.get, located.keys)

    def release(self, located: PageRun) -> None:
        """Release pages returned by ``get``."""
        # A disabled tier is closed, and its pages with it.
        if located.tier in self._tiers:
            self._call(located.tier, None, located.tier.watched.release, located.keys)

    @property
    def is_persistent(self) -> bool:
        """Whether pages of a tier can be found by a later process."""
        return any(hasattr(tier.strategy, "keep") for tier in self._tiers)

    def persist(self, pages: Iterable[tuple[bytes, NDArray[np.uint8]]], seconds: float) -> None:
        """Persist pages in the first persistent tier.

        Args:
            pages: pages of the pool, the most useful first; those of volatile tiers follow.
            seconds: time limit.
        """
        sources: list[Iterable[tuple[bytes, NDArray[np.uint8]]]] = [pages]
        for tier in list(self._tiers):
            if hasattr(tier.strategy, "keep"):
                self._call(tier, None, tier.watched.keep, chain.from_iterable(sources), seconds)
                return
            if hasattr(tier.strategy, "leave"):
                sources.append(self._until_fault(tier, self._call(tier, [], tier.watched.leave)))

    def _until_fault(
        self, tier: Tier, pages: Iterable[tuple[bytes, NDArray[np.uint8]]]
    ) -> Iterator[tuple[bytes, NDArray[np.uint8]]]:
        """Yield the pages that a tier leaves, until it raises."""
        try:
            yield from pages
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            # Not disabled, which would close it: the other tier may still read earlier pages.
            self._count_fault(tier.choice, error)

    def num_pages(self) -> dict[str, int]:
        """Return the number of pages in each tier, by name."""
        return {
            tier.choice.name: int(self._call(tier, 0, tier.watched.__len__))
            for tier in list(self._tiers)
        }

    # Faults

    def _call(self, tier: Tier, otherwise: T, call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401
        try:
            return call(*args)
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            self._disable(tier, error)
            return otherwise

    def fail(self, name: str, reason: str) -> None:
        """Disable a tier because of a fault outside of its calls."""
        for tier in self._tiers:
            if tier.choice.name == name:
                self._disable(tier, StrategyFault(Kind.KV_TIER, reason))
                return

    def _disable(self, tier: Tier, error: BaseException) -> None:
        # One fault per instance: located pages may still refer to a disabled tier.
        if tier not in self._tiers:
            return
        self._tiers = [other for other in self._tiers if other is not tier]
        self.version += 1
        self._count_fault(tier.choice, error)
        self._close(tier.watched)

    def _count_fault(self, choice: StrategyChoice, error: BaseException) -> None:
        if self._record(choice.name, error):
            self._choices = [other for other in self._choices if other is not choice]
        else:
            self._broken = True

    def reopen_failed(self) -> None:
        """Reopen failed tiers, between two steps."""
        if not self._broken:
            return
        # Set again below by tiers that cannot be opened either.
        self._broken = False
        serving = {id(tier.choice): tier for tier in self._tiers}
        tiers = []
        for choice in list(self._choices):
            tier = serving.get(id(choice))
            if tier is None:
                try:
                    tier = self._make(choice, self._open)
                except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
                    self._count_fault(choice, error)
                    continue
            tiers.append(tier)
        self._tiers = tiers
        self.version += 1

    # Swaps by an operator

    @property
    def serving(self) -> list[StrategyChoice]:
        """Choices of the active tiers."""
        return [tier.choice for tier in self._tiers]

    def replace(
        self, choices: Sequence[StrategyChoice], open_: Callable[[StrategyChoice], Any]
    ) -> None:
        """Replace the tiers; those with an unchanged choice keep their pages.

        Args:
            choices: choices of all tiers.
            open_: returns the strategies of new ones.

        Raises:
            Exception: a new one cannot be opened; nothing has changed then.
        """
        stay = {tier.choice.name: tier for tier in self._tiers if tier.choice in choices}
        made: dict[str, Tier] = {}
        try:
            for choice in choices:
                if choice.name not in stay:
                    made[choice.name] = self._make(choice, open_)
        except BaseException:
            for tier in made.values():
                self._close(tier.watched)
            raise
        left = [tier for tier in self._tiers if tier.choice.name not in stay]
        self._tiers = [{**stay, **made}[choice.name] for choice in choices]
        self._choices = [tier.choice for tier in self._tiers]
        self._broken = False
        self.version += 1
        # Closed last, when the chain is consistent again.
        for tier in left:
            self._close(tier.watched)

    def close(self) -> None:
        """Close all tiers, nearest first."""
        for tier in self._tiers:
            self._close(tier.watched)
        self._tiers = []
