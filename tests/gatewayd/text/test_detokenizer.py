"""Pieces of text against the tokenizer's own decoding of all ids at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from gatewayd.text.detokenizer import Detokenizer, WindowDetokenizer
from gatewayd.text.model import TextModel
from gatewayd.text.tokenizer import Tokenizer

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


@settings(max_examples=500)
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


@settings(max_examples=300)
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


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    """A vocabulary with byte fallback whose spaces depend on the neighbours."""
    words = ["\u2581hello", "\u2581world", "\u2581", "h", "i", "!"]
    vocab = {token: i for i, token in enumerate(words)}
    vocab.update({f"<0x{byte:02X}>": len(words) + byte for byte in range(256)})
    backend = Backend(models.BPE(vocab, [], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend.to_str())


def test_another_vocabulary_is_decoded_by_windows(metaspace: Tokenizer) -> None:
    assert isinstance(metaspace.detokenizer(), WindowDetokenizer)
    ids = [0, 1, 5, 0]
    assert pieces(metaspace.detokenizer(), ids) == ["hello", " world", "!", " hello", ""]


@settings(max_examples=200)
@given(
    parts=st.lists(
        st.one_of(
            st.integers(0, 5).map(lambda i: [i]),
            st.sampled_from("\u00e9\u4f60\U0001f469").map(
                lambda char: [6 + byte for byte in char.encode()]
            ),
        ),
        max_size=12,
    )
)
def test_windows_join_to_the_full_decoding(metaspace: Tokenizer, parts: list[list[int]]) -> None:
    ids = [i for part in parts for i in part]
    found = pieces(metaspace.detokenizer(), ids)
    assert "".join(found) == metaspace.decode(ids)
    assert not any("\ufffd" in piece for piece in found)
