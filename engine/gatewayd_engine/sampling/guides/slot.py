"""The guide of an engine: opened, asked to compile, replaced while requests follow its grammars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatewayd_engine.process.config import GuideLimits, StrategyChoice
from gatewayd_engine.process.plugin_faults import STRATEGY_ERROR
from gatewayd_engine.process.plugin_opener import close
from gatewayd_engine.sampling.guides.compiler import INVALID, Compiled, Compiler, Guide
from gatewayd_engine.sampling.guides.matchers import Filler
from gatewayd_engine.sampling.guides.token_bytes import Letters
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.parsing import Bounds
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind

_KIND = Kind.GUIDE


class Guides:
    """The guide that compiles now, and those whose grammars are still followed.

    Args:
        choice: what was configured; None for no guide.
        open_: opens a guide; raises whatever is wrong with it.
        record: counts a fault of the named one; whether it is to be quarantined now.
        ledger: times their calls.
        limits: on grammars.
        resources: of the engine.
        hang_seconds: that masks may take.

    Attributes:
        filler: asks the matchers for masks.
    """

    def __init__(
        self,
        choice: StrategyChoice | None,
        open_: Callable[[StrategyChoice], Any],
        record: Callable[[str, BaseException], bool],
        ledger: Ledger,
        limits: GuideLimits,
        resources: EngineResources,
        hang_seconds: float,
    ) -> None:
        self._record = record
        self._ledger = ledger
        self._limits = limits
        ends = resources.eos_token_ids
        letters = Letters(resources.folder, resources.vocab_size, ends)
        self._compiler = Compiler(limits, letters)
        self._now = None if choice is None else Guide(choice, open_(choice))
        self._left: list[Guide] = []
        self._is_quarantined = False
        self.filler = Filler(
            -(-resources.vocab_size // 32),
            ends,
            self._note_fault,
            self._note_call,
            self._watched,
            limits,
            hang_seconds,
        )

    @property
    def choice(self) -> StrategyChoice | None:
        """What the guide that compiles now was made from; None if there is none in service."""
        return None if self._now is None or self._is_quarantined else self._now.choice

    def want(
        self, spec: GuideSpec, behind: tuple[str, str] | None = None, tenant: str = ""
    ) -> Compiled:
        """What comes of a request's grammar; begins to compile it if its tenant has not.

        Args:
            spec: the grammar.
            behind: the marks of the reasoning behind which the answer follows it, as ``Bounds``.
            tenant: who asks.
        """
        guide = self._now
        if guide is None or self._is_quarantined:
            none = Compiled(spec, guide or Guide(StrategyChoice("none"), None))
            if guide is None:
                none.refuse(INVALID, "this engine has no guide; ask for free text")
            else:
                sentence = f"the guide {guide.choice.name} is out of service; ask for free text"
                none.refuse(STRATEGY_ERROR, sentence)
            return none
        if len(spec.text) > self._limits.text_bytes:
            none = Compiled(spec, guide)
            limit = self._limits.text_bytes
            none.refuse(INVALID, f"it has {len(spec.text)} characters; the maximum is {limit}")
            return none
        return self._compiler.want(spec, guide, behind and Bounds(*behind), tenant)

    @property
    def is_busy(self) -> bool:
        """Whether anything is being compiled."""
        return self._compiler.is_busy

    def review(self) -> None:
        """Look at what has been compiled since the last time."""
        if not self._compiler.is_busy:
            return
        for one in self._compiler.review():
            self._note_call(one.guide, "compile", one.seconds)
            if one.error is not None:
                name = one.guide.choice.name
                one.refuse(STRATEGY_ERROR, f"the guide {name} failed; ask for free text")
                self._note_fault(one.guide, one.error)

    def replace(self, choice: StrategyChoice | None, strategy: Any) -> None:  # noqa: ANN401
        """Another guide compiles from now on; who follows a grammar keeps it."""
        if self._now is not None:
            self._left.append(self._now)
        self._now = None if choice is None else Guide(choice, strategy)
        self._is_quarantined = False
        self._compiler.forget()
        self.close_left()

    def quarantine(self) -> None:
        """Put the guide out of service."""
        self._is_quarantined = True

    def close_left(self) -> None:
        """Close those that left and whose grammars nobody follows any more."""
        for guide in [guide for guide in self._left if not guide.users]:
            self._left.remove(guide)
            close(_KIND, guide.strategy)

    def close(self) -> None:
        """Close them all."""
        self.filler.close()
        for guide in (*self._left, *([self._now] if self._now else [])):
            close(_KIND, guide.strategy)

    def _note_call(self, guide: Guide, method: str, seconds: float) -> None:
        self._ledger.note(_KIND, guide.choice.name, method, seconds)

    def _watched(self, guide: Guide, method: str, call: Callable[[], None]) -> None:
        # Sequences have limits of their own on what they take.
        self._ledger.timed(_KIND, guide.choice.name, method, call, has_budget=False)()

    def _note_fault(self, guide: Guide, error: BaseException) -> None:
        if self._record(guide.choice.name, error) and guide is self._now:
            self._is_quarantined = True
