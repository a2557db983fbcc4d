"""Hot swap of strategies and limits between two steps of a running engine."""

from __future__ import annotations

from collections import deque
from typing import Any

from gatewayd_engine.process.config import FIXED_KINDS, StrategyChoice
from gatewayd_engine.process.messages import SetLimits, Swapped, SwapStrategy
from gatewayd_engine.process.plugin_faults import StrategyFault
from gatewayd_engine.process.plugin_opener import Opening
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.strategies.active import DEFAULTS, Strategies
from gatewayd_engine.strategies.recovery import Recovery
from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.strategy import Kind


class EngineSwapRefused(Exception):
    """The new strategy cannot be used; the current one stays in place."""


class HotSwaps:
    """Replacement of strategies and changes of limits while sequences run.

    Args:
        strategies: the active strategies.
        placement: passes the engine's state to a strategy that takes over.
        recovery: handles faults of strategies that cannot take over.
        queue: the scheduler view with the token budget of a step.
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
        """Change limits; the initial ones are upper bounds, because buffers were sized for them."""
        self._view.token_budget = max(1, min(limits.max_batch_tokens, self._most_tokens))
        self._strategies.plugin_times.budget = limits.strategy_budget_ms / 1000

    @property
    def is_busy(self) -> bool:
        """Whether a swap is under way."""
        return bool(self._asked)

    @property
    def holds(self) -> bool:
        """Whether steps must wait for a pending swap."""
        return any(command.holds for command in self._asked)

    def start(self, command: SwapStrategy) -> None:
        """Request a swap; ``complete_ready`` finishes it once the strategy is open."""
        self._asked.append(command)

    def complete_ready(self) -> list[Swapped]:
        """Carry out the requested swaps whose strategies are open, in the order of the requests.

        Returns:
            The result of each swap that has completed or failed.
        """
        answers: list[Swapped] = []
        while self._asked:
            # Strictly in order, one opening at a time: a later swap of the same kind must win.
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
        """Cancel all pending swaps.

        Args:
            seconds: to wait for a strategy that is being opened.
        """
        self._asked.clear()
        if self._opening is not None:
            self._opening.cancel()
            self._opening.wait(seconds)
            self._opening = None

    def _open(self, command: SwapStrategy) -> Opening:
        """Start to open the new strategies of a swap.

        Raises:
            EngineSwapRefused: this kind cannot be swapped, or not to these choices.
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
                f"{kind} is fixed while an engine runs: stored data depends on it"
            )
        elif kind is Kind.KV_COMPRESSION and command.choices and not strategies.can_compress:
            raise EngineSwapRefused(f"{kind} is supported on CPUs only")
        elif kind is None or kind not in DEFAULTS:
            raise EngineSwapRefused(f"an engine has no {command.kind}")
        elif not command.choices and DEFAULTS[kind] is not None:
            raise EngineSwapRefused(f"an engine needs a {kind}")
        new = [choice for choice in command.choices if choice not in in_use]
        return strategies.opener.start(kind, new)

    def _swap(self, command: SwapStrategy, opening: Opening) -> bool:
        """Replace the strategy of a kind.

        Returns:
            Whether the new strategy got the state of the old one.

        Raises:
            EngineSwapRefused: it cannot be loaded or opened, or cannot take over the engine's
                state; the old strategy stays in place.
            Exception: the engine is broken.
        """
        kind, strategies = Kind(command.kind), self._strategies
        choice = command.choices[0] if command.choices else None
        new, has_state = None, False

        def opened(choice: StrategyChoice) -> Any:  # noqa: ANN401 - any kind
            found = opening.pop(choice)
            # A strategy that was in use when the opening started may have failed since.
            return strategies.open(kind, choice) if found is None else found

        try:
            # The thread that opened them cannot record this: the accounts are not thread-safe.
            for name, seconds in opening.result().items():
                strategies.plugin_times.record_call(kind, name, "open", seconds)
            if kind is Kind.LOGITS_PROCESSOR:
                strategies.replace_chain(command.choices, opened)
            elif kind is Kind.KV_TIER:
                strategies.tiers.replace(command.choices, opened)
            elif kind is Kind.GUIDE:
                strategies.replace_guide(choice, None if choice is None else opened(choice))
            else:
                new = None if choice is None else opened(choice)
                has_state = self._hand_over(kind, choice, new)
        except Exception as error:
            raise EngineSwapRefused(str(error) or type(error).__name__) from error
        finally:
            # Closes what the swap did not use, such as the rest of a chain after an error.
            opening.close_rest()
        if kind is Kind.KV_TIER:
            self._placement.offload.update_tiers()
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
        before = strategies.configured(kind)
        old = strategies.install(kind, choice, new)
        try:
            if has_state:
                self._placement.adopt()
            else:
                self._placement.rebuild(kind)
        except Exception as error:
            # If another strategy raised while it was filled, the new one stays. Otherwise its state
            # is undefined: the default serves one step, then the old strategy again.
            if self._recovery.fall_back_filling(kind, error) is kind:
                strategies.schedule_retry(kind, before)
                raise EngineSwapRefused(f"it cannot take over: {error}") from error
        finally:
            strategies.close_one(kind, old)

    def _hand_over(self, kind: Kind, choice: StrategyChoice | None, strategy: Any) -> bool:  # noqa: ANN401
        """Hand the old strategy's state over; return whether the new one accepted it.

        The new strategy is closed if it raises.
        """
        old = self._strategies.watched.get(kind)
        if old is None or choice is None:
            return False
        new = self._strategies.plugin_times.watch(kind, choice.name, strategy)
        try:
            if not hand_over(old, new):
                return False
            if kind is Kind.EVICTION:
                # The watching proxy has the methods of the strategy, but `len` does not call them.
                has, had = new.__len__(), old.__len__()
                if has != had:
                    raise StrategyFault(kind, f"took over {has} of {had} pages")
        except BaseException:
            self._strategies.close_one(kind, new)
            raise
        return True
