"""Grammar compilation in threads concurrent with the steps, with an LRU cache.

Cache and threads are divided between tenants, and entries are private: timing reveals nothing about
other tenants.
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
from gatewayd_engine.sampling.guides.reasoning_marks import ReasoningBoundary
from gatewayd_engine.sampling.guides.reasoning_matcher import ReasoningMatcher
from gatewayd_engine.sampling.guides.token_bytes import TokenBytes
from gatewayd_hooks.guiding import Grammar, GrammarRefused, GuideSpec, Matcher
from gatewayd_hooks.parsing import Bounds

_AT_ONCE = 2
"""Compiler threads: the other cores are left to the engine's steps."""
_Key = tuple[str, GuideSpec, Bounds | None]
INVALID = "invalid_grammar"
"""Code of a request whose grammar is refused."""


@dataclass(frozen=True, slots=True, eq=False)
class Guide:
    """An open guide.

    Attributes:
        choice: configuration of the guide.
        strategy: the guide plugin.
        users: compiled grammars of the guide, which must stay open while there are any.
    """

    choice: StrategyChoice
    strategy: Any
    users: WeakSet[CompiledGrammar] = field(default_factory=WeakSet)


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class CompiledGrammar:
    """Compilation of a request's grammar: pending, complete, or refused.

    Attributes:
        spec: specification of the grammar.
        guide: guide that compiles it.
        bounds: markers of the reasoning that may precede the answer; None for none.
        grammar: compiled grammar; None until complete.
        boundary: finder of those markers; set with the grammar.
        refusal: code and message for the client; None if it is not refused.
        error: exception of the guide other than a refusal.
        seconds: duration of the compilation.
        tenant: tenant of the request.
        began: start of its compilation, seconds of ``time.monotonic``.
        until: deadline of its compilation, seconds of ``time.monotonic``.
        is_settled: whether its outcome, complete or refused, is final.
    """

    spec: GuideSpec
    guide: Guide
    bounds: Bounds | None = None
    _token_bytes: TokenBytes | None = None
    tenant: str = ""
    boundary: ReasoningBoundary | None = None
    grammar: Grammar | None = None
    refusal: tuple[str, str] | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    began: float = 0.0
    until: float = 0.0
    is_settled: bool = False
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.guide.users.add(self)

    @property
    def key(self) -> _Key:
        """Key of the cache: grammars with equal keys are compiled once."""
        return self.tenant, self.spec, self.bounds

    @property
    def is_over(self) -> bool:
        """Whether its thread has ended, or the compilation was abandoned."""
        return self._is_over.is_set()

    @property
    def num_bytes(self) -> int:
        """Current memory in bytes, as far as its guide reports it."""
        grammar = 0 if self.grammar is None else getattr(self.grammar, "num_bytes", 0)
        return len(self.spec.text) + int(grammar)

    def start(self) -> Matcher | ReasoningMatcher:
        """Create a matcher at the beginning of an output."""
        if self.grammar is None:
            raise ValueError("the grammar is not compiled")
        if self.boundary is None:
            return self.grammar.start()
        return ReasoningMatcher(self.grammar, self.boundary)

    def compile(self) -> None:
        """Compile the grammar, in the current thread."""
        began = time.perf_counter()
        grammar, refusal, error = None, None, None
        try:
            grammar = self.guide.strategy.compile(self.spec)
            if self.bounds is not None and self._token_bytes is not None:
                self.boundary = ReasoningBoundary(self.bounds, self._token_bytes)
        except GrammarRefused as refused:
            refusal = (INVALID, str(refused))
        except BaseException as raised:  # noqa: BLE001 - recorded as a fault by ``ActiveGuide``
            error = raised
        # Abandoned at the time limit: the client has its answer, and the late result is discarded.
        if not self.is_over:
            self.seconds = time.perf_counter() - began
            self.grammar, self.refusal, self.error = grammar, refusal, error
            self._is_over.set()

    def refuse(self, code: str, sentence: str) -> None:
        """Refuse the grammar, abandoning its compilation."""
        self.refusal = (code, sentence)
        self.is_settled = True
        self._is_over.set()


class GrammarCompiler:
    """Compilation queue and cache of grammars.

    Args:
        limits: limits on compilation time and cache size.
        token_bytes: bytes of the model's tokens; None if no grammar applies after reasoning.
    """

    def __init__(self, limits: GuideLimits, token_bytes: TokenBytes | None = None) -> None:
        self._limits = limits
        self._token_bytes = token_bytes
        self._cached: TenantCache[_Key, CompiledGrammar] = TenantCache(
            limits.cached, limits.cached_bytes, lambda one: one.num_bytes
        )
        # Grammars that are in use, cached or not, so that equal requests share one.
        self._alive: WeakValueDictionary[_Key, CompiledGrammar] = WeakValueDictionary()
        self._queue: CompileQueue[CompiledGrammar] = CompileQueue(_AT_ONCE)
        self._working: list[CompiledGrammar] = []

    @property
    def is_busy(self) -> bool:
        """Whether any grammar is being compiled."""
        return bool(self._working)

    def request(
        self, spec: GuideSpec, guide: Guide, bounds: Bounds | None = None, tenant: str = ""
    ) -> CompiledGrammar:
        """Return the compilation of a tenant's grammar, queueing it if it is new.

        A grammar that no request references any more when it is scheduled is not compiled.
        """
        found = self._alive.get((tenant, spec, bounds))
        if found is not None and found.guide is guide:
            if found.is_settled:
                self._cache(found)
            return found
        made = CompiledGrammar(spec, guide, bounds, self._token_bytes, tenant)
        self._alive[made.key] = made
        self._queue.add(made)
        self._start_queued()
        return made

    def review(self) -> list[CompiledGrammar]:
        """Start queued compilations, and refuse those that exceed the time limit.

        Returns:
            Compilations that have ended since the last call.
        """
        if not self._working:
            return []
        now = time.monotonic()
        for one in self._working:
            # Its thread cannot be stopped, but its slot in the queue is released.
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
                    # A refusal is not cached: a later attempt may succeed.
                    self._evict(one)
                elif self._alive.get(one.key) is one:
                    self._cache(one)
            self._start_queued()
        return over

    def clear(self) -> None:
        """Clear the cache, after the guide was replaced."""
        self._cached.clear()
        self._alive.clear()

    def _start_queued(self) -> None:
        while (one := self._queue.next()) is not None:
            one.began = time.monotonic()
            one.until = one.began + self._limits.compile_seconds
            # A strong reference, also if all of its requests end before the thread does.
            self._working.append(one)
            # A daemon thread, so that a hanging compilation blocks neither steps nor shutdown.
            threading.Thread(target=one.compile, name="guide compile", daemon=True).start()

    def _cache(self, one: CompiledGrammar) -> None:
        """Cache a grammar as its tenant's most recent; requests may use it after its eviction."""
        self._cached.weigh()  # grammars grow while they are in use
        self._cached.put(one.tenant, one.key, one)

    def _evict(self, one: CompiledGrammar) -> None:
        if self._alive.get(one.key) is one:
            del self._alive[one.key]
            self._cached.remove(one.tenant, one.key)
