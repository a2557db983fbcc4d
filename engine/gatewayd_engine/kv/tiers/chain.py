"""The KV tiers of an engine, in a row: asked and told, and each behind a fence.

A tier only ever saves work. One that raises or answers nonsense is left out at once and nothing is
lost but its pages; a fresh one comes back before the next step, until it has had its last fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.tiers.tier import Located, Tier
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.fence import StrategyFault
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.strategy import Kind

T = TypeVar("T")


class TierChain:
    """Tiers, nearest first.

    Args:
        choices: what was configured and is not quarantined.
        open_: opens a strategy; raises whatever is wrong with it.
        close: closes a strategy, watched.
        record: counts a fault under a name; whether it was the last one.
        ledger: times their calls.
        page_bytes: of a page.

    Attributes:
        version: changes whenever a page may have come or gone.
    """

    def __init__(
        self,
        choices: Sequence[StrategyChoice],
        open_: Callable[[StrategyChoice], Any],
        close: Callable[[Any], None],
        record: Callable[[str, BaseException], bool],
        ledger: Ledger,
        page_bytes: int,
    ) -> None:
        self._open = open_
        self._ledger = ledger
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
        watched = self._ledger.watch(Kind.KV_TIER, choice.name, strategy)
        return Tier(choice, strategy, watched, self._page_bytes, is_slow)

    @property
    def names(self) -> list[str]:
        """Names of those that serve."""
        return [tier.choice.name for tier in self._tiers]

    # Pages

    def locate(self, keys: list[bytes]) -> list[Located]:
        """Which tiers have the leading pages; the nearest of several."""
        found: list[Located] = []
        at = 0
        while at < len(keys):
            for tier in self._tiers:
                count = self._ask(tier, 0, tier.find, keys[at:])
                if count:
                    found.append(Located(tier, keys[at : at + count]))
                    at += count
                    break
            else:
                break
        return found

    def put(self, key: bytes, page: NDArray[np.uint8]) -> None:
        """Give a page to the first tier, and what it gives up to the next."""
        self.version += 1
        self._put(list(self._tiers), key, page)

    def _put(self, tiers: list[Tier], key: bytes, page: NDArray[np.uint8]) -> None:
        if not tiers:
            return
        tier = tiers[0]
        nothing: list[tuple[bytes, NDArray[np.uint8]]] = []
        for other, left in self._ask(tier, nothing, tier.put, key, page):
            self._put(tiers[1:], other, left)

    def ready(self, located: Located) -> int:
        """How many of the pages can be had now."""
        tier, keys = located.tier, located.keys
        return self._ask(tier, 0, tier.ready, keys) if tier.is_slow else len(keys)

    def fetch(self, located: Located) -> None:
        """Have pages of a slow tier brought to memory."""
        self._ask(located.tier, None, located.tier.watched.fetch, located.keys)

    def page_seconds(self, located: Located) -> float:
        """What bringing a page of a slow tier to memory takes; 0 if nobody knows."""
        return float(self._ask(located.tier, 0.0, located.tier.watched.page_seconds))

    def get(self, located: Located) -> list[NDArray[np.uint8]]:
        """The leading pages that are at hand; to be released."""
        return self._ask(located.tier, [], located.tier.get, located.keys)

    def release(self, located: Located) -> None:
        """Pages that ``get`` gave are not needed any more."""
        if located.tier in self._tiers:
            self._ask(located.tier, None, located.tier.watched.release, located.keys)

    @property
    def outlives(self) -> bool:
        """Whether pages of a tier are found again by a later process."""
        return any(hasattr(tier.strategy, "keep") for tier in self._tiers)

    def keep(self, pages: Iterable[tuple[bytes, NDArray[np.uint8]]], seconds: float) -> None:
        """Let the first tier that outlives the process keep what would end with it.

        Args:
            pages: of the pool, the most useful first; those of nearer tiers follow.
            seconds: for which it may wait.
        """
        ending: list[Iterable[tuple[bytes, NDArray[np.uint8]]]] = [pages]
        for tier in list(self._tiers):
            if hasattr(tier.strategy, "keep"):
                self._ask(tier, None, tier.watched.keep, chain.from_iterable(ending), seconds)
                return
            if hasattr(tier.strategy, "leave"):
                ending.append(self._ask(tier, [], tier.watched.leave))

    def num_pages(self) -> dict[str, int]:
        """Pages that each has, by its name."""
        return {
            tier.choice.name: int(self._ask(tier, 0, tier.watched.__len__))
            for tier in list(self._tiers)
        }

    # Faults

    def _ask(self, tier: Tier, otherwise: T, call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401
        try:
            return call(*args)
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            self._leave_out(tier, error)
            return otherwise

    def fail(self, name: str, reason: str) -> None:
        """A tier has failed in another way."""
        for tier in self._tiers:
            if tier.choice.name == name:
                self._leave_out(tier, StrategyFault(Kind.KV_TIER, reason))
                return

    def _leave_out(self, tier: Tier, error: BaseException) -> None:
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

    def renew(self) -> None:
        """Let fresh ones take the places of those that failed, between two steps."""
        if not self._broken:
            return
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

    # Swaps, by whoever operates the engine

    @property
    def serving(self) -> list[StrategyChoice]:
        """What those were made from that serve."""
        return [tier.choice for tier in self._tiers]

    def replace(
        self, choices: Sequence[StrategyChoice], open_: Callable[[StrategyChoice], Any]
    ) -> None:
        """Other tiers from now on; those that stay as they were keep their pages.

        Args:
            choices: all of them.
            open_: gives those that are new.

        Raises:
            Exception: what is wrong with a new one; nothing has changed then.
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
        for tier in left:
            self._close(tier.watched)

    def close(self) -> None:
        """Close them, nearest first."""
        for tier in self._tiers:
            self._close(tier.watched)
        self._tiers = []
