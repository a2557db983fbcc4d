"""Tokens of answers for protocols: whole characters, special tokens, prompts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gatewayd.http.protocols.answer_tokens import AnswerTokenReader
from gatewayd.pipeline.choice_types import ScoredToken
from gatewayd.text.text_model import TextModel
from gatewayd_engine.process.messages import TokenLogprobs

WORDS = "def café(漢字): 'naïve 😀'"


def scored(ids: Sequence[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(0, one, -float(at), 1, [one], [-0.5]) for at, one in enumerate(ids)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_texts_are_the_whole_text_for_any_split(text: TextModel, size: int) -> None:
    ids = text.tokenizer.encode(WORDS)
    assert len(ids) > len(WORDS.split())
    reader = AnswerTokenReader(text.tokenizer)
    found = []
    for at in range(0, len(ids), size):
        some = scored(ids[at : at + size])
        found += reader.read([ScoredToken(one, 0, 0, False) for one in some])
    assert [token.id for token in found] == ids
    assert "".join(token.text for token in found) == WORDS
    assert "" in [token.text for token in found]  # a part of a character
    assert not any("\ufffd" in token.text or token.is_special for token in found)


def test_a_special_token_has_its_name_and_a_mark(text: TextModel) -> None:
    special = min(text.tokenizer.special_ids)
    (one,) = scored([special])
    (token,) = AnswerTokenReader(text.tokenizer).read([ScoredToken(one, 0, 0, False)])
    (name,) = [one for one, at in text.tokenizer.special_texts.items() if at == special]
    assert (token.text, token.is_special, token.logprob) == (name, True, 0.0)
    assert [(top.text, top.is_special, top.logprob) for top in token.top] == [(name, True, -0.5)]


def test_the_first_token_of_a_prompt_has_no_score(text: TextModel) -> None:
    ids = text.tokenizer.encode(WORDS)
    found = AnswerTokenReader(text.tokenizer).read_prompt(ids, scored(ids)[1:])
    assert [token.id for token in found] == ids
    assert "".join(token.text for token in found) == WORDS
    assert [token.logprob for token in found[:3]] == [None, -1.0, -2.0]
    assert AnswerTokenReader(text.tokenizer).read_prompt(ids, []) == []
