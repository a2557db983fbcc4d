"""Detokenizer: pieces equal the tokenizer's decoding of all ids at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.text.detokenizer import Detokenizer, WindowDetokenizer
from gatewayd.text.text_model import TextModel
from tests.gatewayd.small_tokenizers import FIRST_BYTE, metaspace, sentencepiece, wordpiece

CORPUS = [
    "plain words, and more",
    "na\u00efve caf\u00e9",
    "\U0001f469\u200d\U0001f4bb family \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "e\u0301 combining",
    "\x00 nul",
]


def pieces(detokenizer: Detokenizer, ids: list[int], step: int = 1) -> list[str]:
    fed = [detokenizer.feed(ids[at : at + step]) for at in range(0, len(ids), step)]
    return [*fed, detokenizer.finish()]


@given(
    ids=st.lists(st.integers(0, 4095), max_size=40),
    step=st.integers(1, 5),
    skip=st.booleans(),
)
def test_pieces_of_random_tokens_join_to_the_full_decoding(
    text: TextModel, ids: list[int], step: int, skip: bool
) -> None:
    joined = "".join(pieces(text.tokenizer.detokenizer(skip_special=skip), ids, step))
    assert joined == text.tokenizer.decode(ids, skip_special=skip)


@given(ids=st.lists(st.integers(6, 261), max_size=12))
def test_pieces_of_bare_bytes_join_to_the_full_decoding(text: TextModel, ids: list[int]) -> None:
    joined = "".join(pieces(text.tokenizer.detokenizer(), ids))
    assert joined == text.tokenizer.decode(ids)


@pytest.mark.parametrize("sample", CORPUS)
def test_no_piece_of_valid_text_holds_a_replacement_character(text: TextModel, sample: str) -> None:
    found = pieces(text.tokenizer.detokenizer(), text.tokenizer.encode(sample))
    assert "".join(found) == sample
    assert not any("\ufffd" in piece for piece in found)


def test_half_a_character_at_the_end_is_one_replacement_character(text: TextModel) -> None:
    ids = text.tokenizer.encode("\U0001f469")
    assert len(ids) > 1, "the sample must be split"
    detokenizer = text.tokenizer.detokenizer()
    assert detokenizer.feed(ids[:-1]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_are_skipped_unless_asked_for(text: TextModel) -> None:
    ids = [*text.tokenizer.encode("a"), 2]
    assert "".join(pieces(text.tokenizer.detokenizer(), ids)) == "a"
    shown = pieces(text.tokenizer.detokenizer(skip_special=False), ids)
    assert "".join(shown) == "a<|im_end|>"


def test_ids_beyond_the_vocabulary_have_no_text(text: TextModel) -> None:
    detokenizer = text.tokenizer.detokenizer()
    assert detokenizer.feed([999_999]) == ""
    assert detokenizer.feed([-1, *text.tokenizer.encode("a")]) == "a"


KINDS = {
    "sentencepiece": sentencepiece(),
    "gemma": sentencepiece(strips=False),
    "metaspace": metaspace(),
    "wordpiece": wordpiece(),
}


def whole_ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Ids, special ones among them, in which every character is whole."""
    size = KINDS[kind].vocab_size if kind != "gemma" else FIRST_BYTE
    size = FIRST_BYTE if kind == "sentencepiece" else size
    part = st.integers(0, size - 1).map(lambda i: [i])
    if kind in ("sentencepiece", "gemma"):
        chars = st.sampled_from(" \n\u00e9\u4f60\U0001f469").map(
            lambda char: [FIRST_BYTE + byte for byte in char.encode()]
        )
        part = part | chars
    return st.lists(part, max_size=30).map(lambda parts: [i for part in parts for i in part])


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), step=st.integers(1, 5), skip=st.booleans())
def test_pieces_join_to_the_full_decoding_in_every_vocabulary(
    kind: str, data: st.DataObject, step: int, skip: bool
) -> None:
    tokenizer, ids = KINDS[kind], data.draw(whole_ids(kind))
    found = pieces(tokenizer.detokenizer(skip_special=skip), ids, step)
    assert "".join(found) == tokenizer.decode(ids, skip_special=skip)
    assert not any("\ufffd" in piece for piece in found)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_the_bytes_of_tokens_join_to_the_text(kind: str, data: st.DataObject) -> None:
    tokenizer, ids = KINDS[kind], data.draw(whole_ids(kind))
    ids = [i for i in ids if i not in tokenizer.special_ids]
    detokenizer = tokenizer.detokenizer()
    joined = b""
    for i in ids:
        joined += tokenizer.piece(i, opens=detokenizer.is_opening)
        detokenizer.feed([i])
    assert joined.decode() == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_text_that_continues_is_what_follows_the_other_one(
    kind: str, data: st.DataObject
) -> None:
    tokenizer, ids = KINDS[kind], data.draw(whole_ids(kind))
    word = next(i for i in range(3, tokenizer.vocab_size) if b"hello" in tokenizer.piece(i))
    joined = "".join(pieces(tokenizer.detokenizer(continues=True), ids))
    before = tokenizer.decode([word], skip_special=True)
    assert before + joined == tokenizer.decode([word, *ids], skip_special=True)


@pytest.mark.parametrize(
    ("tokens", "texts"),
    [
        ([0x4F60, 0xE9], ["", "", "\u4f60", "", "\u00e9", ""]),
        ([0x4F60], ["", "", "\u4f60", ""]),
    ],
)
def test_bytes_of_a_character_are_held_until_it_is_whole(
    tokens: list[int], texts: list[str]
) -> None:
    ids = [FIRST_BYTE + byte for char in tokens for byte in chr(char).encode()]
    assert pieces(KINDS["sentencepiece"].detokenizer(), ids) == texts


def test_a_first_space_is_dropped_and_no_other() -> None:
    hello, world, space = 3, 4, 5
    detokenizer = KINDS["sentencepiece"].detokenizer
    assert pieces(detokenizer(), [hello, world]) == ["hello", " world", ""]
    assert pieces(detokenizer(), [space, hello, world]) == ["", " hello", " world", ""]
    assert pieces(detokenizer(continues=True), [hello, world]) == [" hello", " world", ""]


@pytest.mark.parametrize("ids", [[0] * 3000, [2] * 3000, [0, 1] * 1500])
def test_a_run_that_never_settles_is_decoded_in_windows_of_a_few_ids(ids: list[int]) -> None:
    """Bytes that are no characters, and tokens without text."""
    texts = ["\ufffd", "a", ""]
    sizes: list[int] = []

    def decode(window: Sequence[int]) -> str:
        sizes.append(len(window))
        text = "".join(texts[i] for i in window)
        return text if text.replace("\ufffd", "") == "" else text.replace("\ufffd", "?") + "\ufffd"

    pieces(WindowDetokenizer(decode), ids)
    assert max(sizes) < 50
    assert sum(sizes) < 50 * 2 * len(ids)
