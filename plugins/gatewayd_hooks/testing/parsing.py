"""Conformance tests of output parsers.

How a family writes its calls is derived from the guide that enforces it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewayd_hooks.parsing import (
    Arguments,
    OutputParser,
    Part,
    Reasoning,
    ReasoningParserStrategy,
    Text,
    Tool,
    ToolCall,
    ToolParserStrategy,
)
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.testing.samples.campaign import campaign

_few = settings(campaign, max_examples=max(10, 3 * campaign.max_examples // 10))
"""Each case streams a text in every division: a third of a campaign, 30 for third parties."""
_fewest = settings(campaign, max_examples=max(5, campaign.max_examples // 10))
TOOLS = (
    Tool("get_weather", "Of a town.", {"type": "object"}, strict=False),
    Tool("send-mail", "", None, strict=True),
    Tool("f", "", {"type": "object"}, strict=False),
)
_WORDS = st.text("abc {}[]\"\\',:;<>\n", max_size=12)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)
_CALLS = st.lists(
    st.tuples(st.sampled_from(TOOLS), st.dictionaries(_WORDS, _VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)
_SPLITS = st.lists(st.integers(1, 7), min_size=1, max_size=8)
_PLAIN = st.text("abc, .!\n", max_size=30)
_JSON = ['{"name": "', "f", '", ', '"arguments": ', '"parameters": ', "{}", "}", "{", "[", "]"]
# Fragments of calls in any order, most of them invalid: parsers must agree for these as well.
_BITS = [*_JSON, ",", ";", " ", "\n", '"', "\\", "null", '"f"', "x", '{"a": 1}', '"{}"']


def in_pieces(text: str, splits: Sequence[int]) -> Iterator[str]:
    """Yield a text in pieces of these lengths, cyclically."""
    at, turn = 0, 0
    while at < len(text):
        size = splits[turn % len(splits)]
        yield text[at : at + size]
        at, turn = at + size, turn + 1


def read(parser: OutputParser, pieces: Sequence[str] | Iterator[str]) -> list[Part]:
    """Return all parts, with adjacent ones of the same kind merged."""
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.feed(piece)
    parts += parser.finish()
    return _joined(parts)


def _joined(parts: Sequence[Part]) -> list[Part]:
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        assert not isinstance(part, Text | Reasoning | Arguments) or part.text, "an empty part"
        if type(part) is type(last) and part[:-1] == last[:-1] and not isinstance(part, ToolCall):
            joined[-1] = part._replace(text=last[-1] + part[-1])
        else:
            joined.append(part)
    return joined


def bare(text: str) -> str:
    """Return a text without whitespace, which delimiters may consume."""
    return "".join(text.split())


def text_of(parts: Sequence[Part]) -> str:
    """Return the text for the user."""
    return "".join(part.text for part in parts if isinstance(part, Text))


class _Opening:
    def make(self) -> Any:  # noqa: ANN401 - of either kind
        raise NotImplementedError("return your parser, built and not opened")

    @contextmanager
    def opened(self, template: str = "") -> Iterator[Any]:
        """Yield an opened strategy."""
        strategy = self.make()
        try:
            strategy.open(GatewayResources(model="model", num_replicas=1, chat_template=template))
            yield strategy
        finally:
            strategy.close()


class ToolParserConformance(_Opening):
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> ToolParserStrategy:
        """Build the strategy; the tests open and close it."""
        raise NotImplementedError("return your parser, built and not opened")

    def write(
        self, strategy: ToolParserStrategy, calls: Sequence[tuple[Tool, dict[str, Any]]]
    ) -> str:
        """Return an answer with these calls, as the guide requires it."""
        tools = [tool for tool, _ in calls]
        spec = strategy.guide(tools, required=True, parallel=True)
        if spec.form != "structural_tag":
            pytest.skip("its guide does not define how a call is written")
        structures = json.loads(spec.text)["structures"]
        return "\n".join(
            one["begin"] + json.dumps(arguments) + one["end"]
            for one, (_, arguments) in zip(structures, calls, strict=True)
        )

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_an_empty_template_matches_no_parser(self) -> None:
        with self.opened() as strategy:
            assert strategy.suits("") is False

    def test_ids_are_unique_and_stable(self) -> None:
        with self.opened() as strategy:
            made = [strategy.call_id(f"call_{number}") for number in range(100)]
            assert len(set(made)) == len(made)
            assert [strategy.call_id(one) for one in made] == made

    def test_its_grammar_has_a_supported_form(self) -> None:
        with self.opened() as strategy:
            for required, parallel in product((False, True), repeat=2):
                spec = strategy.guide(TOOLS, required=required, parallel=parallel)
                if spec.form != "structural_tag":
                    continue
                parsed = json.loads(spec.text)
                begins = [one["begin"] for one in parsed["structures"]]
                assert len(begins) == len(TOOLS)
                assert all(any(one.startswith(t) for t in parsed["triggers"]) for one in begins)
                assert parsed.get("at_least_one", False) is required
                assert parsed.get("stop_after_first", False) is not parallel
                # If only calls are allowed, the separator is defined.
                assert isinstance(parsed.get("separator"), str) is required

    @_few
    @given(calls=_CALLS, splits=_SPLITS)
    def test_it_parses_what_its_grammar_enforces(
        self, calls: list[tuple[Tool, dict[str, Any]]], splits: list[int]
    ) -> None:
        with self.opened() as strategy:
            answer = self.write(strategy, calls)
            parts = read(strategy.parser(TOOLS), in_pieces(answer, splits))
        emitted = [part.name for part in parts if isinstance(part, ToolCall)]
        assert emitted == [tool.name for tool, _ in calls]
        assert [part.call for part in parts if isinstance(part, ToolCall)] == [*range(len(calls))]
        arguments = [json.loads(part.text) for part in parts if isinstance(part, Arguments)]
        assert arguments == [arguments for _, arguments in calls]
        assert text_of(parts) == ""

    def test_arguments_are_streamed(self) -> None:
        """Whatever is certain is returned: at most a delimiter is held back."""
        with self.opened() as strategy:
            answer = self.write(strategy, [(TOOLS[0], {"text": "word " * 50})])
            middle = answer.index("word ") + 100
            emitted = strategy.parser(TOOLS).feed(answer[:middle])
        assert sum(len(part.text) for part in emitted if isinstance(part, Arguments)) > 50

    @_few
    @given(text=_PLAIN, splits=_SPLITS)
    def test_text_without_calls_is_unchanged(self, text: str, splits: list[int]) -> None:
        with self.opened() as strategy:
            parts = read(strategy.parser(TOOLS), in_pieces(text, splits))
        assert parts == ([Text(text)] if text else [])

    @_few
    @given(data=st.data(), splits=_SPLITS)
    def test_results_do_not_depend_on_chunk_boundaries(
        self, data: st.DataObject, splits: list[int]
    ) -> None:
        """Also for invalid output."""
        with self.opened() as strategy:
            whole = self.write(strategy, [(TOOLS[2], {"a": "}"})])
            bits = [*_BITS, *strategy.marks, *(mark[:-1] for mark in strategy.marks), whole]
            answer = "".join(data.draw(st.lists(st.sampled_from(bits), max_size=12)))
            at_once = read(strategy.parser(TOOLS), [answer])
            assert read(strategy.parser(TOOLS), in_pieces(answer, splits)) == at_once
            assert read(strategy.parser(TOOLS), list(answer)) == at_once

    @_fewest
    @given(calls=_CALLS)
    def test_incomplete_calls_are_reported_or_are_text(
        self, calls: list[tuple[Tool, dict[str, Any]]]
    ) -> None:
        with self.opened() as strategy:
            answer = self.write(strategy, calls[:1])
            for end in range(len(answer)):
                parts = read(strategy.parser(TOOLS), [answer[:end]])
                if any(isinstance(part, ToolCall) for part in parts):
                    emitted = "".join(part.text for part in parts if isinstance(part, Arguments))
                    assert json.dumps(calls[0][1]).startswith(emitted)
                    assert text_of(parts) == ""
                else:
                    assert bare(text_of(parts)) == bare(answer[:end])

    def test_parsers_of_concurrent_answers_are_independent(self) -> None:
        with self.opened() as strategy:
            answer = self.write(strategy, [(TOOLS[0], {"a": 1})])
            one, other = strategy.parser(TOOLS), strategy.parser(TOOLS)
            middle = len(answer) // 2
            first = [*one.feed(answer[:middle])]
            assert read(other, ["text"]) == [Text("text")]
            parts = _joined([*first, *one.feed(answer[middle:]), *one.finish()])
        assert parts == [ToolCall(0, TOOLS[0].name), Arguments(0, '{"a": 1}')]


class ReasoningParserConformance(_Opening):
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> ReasoningParserStrategy:
        """Build the strategy; the tests open and close it."""
        raise NotImplementedError("return your parser, built and not opened")

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_an_empty_template_matches_no_parser(self) -> None:
        with self.opened() as strategy:
            assert strategy.suits("") is False

    @_few
    @given(text=_PLAIN, splits=_SPLITS)
    def test_an_answer_without_reasoning_marks_is_text(self, text: str, splits: list[int]) -> None:
        with self.opened() as strategy:
            parts = read(strategy.parser("user: hello\n"), in_pieces(text, splits))
        assert parts == ([Text(text)] if text else [])

    @_few
    @given(data=st.data(), splits=_SPLITS, is_open=st.booleans())
    def test_results_do_not_depend_on_chunk_boundaries(
        self, data: st.DataObject, splits: list[int], is_open: bool
    ) -> None:
        with self.opened() as strategy:
            marks = list(strategy.marks)
            bits = st.sampled_from(["a", " ", "\n", "b c", "<", *marks, *(m[:-1] for m in marks)])
            answer = "".join(data.draw(st.lists(bits, max_size=12)))
            prompt = marks[0] if is_open and marks else "user"
            at_once = read(strategy.parser(prompt), [answer])
            assert read(strategy.parser(prompt), in_pieces(answer, splits)) == at_once
            assert not any(isinstance(part, ToolCall | Arguments) for part in at_once)

    def test_its_bounds_delimit_the_parsed_reasoning(self) -> None:
        with self.opened() as strategy:
            opened = strategy.marks[0] if strategy.marks else ""
            for prompt_end in ("user: hello\n", f"assistant\n{opened}\n"):
                bounds = strategy.bounds(prompt_end)
                if bounds is None:
                    continue
                assert bounds.end
                answer = f"{bounds.begin}thought{bounds.end}answer"
                parts = read(strategy.parser(prompt_end), [answer])
                assert parts == [Reasoning("thought"), Text("answer")]

    @_few
    @given(data=st.data())
    def test_only_marks_and_whitespace_are_removed(self, data: st.DataObject) -> None:
        with self.opened() as strategy:
            marks = list(strategy.marks)
            bits = st.sampled_from(["a", " ", "\n", "b c", *marks, *(m[:-1] for m in marks)])
            answer = "".join(data.draw(st.lists(bits, max_size=12)))
            parts = read(strategy.parser("user"), [answer])
        emitted = "".join(part.text for part in parts if isinstance(part, Text | Reasoning))
        for mark in marks:
            answer, emitted = answer.replace(mark, ""), emitted.replace(mark, "")
        assert bare(emitted) == bare(answer)
