"""Compiles with XGrammar: pushdown automata, with precomputed masks for most of their states.

XGrammar (Dong et al. 2024) divides a vocabulary, for each state of a grammar, into tokens that are
decided by the state alone and the few that also need the stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from xgrammar import BatchGrammarMatcher

from gatewayd_guide_xgrammar.expressions import check_counts, whole
from gatewayd_guide_xgrammar.formats import marked_texts, write
from gatewayd_guide_xgrammar.matching import XgGrammar, XgMatcher
from gatewayd_guide_xgrammar.schemas import kept
from gatewayd_guide_xgrammar.vocabulary import XgrammarVocabulary
from gatewayd_hooks.guiding import GrammarRefused
from gatewayd_hooks.helpers.bounded import Bounded
from gatewayd_hooks.helpers.formats import read_format, tags_of
from gatewayd_hooks.helpers.grammars import (
    check_size,
    read_choices,
    read_schema,
    read_structural_tag,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from xgrammar import CompiledGrammar

    from gatewayd_guide_xgrammar.config import XgrammarConfig
    from gatewayd_hooks.guiding import Grammar, GuideSpec, Matcher
    from gatewayd_hooks.helpers.formats import Format
    from gatewayd_hooks.resources import EngineResources

_PLAIN: frozenset[str] = frozenset()
_MOST_LETTERS = 300
_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+:\d+: ")


class Xgrammar:
    """Guide with the vocabulary; grammars are owned by the caller."""

    def __init__(self, config: XgrammarConfig) -> None:
        self._config = config
        self._bounded = Bounded(config.compile_seconds)
        self._vocabulary: XgrammarVocabulary | None = None
        self._batch: BatchGrammarMatcher | None = None

    def open(self, resources: EngineResources) -> None:
        """Read the tokenizer; the library imports torch."""
        self._vocabulary = XgrammarVocabulary(resources, self._config.threads)
        # Made here and not for the first request, as it takes long for large vocabularies.
        self._vocabulary.compiler(_PLAIN)
        self._batch = BatchGrammarMatcher(self._config.threads)

    def close(self) -> None:
        """Release both; grammars in use keep a reference to the vocabulary."""
        self._vocabulary = self._batch = None

    def compile(self, spec: GuideSpec) -> Grammar:
        """Convert to XGrammar's own form and compile."""
        return self._bounded.run(lambda: self._compiled(spec))

    def _compiled(self, spec: GuideSpec) -> Grammar:
        vocabulary = cast("XgrammarVocabulary", self._vocabulary)
        check_size(spec.form, spec.text, self._config.text_bytes)
        try:
            return XgGrammar(self._compile(spec, vocabulary), vocabulary)
        except (RuntimeError, ValueError) as error:
            raise GrammarRefused(f"{spec.form}: {_describe_error(error)}") from None

    def _compile(self, spec: GuideSpec, vocabulary: XgrammarVocabulary) -> CompiledGrammar:
        compiler = vocabulary.compiler(_PLAIN)
        config = self._config
        blanks = config.blanks(is_compact=spec.is_compact)
        match spec.form:
            case "json_object" | "json_schema":
                schema = (
                    {"type": "object"}
                    if spec.form == "json_object"
                    else kept(
                        read_schema(spec.text, config.depth), config.schemas, compiler.compile_regex
                    )
                )
                # Not strict: other properties are allowed unless the schema forbids them, as in
                # JSON Schema.
                return compiler.compile_json_schema(
                    json.dumps(schema), strict_mode=False, max_whitespace_cnt=blanks
                )
            case "regex":
                check_counts(spec.text)
                return compiler.compile_regex(whole(spec.text))
            case "choice":
                return compiler.compile_grammar(
                    "root ::= " + " | ".join(map(_quoted, read_choices(spec.text)))
                )
            case "grammar":
                check_counts(spec.text)
                if "::=" in spec.text:
                    return compiler.compile_grammar(spec.text)
                return compiler.compile_lark(spec.text)
            case "structural_tag":
                found = tags_of(read_structural_tag(spec.text, config.depth))
                return self._format(found, vocabulary, blanks)
            case "format":
                return self._format(read_format(spec.text, config.depth), vocabulary, blanks)

    def _format(
        self, found: Format, vocabulary: XgrammarVocabulary, blanks: int
    ) -> CompiledGrammar:
        compiler = vocabulary.compiler(vocabulary.marks_in(marked_texts(found)))

        def schema_of(text: str) -> dict[str, Any]:
            schema = read_schema(text, self._config.depth)
            return {
                "type": "json_schema",
                "json_schema": kept(schema, self._config.schemas, compiler.compile_regex),
                "max_whitespace_cnt": blanks,
            }

        written = write(found, schema_of)
        return compiler.compile_structural_tag({"type": "structural_tag", "format": written})

    def fill_many(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        """Fill the masks of several matchers, in threads if there are several."""
        ours = cast("Sequence[XgMatcher]", matchers)
        open_ = [(one.matcher, i) for i, one in enumerate(ours) if not one.has_ended]
        if open_:
            cast("BatchGrammarMatcher", self._batch).batch_fill_next_token_bitmask(
                [matcher for matcher, _ in open_], masks, [i for _, i in open_]
            )
        # Ended sequences may repeat their end tokens, which XGrammar does not allow.
        for i, one in enumerate(ours):
            if one.has_ended:
                one.fill(masks[i])


def _quoted(text: str) -> str:
    """Return an EBNF string."""
    plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'


def _describe_error(error: Exception) -> str:
    """Return the first line of XGrammar's error, without the time and the source location."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason"]
    return _PLACE.sub("", lines[0])[:_MOST_LETTERS]
