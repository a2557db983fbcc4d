"""Prompts and counts of the comparison of answers."""

from __future__ import annotations

from gatewayd_engine.offline.quality.texts import bundled
from tests.bench.cpu.agreement import (
    NUM_PROMPTS,
    Agreement,
    Answer,
    markdown,
    num_equal,
    prompts,
)


def test_half_of_a_hundred_different_prompts_are_chats() -> None:
    sent = prompts(bundled())
    assert len(sent) == len({str(prompt) for prompt in sent}) == NUM_PROMPTS
    assert [prompt.path for prompt in sent] == [
        *["/v1/chat/completions"] * 50,
        *["/v1/completions"] * 50,
    ]
    # Special tokens would be others, as one of the servers trusts texts.
    assert not any("<|" in str(prompt.body) for prompt in sent)


def test_answers_are_counted_by_half() -> None:
    some = [Answer(text, 3) for text in "abcd"]
    others = [Answer("a", 3), Answer("x", 3), Answer("c", 3), Answer("d", 4)]
    assert num_equal(some, some) == (2, 2)
    assert num_equal(some, others) == (1, 1)


def test_a_file_is_a_row() -> None:
    found = Agreement("nano F16", (1, 2), (3, 4), (5, 6), (7, 8), (9, 10))
    assert markdown([found]).splitlines()[-1] == (
        "| nano F16 | 1 + 2 | 3 + 4 | 5 + 6 | 7 + 8 | 9 + 10 |"
    )
