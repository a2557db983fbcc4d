"""Compiles with llguidance and fills the masks of a batch in its threads.

Masks come from a walk over the trie of all tokens that a lexer of derivatives and an Earley
parser prune; nothing is computed for states that no sequence reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from llguidance import LLExecutor, LLMatcher, LLParserLimits

from gatewayd_guide_llguidance.forms import Forms
from gatewayd_guide_llguidance.lexers import Lexer
from gatewayd_guide_llguidance.matching import LlGrammar, LlMatcher, told
from gatewayd_guide_llguidance.vocabulary import Vocabulary
from gatewayd_hooks.bounded import Bounded
from gatewayd_hooks.guiding import GrammarRefused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_guide_llguidance.config import LlguidanceConfig
    from gatewayd_hooks.guiding import Grammar, GuideSpec, Matcher
    from gatewayd_hooks.resources import EngineResources


class Llguidance:
    """Holds the vocabulary and the threads; grammars belong to those who asked for them."""

    def __init__(self, config: LlguidanceConfig) -> None:
        self._config = config
        self._limits = LLParserLimits(
            initial_lexer_fuel=config.compile_fuel,
            step_lexer_fuel=config.step_fuel,
            step_max_items=config.step_items,
            max_lexer_states=config.lexer_states,
            max_grammar_size=config.grammar_size,
            verbose_errors=True,  # what a lexer takes stands in them
        )
        self._bounded = Bounded(config.compile_seconds)
        self._vocabulary: Vocabulary | None = None
        self._forms: Forms | None = None
        self._executor: LLExecutor | None = None

    def open(self, resources: EngineResources) -> None:
        """Read the tokenizer and start the threads."""
        self._vocabulary = Vocabulary(resources)
        self._forms = Forms(self._config, self._vocabulary.special)
        self._executor = LLExecutor(self._config.threads or None)

    def close(self) -> None:
        """Let both go; grammars that are in use keep their vocabulary."""
        self._vocabulary = self._forms = self._executor = None

    def compile(self, spec: GuideSpec) -> Grammar:
        """Translate to llguidance's own form and let it compile."""
        return self._bounded.run(lambda: self._compiled(spec))

    def _compiled(self, spec: GuideSpec) -> Grammar:
        vocabulary = cast("Vocabulary", self._vocabulary)
        text = cast("Forms", self._forms).grammar_of(spec)
        states, limits = self._config.lexer_states, self._limits

        def make() -> Lexer:
            first = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=limits)
            if first.is_error():
                raise GrammarRefused(f"{spec.form}: {told(first.get_error())}")
            return Lexer(first, len(text), states)

        return LlGrammar(make(), partial(self._bounded.run, make), vocabulary)

    def fill_many(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        """In threads, without the interpreter, where there are several."""
        ours = cast("Sequence[LlMatcher]", matchers)
        open_ = [(one.matcher, i) for i, one in enumerate(ours) if not one.has_ended]
        if len(open_) > 1:
            cast("LLExecutor", self._executor).unsafe_compute_mask_ptr(
                open_, masks.ctypes.data, masks.strides[0], len(masks)
            )
        elif open_:
            ours[open_[0][1]].fill(masks[open_[0][1]])
        for i, one in enumerate(ours):
            if one.has_ended or one.is_mended():
                one.fill(masks[i])
            elif len(open_) > 1:
                one.keep(masks[i])
