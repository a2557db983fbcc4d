"""Replaces strategies, and changes limits, between two steps of a working engine."""

from __future__ import annotations

from collections import deque
from typing import Any

from gatewayd_engine.process.config import FIXED_KINDS, StrategyChoice
from gatewayd_engine.process.messages import SetLimits, Swapped, SwapStrategy
from gatewayd_engine.process.plugin_faults import StrategyFault, culprit
from gatewayd_engine.process.plugin_opener import Opening
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.strategies.active import DEFAULTS, Strategies
from gatewayd_engine.strategies.recovery import Recovery
from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.strategy import Kind


class EngineSwapRefused(Exception):
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
        self._asked: deque[SwapStrategy] = deque()
        self._opening: Opening | None = None

    def limit(self, limits: SetLimits) -> None:
        """Change limits; buffers were made for those of the start, which are the most."""
        self._view.token_budget = max(1, min(limits.max_batch_tokens, self._most_tokens))
        self._strategies.ledger.budget = limits.strategy_budget_ms / 1000

    @property
    def is_busy(self) -> bool:
        """Whether a swap is under way."""
        return bool(self._asked)

    @property
    def holds(self) -> bool:
        """Whether no step is to be made before a swap is."""
        return any(command.holds for command in self._asked)

    def begin(self, command: SwapStrategy) -> None:
        """Begin to fill a slot with another strategy; ``settle`` ends it."""
        self._asked.append(command)

    def settle(self) -> list[Swapped]:
        """Make the swaps whose strategies are open, in the order in which they were asked for.

        Returns:
            What became of each that is over.
        """
        answers: list[Swapped] = []
        while self._asked:
            command = self._asked[0]
            try:
                if self._opening is None:
                    self._opening = self._open(command)
                if not self._opening.is_over:
                    break
                has_state = self._swap(command, self._opening)
                answer = Swapped(command.number, has_state=has_state)
            except EngineSwapRefused as refusal:
                answer = Swapped(command.number, error=str(refusal))
            answers.append(answer)
            self._asked.popleft()
            self._opening = None
        return answers

    def close(self, seconds: float) -> None:
        """Make no swap any more.

        Args:
            seconds: to wait for a strategy that is being opened.
        """
        self._asked.clear()
        if self._opening is not None:
            self._opening.give_up()
            self._opening.wait(seconds)
            self._opening = None

    def _open(self, command: SwapStrategy) -> Opening:
        """Begin to open what is new.

        Raises:
            SwapRefused: the slot cannot be filled so.
        """
        strategies = self._strategies
        kind = next((kind for kind in Kind if kind.value == command.kind), None)
        in_use: list[StrategyChoice] = []
        if kind is Kind.LOGITS_PROCESSOR:
            in_use = strategies.chain.sound
        elif kind is Kind.KV_TIER:
            in_use = strategies.tiers.serving
        elif kind is Kind.GUIDE:
            pass
        elif kind in FIXED_KINDS:
            raise EngineSwapRefused(
                f"{kind} is fixed while an engine runs: what it holds is in its form"
            )
        elif kind is Kind.KV_COMPRESSION and command.choices and not strategies.can_compress:
            raise EngineSwapRefused(f"{kind} works on a CPU only, so far")
        elif kind is None or kind not in DEFAULTS:
            raise EngineSwapRefused(f"an engine has no {command.kind}")
        elif not command.choices and DEFAULTS[kind] is not None:
            raise EngineSwapRefused(f"an engine needs a {kind}")
        new = [choice for choice in command.choices if choice not in in_use]
        return strategies.opener.begin(kind, new)

    def _swap(self, command: SwapStrategy, opening: Opening) -> bool:
        """Fill a slot.

        Returns:
            Whether it got the state of the one before.

        Raises:
            SwapRefused: it cannot be loaded or opened, or cannot learn what the engine knows; what
                was there before goes on.
            Exception: the engine is broken.
        """
        kind, strategies = Kind(command.kind), self._strategies
        choice = command.choices[0] if command.choices else None
        new, has_state = None, False

        def take(choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
            found = opening.take(choice)
            # What was in use when the opening began may have failed since.
            return strategies.open(kind, choice) if found is None else found

        try:
            for name, seconds in opening.settle().items():
                strategies.ledger.note(kind, name, "open", seconds)
            if kind is Kind.LOGITS_PROCESSOR:
                strategies.put_chain(command.choices, take)
            elif kind is Kind.KV_TIER:
                strategies.tiers.replace(command.choices, take)
            elif kind is Kind.GUIDE:
                strategies.put_guide(choice, None if choice is None else take(choice))
            else:
                new = None if choice is None else take(choice)
                has_state = self._hand_over(kind, choice, new)
        except Exception as error:
            raise EngineSwapRefused(str(error) or type(error).__name__) from error
        finally:
            opening.close_rest()
        if kind is Kind.KV_TIER:
            self._placement.outside.follow_tiers()
        elif kind not in (Kind.LOGITS_PROCESSOR, Kind.GUIDE):
            self._fill(kind, choice, new, has_state)
        return has_state

    def _fill(
        self,
        kind: Kind,
        choice: StrategyChoice | None,
        new: Any,  # noqa: ANN401 - any kind
        has_state: bool,
    ) -> None:
        strategies = self._strategies
        before = strategies.chosen(kind)
        old = strategies.put(kind, choice, new)
        try:
            if has_state:
                self._placement.adopt()
            else:
                self._placement.rebuild(kind)
        except Exception as error:
            # What is raised outside of its calls came with it too.
            found = culprit(error, strategies.bound) or kind
            # Nobody knows what it did: the default serves one step, then the one before again.
            self._recovery.answer(found, error)
            if found is kind:
                strategies.choose_again(kind, before)
                raise EngineSwapRefused(f"it cannot take over: {error}") from error
        finally:
            strategies.close_one(kind, old)

    def _hand_over(self, kind: Kind, choice: StrategyChoice | None, strategy: Any) -> bool:  # noqa: ANN401
        """Give a new strategy what the old one knows; whether it took it. Closed if it raises."""
        old = self._strategies.watched.get(kind)
        if old is None or choice is None:
            return False
        new = self._strategies.ledger.watch(kind, choice.name, strategy)
        try:
            if not hand_over(old, new):
                return False
            if kind is Kind.EVICTION:
                # What is watched has the methods of the strategy, but is not called by `len`.
                has, had = new.__len__(), old.__len__()
                if has != had:
                    raise StrategyFault(kind, f"took {has} of {had} pages over")
        except BaseException:
            self._strategies.close_one(kind, new)
            raise
        return True
