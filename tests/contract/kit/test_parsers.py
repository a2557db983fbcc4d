"""Parser conformance: rejects lost text, late text, and dependence on chunk boundaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gatewayd_hooks.parsing import Part, Reasoning, Text, ToolCall
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.parsing import ReasoningParserConformance, ToolParserConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(ToolParserConformance, Kind.TOOL_PARSER, "hermes") == []


def test_a_sound_one_of_reasoning_passes(verdict: Verdict) -> None:
    assert verdict(ReasoningParserConformance, Kind.REASONING_PARSER, "think") == []


class _Wrapped:
    """A parser with another one inside."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.texts: list[str] = []

    def feed(self, text: str) -> Sequence[Part]:
        return self.inner.feed(text)  # type: ignore[no-any-return]

    def finish(self) -> Sequence[Part]:
        return self.inner.finish()  # type: ignore[no-any-return]


class _Late(_Wrapped):
    def feed(self, text: str) -> Sequence[Part]:
        self.texts.append(text)
        return []

    def finish(self) -> Sequence[Part]:
        return [*self.inner.feed("".join(self.texts)), *self.inner.finish()]


class _Forgetful(_Wrapped):
    def finish(self) -> Sequence[Part]:
        return []


class _Cut(_Wrapped):
    """Sees only marks that come in one piece."""

    def feed(self, text: str) -> Sequence[Part]:
        return [Text(text)] if text and len(text) < 3 else self.inner.feed(text)


class _Loud(_Wrapped):
    """Tells every call as the first."""

    def feed(self, text: str) -> Sequence[Part]:
        return [
            ToolCall(0, part.name) if isinstance(part, ToolCall) else part
            for part in self.inner.feed(text)
        ]


class _Silent(_Wrapped):
    """Keeps the reasoning to itself."""

    def feed(self, text: str) -> Sequence[Part]:
        return [part for part in self.inner.feed(text) if not isinstance(part, Reasoning)]


def _with(wrapper: type[_Wrapped]) -> Callable[[Any], None]:
    def change(strategy: Any) -> None:
        make = strategy.parser
        strategy.parser = lambda given: wrapper(make(given))

    return change


@pytest.mark.parametrize("wrapper", [_Late, _Forgetful, _Cut, _Loud])
def test_a_broken_one_fails(catches: Catches, wrapper: type[_Wrapped]) -> None:
    assert catches(ToolParserConformance, Kind.TOOL_PARSER, "hermes", _with(wrapper))


def test_one_parser_for_all_answers_fails(catches: Catches) -> None:
    def change(strategy: Any) -> None:
        one = strategy.parser(())
        strategy.parser = lambda tools: one

    assert catches(ToolParserConformance, Kind.TOOL_PARSER, "hermes", change)


@pytest.mark.parametrize("wrapper", [_Forgetful, _Cut, _Silent])
def test_a_broken_one_of_reasoning_fails(catches: Catches, wrapper: type[_Wrapped]) -> None:
    assert catches(ReasoningParserConformance, Kind.REASONING_PARSER, "think", _with(wrapper))
