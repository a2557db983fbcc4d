"""Replaces strategies, and changes limits, between two steps of a working engine."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.config import StrategyChoice
from gatewayd_engine.faults import StrategyFault, culprit
from gatewayd_engine.messages import SetLimits, Swap
from gatewayd_engine.placement import Placement
from gatewayd_engine.queue import Queue
from gatewayd_engine.recovery import Recovery
from gatewayd_engine.strategies import DEFAULTS, Link, Strategies
from gatewayd_hooks.handover import hand_over
from gatewayd_hooks.strategy import Kind


class SwapRefused(Exception):
    """The strategy cannot be used; the one before goes on."""


class Swaps:
    """What may be changed while sequences run.

    Args:
        strategies: what decides.
        placement: lets a strategy that takes over learn what the engine knows.
        recovery: answers the faults of one that cannot.
        queue: has the token budget of a step.
    """

    def __init__(
        self, strategies: Strategies, placement: Placement, recovery: Recovery, queue: Queue
    ) -> None:
        self._strategies = strategies
        self._placement = placement
        self._recovery = recovery
        self._view = queue.view
        self._most_tokens = queue.view.token_budget

    def limit(self, limits: SetLimits) -> None:
        """Change limits; buffers were made for those of the start, which are the most."""
        self._view.token_budget = max(1, min(limits.max_batch_tokens, self._most_tokens))
        self._strategies.ledger.budget = limits.strategy_budget_ms / 1000

    def swap(self, command: Swap) -> bool:
        """Fill a slot with another strategy.

        Returns:
            Whether it got the state of the one before.

        Raises:
            SwapRefused: it cannot be loaded or opened, or cannot learn what the engine knows.
        """
        kind = next((kind for kind in Kind if kind.value == command.kind), None)
        try:
            if kind is Kind.LOGITS_PROCESSOR:
                self._swap_chain(command.choices)
                return False
            if kind is Kind.KV_TIER:
                self._strategies.tiers.replace(command.choices)
                self._placement.outside.follow_tiers()
                return False
            if kind not in DEFAULTS or kind is None:
                raise SwapRefused(f"an engine has no {command.kind}")
            choice = command.choices[0] if command.choices else None
            if choice is None and DEFAULTS[kind] is not None:
                raise SwapRefused(f"an engine needs a {kind}")
            return self._swap(kind, choice)
        except SwapRefused:
            raise
        except Exception as error:
            raise SwapRefused(str(error) or type(error).__name__) from error

    def _swap(self, kind: Kind, choice: StrategyChoice | None) -> bool:
        strategies = self._strategies
        before = strategies.chosen(kind)
        new = strategies.open(kind, choice)
        watched = None if choice is None else strategies.ledger.watch(kind, choice.name, new)
        try:
            has_state = self._hand_over(kind, watched)
        except BaseException:
            strategies.close_one(kind, watched)
            raise
        old = strategies.put(kind, choice, new)
        try:
            if has_state:
                self._placement.adopt()
            else:
                self._placement.rebuild(kind)
        except Exception as error:
            found = culprit(error, strategies.bound)
            if found is None:
                raise
            # Nobody knows what it did: the default serves one step, then the one before again.
            self._recovery.answer(found, error)
            if found is kind:
                strategies.choose_again(kind, before)
                raise SwapRefused(f"it cannot take over: {error}") from error
        finally:
            strategies.close_one(kind, old)
        return has_state

    def _hand_over(self, kind: Kind, new: Any) -> bool:  # noqa: ANN401 - any kind
        old = self._strategies.watched.get(kind)
        if old is None or new is None or not hand_over(old, new):
            return False
        if kind is Kind.EVICTION:
            # What is watched has the methods of the strategy, but not its place in the language.
            has, had = new.__len__(), old.__len__()
            if has != had:
                raise StrategyFault(kind, f"took {has} of {had} pages over")
        return True

    def _swap_chain(self, choices: list[StrategyChoice]) -> None:
        """Another chain; processors that stay as they were keep what they know."""
        strategies = self._strategies
        stay = {link.choice.name: link for link in strategies.sound_chain()}
        chain: list[Link] = []
        opened: list[Link] = []
        try:
            for choice in choices:
                link = stay.get(choice.name)
                if link is None or link.choice != choice:
                    link = strategies.link(choice)
                    opened.append(link)
                chain.append(link)
        except BaseException:
            for link in opened:
                strategies.close_one(Kind.LOGITS_PROCESSOR, link.watched)
            raise
        strategies.put_chain(chain)
