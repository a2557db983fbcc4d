"""Workload prompts: exact length, repeatable, with the sharing asked for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from gatewayd.cli.bench.workload import RequestShape, corpus_text, from_file, synthetic

IDS = list(range(500))


def test_token_prompts_have_exactly_the_length_asked_for() -> None:
    shape = RequestShape(prompt_tokens=64, output_tokens=9, shared_prefix_tokens=700)
    for item in islice(synthetic(IDS, shape, seed=1), 50):
        assert len(item.prompt) == 764
        assert item.output_tokens == 9


def test_the_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    shape = RequestShape(prompt_tokens=10, shared_prefix_tokens=700)
    prompts = [item.prompt for item in islice(synthetic(IDS, shape, seed=1), 200)]
    assert len({tuple(prompt[:700]) for prompt in prompts}) == 1
    assert len({tuple(prompt[700:704]) for prompt in prompts}) == 200


def test_the_same_seed_gives_the_same_prompts_and_another_one_others() -> None:
    shape = RequestShape(prompt_tokens=20, shared_prefix_tokens=30, spread=0.5)
    first, again, other = (list(islice(synthetic(IDS, shape, s), 20)) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_spread_lengths_vary_around_the_length_asked_for() -> None:
    shape = RequestShape(prompt_tokens=100, output_tokens=100, spread=0.5)
    lengths = sorted(len(item.prompt) for item in islice(synthetic(IDS, shape, seed=1), 999))
    assert 90 < lengths[499] < 110  # the median of a log-normal is its scale
    assert lengths[0] < 50
    assert lengths[-1] > 200


def test_a_text_corpus_gives_text_of_about_that_length() -> None:
    shape = RequestShape(prompt_tokens=50, shared_prefix_tokens=10)
    for item in islice(synthetic(corpus_text(), shape, seed=1), 20):
        assert isinstance(item.prompt, str)
        assert len(item.prompt) == 240


def test_a_corpus_shorter_than_the_prompt_is_repeated() -> None:
    item = next(synthetic([1, 2, 3], RequestShape(prompt_tokens=40), seed=0))
    assert len(item.prompt) == 40


def test_a_dataset_gives_its_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '"hello"\n\n{"prompt": [1, 2], "max_tokens": 3}\n{"prompt": "x", "id": 7}\n',
        encoding="utf-8",
    )
    assert from_file(path, 9, chat=False) == [("hello", 9), ([1, 2], 3), ("x", 9)]


def test_a_chat_dataset_takes_messages_and_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n"yo"\n', encoding="utf-8")
    assert from_file(path, 9, chat=True) == [([{"role": "user", "content": "hi"}], 9), ("yo", 9)]


@pytest.mark.parametrize(
    ("text", "chat", "message"),
    [
        ("{", False, "line 1"),
        ('"fine"\n{"text": "x"}', False, "line 2: this endpoint needs a prompt"),
        ('{"messages": [{"role": "user"}]}', False, "line 1: this endpoint needs a prompt"),
        ('{"prompt": [1, 2]}', True, "line 1: this endpoint needs messages"),
        ("\n", False, "no prompt in it"),
    ],
)
def test_a_wrong_dataset_is_refused_by_line(
    tmp_path: Path, text: str, chat: bool, message: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        from_file(path, 9, chat=chat)
