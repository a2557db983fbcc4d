"""Compiles with llguidance and computes the masks of a batch in its threads.

Masks result from a walk over the trie of all tokens, pruned by a derivative-based lexer and an
Earley parser; nothing is computed for states that no sequence reaches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from llguidance import LLExecutor, LLMatcher, LLParserLimits

from gatewayd_guide_llguidance.grammar_converter import GrammarConverter
from gatewayd_guide_llguidance.lexers import Lexer
from gatewayd_guide_llguidance.matching import LlGrammar, LlMatcher, describe_error
from gatewayd_guide_llguidance.vocabulary import LlguidanceVocabulary
from gatewayd_hooks.guiding import GrammarRefused
from gatewayd_hooks.helpers.bounded import Bounded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_guide_llguidance.config import LlguidanceConfig
    from gatewayd_hooks.guiding import Grammar, GuideSpec, Matcher
    from gatewayd_hooks.resources import EngineResources

_FEW = 4
"""Number of masks computed before threads are considered."""
_WORTH_SECONDS = 1e-3
"""Remaining time for which threads are used: waking them next to a running model takes some of
that."""
_CORES_TAKEN = 2
"""Cores used by the model and the engine's loop: without more cores, threads would only compete."""


class Llguidance:
    """Guide with the vocabulary and the threads; grammars are owned by the caller."""

    def __init__(self, config: LlguidanceConfig) -> None:
        self._config = config
        self._limits = LLParserLimits(
            initial_lexer_fuel=config.compile_fuel,
            step_lexer_fuel=config.step_fuel,
            step_max_items=config.step_items,
            max_lexer_states=config.lexer_states,
            max_grammar_size=config.grammar_size,
            verbose_errors=True,  # they contain the cost of a lexer
        )
        self._bounded = Bounded(config.compile_seconds)
        self._vocabulary: LlguidanceVocabulary | None = None
        self._converter: GrammarConverter | None = None
        self._executor: LLExecutor | None = None

    def open(self, resources: EngineResources) -> None:
        """Read the tokenizer and start the threads."""
        self._vocabulary = LlguidanceVocabulary(resources)
        self._converter = GrammarConverter(self._config, self._vocabulary.special)
        threads = self._config.threads
        if threads or _cores() > _CORES_TAKEN:
            self._executor = LLExecutor(threads or None)

    def close(self) -> None:
        """Release both; grammars in use keep a reference to the vocabulary."""
        self._vocabulary = self._converter = self._executor = None

    def compile(self, spec: GuideSpec) -> Grammar:
        """Convert to llguidance's own form and compile."""
        return self._bounded.run(lambda: self._compiled(spec))

    def _compiled(self, spec: GuideSpec) -> Grammar:
        vocabulary = cast("LlguidanceVocabulary", self._vocabulary)
        text = cast("GrammarConverter", self._converter).grammar_of(spec)
        states, limits = self._config.lexer_states, self._limits

        # Called again, much later, when a lexer is full or was released.
        def make() -> Lexer:
            first = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=limits)
            if first.is_error():
                raise GrammarRefused(f"{spec.form}: {describe_error(first.get_error())}")
            return Lexer(first, len(text), states)

        return LlGrammar(make(), partial(self._bounded.run, make), vocabulary)

    def fill_many(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        """Fill the first few here.

        The others in threads if those few show that it will take long.
        """
        ours = cast("Sequence[LlMatcher]", matchers)
        few, others = ours[:_FEW], ours[_FEW:]
        began = time.perf_counter()
        for one, mask in zip(few, masks, strict=False):
            one.fill(mask)
        each = (time.perf_counter() - began) / max(1, len(few))
        if self._executor is not None and each * len(others) > _WORTH_SECONDS:
            self._fill_in_threads(self._executor, others, masks[_FEW:])
            return
        for one, mask in zip(others, masks[_FEW:], strict=True):
            one.fill(mask)

    @staticmethod
    def _fill_in_threads(
        executor: LLExecutor, matchers: Sequence[LlMatcher], masks: NDArray[np.int32]
    ) -> None:
        """Fill all in parallel, without the interpreter lock."""
        open_ = [(one.matcher, i) for i, one in enumerate(matchers) if not one.has_ended]
        if open_:
            executor.unsafe_compute_mask_ptr(open_, masks.ctypes.data, masks.strides[0], len(masks))
        for one, mask in zip(matchers, masks, strict=True):
            # Ended sequences were left out above, and a full lexer is only noticed afterwards.
            if one.has_ended or one.replace_full_lexer():
                one.fill(mask)
            else:
                one.cache_mask(mask)


def _cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
