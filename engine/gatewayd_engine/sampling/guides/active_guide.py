"""Slot of an engine's guide plugin, which can be replaced while requests use its grammars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatewayd_engine.process.config import GuideLimits, StrategyChoice
from gatewayd_engine.process.plugin_faults import STRATEGY_ERROR
from gatewayd_engine.process.plugin_opener import close
from gatewayd_engine.sampling.guides.compiler import (
    INVALID,
    CompiledGrammar,
    GrammarCompiler,
    Guide,
)
from gatewayd_engine.sampling.guides.matchers import GuideMatchers
from gatewayd_engine.sampling.guides.token_bytes import TokenBytes
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.parsing import Bounds
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind

_KIND = Kind.GUIDE


class ActiveGuide:
    """The current guide, and replaced ones whose grammars are still in use.

    Args:
        choice: configured guide; None for no guide.
        open_: opens a guide; raises if that fails.
        record: records a fault of a guide by name; returns whether to quarantine it now.
        plugin_times: times calls of guides.
        limits: limits on grammars.
        resources: resources of the engine.
        hang_seconds: time after which computing masks counts as a hang.

    Attributes:
        matchers: grammar matchers of sequences, and their masks.
    """

    def __init__(
        self,
        choice: StrategyChoice | None,
        open_: Callable[[StrategyChoice], Any],
        record: Callable[[str, BaseException], bool],
        plugin_times: PluginTimes,
        limits: GuideLimits,
        resources: EngineResources,
        hang_seconds: float,
    ) -> None:
        self._record = record
        self._plugin_times = plugin_times
        self._limits = limits
        ends = resources.eos_token_ids
        token_bytes = TokenBytes(resources.folder, resources.vocab_size, ends)
        self._compiler = GrammarCompiler(limits, token_bytes)
        self._now = None if choice is None else Guide(choice, open_(choice))
        self._replaced: list[Guide] = []
        self._is_quarantined = False
        self.matchers = GuideMatchers(
            -(-resources.vocab_size // 32),
            ends,
            self._record_fault,
            self._record_call,
            self._watched,
            limits,
            hang_seconds,
        )

    @property
    def choice(self) -> StrategyChoice | None:
        """Configuration of the current guide; None if there is none in service."""
        return None if self._now is None or self._is_quarantined else self._now.choice

    def request(
        self, spec: GuideSpec, behind: tuple[str, str] | None = None, tenant: str = ""
    ) -> CompiledGrammar:
        """Return the compilation of a request's grammar, starting it unless the tenant has it.

        Args:
            spec: grammar of the request.
            behind: markers of the reasoning after which the grammar applies, as ``Bounds``.
            tenant: tenant of the request.
        """
        guide = self._now
        if guide is None or self._is_quarantined:
            none = CompiledGrammar(spec, guide or Guide(StrategyChoice("none"), None))
            if guide is None:
                none.refuse(INVALID, "this engine has no guide; ask for free text")
            else:
                sentence = f"the guide {guide.choice.name} is out of service; ask for free text"
                none.refuse(STRATEGY_ERROR, sentence)
            return none
        if len(spec.text) > self._limits.text_bytes:
            none = CompiledGrammar(spec, guide)
            limit = self._limits.text_bytes
            none.refuse(INVALID, f"it has {len(spec.text)} characters; the maximum is {limit}")
            return none
        return self._compiler.request(spec, guide, behind and Bounds(*behind), tenant)

    @property
    def is_busy(self) -> bool:
        """Whether any grammar is being compiled."""
        return self._compiler.is_busy

    def review(self) -> None:
        """Process compilations that have finished since the last call."""
        if not self._compiler.is_busy:
            return
        for one in self._compiler.review():
            self._record_call(one.guide, "compile", one.seconds)
            if one.error is not None:
                # The guide's fault, not the client's: another code than for an invalid grammar.
                name = one.guide.choice.name
                one.refuse(STRATEGY_ERROR, f"the guide {name} failed; ask for free text")
                self._record_fault(one.guide, one.error)

    def replace(self, choice: StrategyChoice | None, strategy: Any) -> None:  # noqa: ANN401
        """Replace the guide; running requests continue with their grammars."""
        if self._now is not None:
            self._replaced.append(self._now)
        self._now = None if choice is None else Guide(choice, strategy)
        self._is_quarantined = False
        # Sequences that follow its grammars keep them, and the guide, alive.
        self._compiler.clear()
        self.close_replaced()

    def quarantine(self) -> None:
        """Quarantine the guide."""
        self._is_quarantined = True

    def close_replaced(self) -> None:
        """Close replaced guides whose grammars are no longer in use."""
        for guide in [guide for guide in self._replaced if not guide.users]:
            self._replaced.remove(guide)
            close(_KIND, guide.strategy)

    def close(self) -> None:
        """Close all guides."""
        self.matchers.close()
        for guide in (*self._replaced, *([self._now] if self._now else [])):
            close(_KIND, guide.strategy)

    def _record_call(self, guide: Guide, method: str, seconds: float) -> None:
        self._plugin_times.record_call(_KIND, guide.choice.name, method, seconds)

    def _watched(self, guide: Guide, method: str, call: Callable[[], None]) -> None:
        # The time of matchers is limited per sequence; see ``cost_limits``.
        self._plugin_times.timed(_KIND, guide.choice.name, method, call, has_budget=False)()

    def _record_fault(self, guide: Guide, error: BaseException) -> None:
        if self._record(guide.choice.name, error) and guide is self._now:
            self._is_quarantined = True
