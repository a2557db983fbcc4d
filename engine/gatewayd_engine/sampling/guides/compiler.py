"""Compiles grammars in threads beside the steps, with an LRU cache.

Cache and threads are shared by tenant, and entries are private: timing reveals nothing of others.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from gatewayd_engine.fairness.tenant_cache import TenantCache
from gatewayd_engine.process.config import GuideLimits, StrategyChoice
from gatewayd_engine.sampling.guides.compile_queue import CompileQueue
from gatewayd_engine.sampling.guides.reasoning_marks import Boundary
from gatewayd_engine.sampling.guides.reasoning_matcher import Thinking
from gatewayd_engine.sampling.guides.token_bytes import Letters
from gatewayd_hooks.guiding import Grammar, GrammarRefused, GuideSpec, Matcher
from gatewayd_hooks.parsing import Bounds

_AT_ONCE = 2
"""Threads that compile: what runs meanwhile wants the other cores."""
_Key = tuple[str, GuideSpec, Bounds | None]
INVALID = "invalid_grammar"
"""Code of a request whose grammar is refused."""


@dataclass(frozen=True, slots=True, eq=False)
class Guide:
    """A guide that is open.

    Attributes:
        choice: what it was made from.
        strategy: itself.
        users: the requests' grammars that are its own; it is needed while there are any.
    """

    choice: StrategyChoice
    strategy: Any
    users: WeakSet[Compiled] = field(default_factory=WeakSet)


class Compiled:
    """What a request must follow: on its way, there, or refused.

    Attributes:
        spec: what is compiled.
        guide: whose it is.
        bounds: the marks of the reasoning that may stand before it; None for none.
        grammar: None until it is there.
        boundary: finds those marks; with the grammar.
        refusal: code and sentence for the client; None if it is not refused.
        error: what its guide raised, but for refusals.
        seconds: that it took.
        tenant: whose it is.
        began: start of its compilation, seconds of ``time.monotonic``.
        until: when it is given up, seconds of ``time.monotonic``.
        is_settled: whether it is there, or refused, for good.
    """

    __slots__ = (
        "__weakref__",
        "_is_over",
        "_letters",
        "began",
        "boundary",
        "bounds",
        "error",
        "grammar",
        "guide",
        "is_settled",
        "refusal",
        "seconds",
        "spec",
        "tenant",
        "until",
    )

    def __init__(
        self,
        spec: GuideSpec,
        guide: Guide,
        bounds: Bounds | None = None,
        letters: Letters | None = None,
        tenant: str = "",
    ) -> None:
        self.spec = spec
        self.tenant = tenant
        self.guide = guide
        self.bounds = bounds
        self._letters = letters
        self.boundary: Boundary | None = None
        self.grammar: Grammar | None = None
        self.refusal: tuple[str, str] | None = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.began = self.until = 0.0
        self.is_settled = False
        self._is_over = threading.Event()
        guide.users.add(self)

    @property
    def key(self) -> _Key:
        """Equal ones are compiled once."""
        return self.tenant, self.spec, self.bounds

    @property
    def is_over(self) -> bool:
        """Whether its thread has ended, or nobody waits for it."""
        return self._is_over.is_set()

    @property
    def num_bytes(self) -> int:
        """What it takes by now, as far as its guide can tell."""
        grammar = 0 if self.grammar is None else getattr(self.grammar, "num_bytes", 0)
        return len(self.spec.text) + int(grammar)

    def start(self) -> Matcher | Thinking:
        """A matcher at the beginning of an answer."""
        if self.grammar is None:
            raise ValueError("it was not compiled")
        if self.boundary is None:
            return self.grammar.start()
        return Thinking(self.grammar, self.boundary)

    def work(self) -> None:
        """Compile it, in a thread."""
        began = time.perf_counter()
        grammar, refusal, error = None, None, None
        try:
            grammar = self.guide.strategy.compile(self.spec)
            if self.bounds is not None and self._letters is not None:
                self.boundary = Boundary(self.bounds, self._letters)
        except GrammarRefused as refused:
            refusal = (INVALID, str(refused))
        except BaseException as raised:  # noqa: BLE001 - counted where strategies are known
            error = raised
        if not self.is_over:
            self.seconds = time.perf_counter() - began
            self.grammar, self.refusal, self.error = grammar, refusal, error
            self._is_over.set()

    def refuse(self, code: str, sentence: str) -> None:
        """Nobody waits for it any more."""
        self.refusal = (code, sentence)
        self.is_settled = True
        self._is_over.set()


class Compiler:
    """What is compiled, and what was.

    Args:
        limits: on time, and on what is kept.
        letters: of the model's tokens; None where no reasoning stands before a grammar.
    """

    def __init__(self, limits: GuideLimits, letters: Letters | None = None) -> None:
        self._limits = limits
        self._letters = letters
        self._kept: TenantCache[_Key, Compiled] = TenantCache(
            limits.cached, limits.cached_bytes, lambda one: one.num_bytes
        )
        self._alive: WeakValueDictionary[_Key, Compiled] = WeakValueDictionary()
        self._queue: CompileQueue[Compiled] = CompileQueue(_AT_ONCE)
        self._working: list[Compiled] = []

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._working)

    def want(
        self, spec: GuideSpec, guide: Guide, bounds: Bounds | None = None, tenant: str = ""
    ) -> Compiled:
        """The compilation of a tenant's spec, after reasoning or not; queues it if it is new.

        A grammar that no request refers to any more when it is scheduled is not compiled.
        """
        found = self._alive.get((tenant, spec, bounds))
        if found is not None and found.guide is guide:
            if found.is_settled:
                self._keep(found)
            return found
        made = Compiled(spec, guide, bounds, self._letters, tenant)
        self._alive[made.key] = made
        self._queue.add(made)
        self._begin()
        return made

    def review(self) -> list[Compiled]:
        """Begin what waits for a thread, and give up what takes too long.

        Returns:
            Those that came to their end since the last call.
        """
        if not self._working:
            return []
        now = time.monotonic()
        for one in self._working:
            if now >= one.until and not one.is_over:
                seconds = f"{self._limits.compile_seconds:g}"
                one.refuse(INVALID, f"it takes longer to compile than the limit of {seconds} s")
        over = [one for one in self._working if one.is_over]
        if over:
            self._working = [one for one in self._working if not one.is_over]
            for one in over:
                one.is_settled = True
                self._queue.over(one, now - one.began)
                if one.grammar is None:
                    # Another guide, or another day, may know better.
                    self._forget(one)
                elif self._alive.get(one.key) is one:
                    self._keep(one)
            self._begin()
        return over

    def forget(self) -> None:
        """Another guide compiles from now on."""
        self._kept.clear()
        self._alive.clear()

    def _begin(self) -> None:
        while (one := self._queue.next()) is not None:
            one.began = time.monotonic()
            one.until = one.began + self._limits.compile_seconds
            self._working.append(one)
            # One that does not come back keeps neither the steps nor the end waiting.
            threading.Thread(target=one.work, name="guide compile", daemon=True).start()

    def _keep(self, one: Compiled) -> None:
        """As the last that its tenant has asked for. Who goes lives on while requests follow it."""
        self._kept.weigh()  # they grow while they are followed
        self._kept.put(one.tenant, one.key, one)

    def _forget(self, one: Compiled) -> None:
        if self._alive.get(one.key) is one:
            del self._alive[one.key]
            self._kept.drop(one.tenant, one.key)
