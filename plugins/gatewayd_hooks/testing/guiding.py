"""Conformance tests of guides, for any supported forms."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.guiding import Grammar, GrammarRefused, GuideStrategy, Matcher
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.samples.campaign import campaign
from gatewayd_hooks.testing.samples.guide_texts import SAMPLES, WRONG, Sample
from gatewayd_hooks.testing.samples.tokens import END, VOCAB_SIZE, write_tokenizer

_LONGEST = 200
_CHOICES = st.lists(st.integers(0, 2**31), min_size=1, max_size=40)


def allowed(matcher: Matcher) -> list[int]:
    """Return the tokens that may come next, in order."""
    # All ones at first, so that a mask that is not overwritten completely is noticed.
    mask = np.full(-(-VOCAB_SIZE // 32), -1, np.int32)
    matcher.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


class GuideConformance:
    """Subclass it and build your guide in ``make``."""

    spelled: list[bytes]

    def make(self) -> GuideStrategy:
        """Build the guide; the tests open and close it."""
        raise NotImplementedError("return your guide, built and not opened")

    @contextmanager
    def opened(self, **changes: Any) -> Iterator[GuideStrategy]:  # noqa: ANN401 - any resource
        """Yield an opened guide, with the tokens of ``gatewayd_hooks.testing.samples.tokens``."""
        guide = self.make()
        with tempfile.TemporaryDirectory() as folder:
            self.spelled = write_tokenizer(Path(folder))
            try:
                guide.open(self.resources(folder, **changes))
                yield guide
            finally:
                guide.close()

    def resources(self, folder: str, **changes: Any) -> EngineResources:  # noqa: ANN401
        """Return the resources for ``open``."""
        given_ = {"vocab_size": VOCAB_SIZE, "eos_token_ids": (END,), "folder": folder}
        return engine_resources(**{**given_, **changes})

    def known(self, guide: GuideStrategy) -> list[tuple[Sample, Grammar]]:
        """Return the samples of supported forms; at least one."""
        found = []
        for sample in SAMPLES:
            try:
                found.append((sample, guide.compile(sample.spec)))
            except GrammarRefused:
                continue
        if not found:
            pytest.fail("it refuses every form")
        return found

    def tokens_of(self, text: str) -> list[int]:
        """Encode a text, with one token per byte."""
        first = self.spelled.index(b"\x00")
        return [first + byte for byte in text.encode()]

    def text_of(self, tokens: Sequence[int], *, is_free: bool = False) -> str:
        """Decode tokens; free text may be invalid UTF-8."""
        spelled = b"".join(self.spelled[token] for token in tokens)
        return spelled.decode(errors="replace" if is_free else "strict")

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_text_that_matches_a_grammar_is_accepted_and_may_end(self) -> None:
        with self.opened() as guide:
            for sample, grammar in self.known(guide):
                for text in sample.right:
                    tokens = [*self.tokens_of(text), END]
                    assert grammar.start().accept(tokens) == len(tokens), (sample.spec, text)

    def test_text_that_does_not_match_a_grammar_is_rejected(self) -> None:
        with self.opened() as guide:
            for sample, grammar in self.known(guide):
                for text in sample.wrong:
                    tokens = [*self.tokens_of(text), END]
                    assert grammar.start().accept(tokens) < len(tokens), (sample.spec, text)

    def test_an_invalid_grammar_is_refused_with_a_message(self) -> None:
        with self.opened() as guide:
            for spec in WRONG:
                with pytest.raises(GrammarRefused) as caught:
                    guide.compile(spec)
                assert str(caught.value).strip(), spec

    def test_tokens_sampled_from_masks_match_the_grammar(self) -> None:
        """Tokens allowed by masks are accepted, and complete answers match the grammar."""
        with self.opened() as guide:
            known = self.known(guide)

            @campaign
            @given(draws=_CHOICES)
            def walk(draws: Sequence[int]) -> None:
                sample, grammar = known[draws[0] % len(known)]
                matcher, tokens = grammar.start(), list[int]()
                for draw in draws:
                    choices = allowed(matcher)
                    assert choices, "no token may come next"
                    assert choices[-1] < len(self.spelled), "a token that spells nothing"
                    token = choices[draw % len(choices)]
                    assert matcher.accept([token]) == 1
                    if token == END:
                        text = self.text_of(tokens, is_free=sample.spec.form == "structural_tag")
                        assert sample.fits(text), (sample.spec, tokens)
                        assert allowed(matcher) == [END]
                        return
                    tokens.append(token)

            walk()

    def test_a_mask_allows_exactly_the_accepted_tokens(self) -> None:
        """Every token of the vocabulary is tried; forced ones may exclude other spellings."""
        with self.opened() as guide:
            known = self.known(guide)

            @campaign
            @given(draws=_CHOICES)
            def compare(draws: Sequence[int]) -> None:
                _, grammar = known[draws[0] % len(known)]
                matcher = grammar.start()
                for draw in draws[:6]:
                    choices, forced = allowed(matcher), list(matcher.forced())
                    takes = [t for t in range(VOCAB_SIZE) if matcher.fork().accept([t])]
                    assert choices == (forced[:1] or takes)
                    assert set(choices) <= set(takes)
                    matcher.accept([choices[draw % len(choices)]])

            compare()

    def test_forced_tokens_are_accepted_and_the_only_choice(self) -> None:
        with self.opened() as guide:
            for sample, grammar in self.known(guide):
                matcher = grammar.start()
                for token in self.tokens_of(sample.right[0]):
                    forced = list(matcher.forced())
                    ahead = matcher.fork()
                    for one in forced:
                        assert allowed(ahead) == [one], sample.spec
                        assert ahead.accept([one]) == 1
                    assert matcher.accept([token]) == 1

    def test_rollback_restores_the_previous_state(self) -> None:
        with self.opened() as guide:
            known = self.known(guide)

            @campaign
            @given(draws=_CHOICES, count=st.integers(0, 40))
            def go_back(draws: Sequence[int], count: int) -> None:
                _, grammar = known[draws[0] % len(known)]
                matcher, tokens, forks = grammar.start(), list[int](), list[Matcher]()
                for draw in draws:
                    forks.append(matcher.fork())
                    choices = allowed(matcher)
                    tokens.append(choices[draw % len(choices)])
                    matcher.accept(tokens[-1:])
                keep = max(0, len(tokens) - count)
                matcher.rollback(len(tokens) - keep)
                fresh = grammar.start()
                assert fresh.accept(tokens[:keep]) == keep
                assert allowed(matcher) == allowed(fresh)
                assert matcher.accept(tokens[keep:]) == len(tokens) - keep
                for i, fork in enumerate(forks):
                    assert fork.accept(tokens[i:]) == len(tokens) - i, "forks are independent"

            go_back()

    def test_batched_masks_equal_single_masks(self) -> None:
        with self.opened() as guide:
            matchers = [grammar.start() for _, grammar in self.known(guide)]
            ended = [grammar.start() for _, grammar in self.known(guide)]
            for matcher, (sample, _) in zip(ended, self.known(guide), strict=True):
                matcher.accept([*self.tokens_of(sample.right[0]), END])
            matchers += ended
            for count in (1, 2, len(matchers)):
                some = matchers[-count:]
                # Filled with other bits, for the same reason as in ``allowed``.
                masks = np.full((count, -(-VOCAB_SIZE // 32)), 7, np.int32)
                guide.fill_many(some, masks)
                for matcher, mask in zip(some, masks, strict=True):
                    alone = np.zeros_like(mask)
                    matcher.fill(alone)
                    assert np.array_equal(mask, alone)

    def test_threads_compile_and_match_concurrently(self) -> None:
        with self.opened() as guide, ThreadPoolExecutor(4) as pool:
            shared = self.known(guide)

            def follow(_: int) -> list[list[int]]:
                # Grammars that threads share, and some that each compiles itself.
                own = [*shared, *self.known(guide)]
                return [self._firsts(grammar, sample.right[0]) for sample, grammar in own]

            first, *others = pool.map(follow, range(8))
            assert all(other == first for other in others)

    def _firsts(self, grammar: Grammar, text: str) -> list[int]:
        """Return the first token allowed at every position of a text."""
        matcher, found = grammar.start(), list[int]()
        for token in self.tokens_of(text)[:_LONGEST]:
            found.append(allowed(matcher)[0])
            matcher.accept([token])
        return found
