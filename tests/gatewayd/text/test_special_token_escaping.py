"""Special token escaping: spelled ones stay text, as for a tokenizer without them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gatewayd.errors import ContextLengthExceeded, InvalidRequest
from gatewayd.text.special_tokens import SpecialTokenEscaper
from gatewayd.text.template import ChatTemplate
from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import Tokenizer
from tests.gatewayd.small_tokenizers import sentencepiece

USER = AddedToken("<|user|>", special=True, normalized=False, rstrip=True)
END = AddedToken("<|end|>", special=True, normalized=False, lstrip=True, rstrip=True)
WORD = AddedToken("hello", special=True, normalized=False, single_word=True)
SPELLED = AddedToken("<x>", special=True, normalized=False, lstrip=True)
TEMPLATE = ChatTemplate(
    "{% for m in messages %}<|user|>\n{{ m.content }} <|end|>\n{% endfor %}<s>whello hellow hello w"
)
contents = st.lists(st.text("helowrd \n\u00e9<x>", max_size=12), min_size=1, max_size=3)


def unigram(*added: AddedToken) -> Tokenizer:
    """With a space mark before the first token of a text only."""
    chars = [(char, -5.0) for char in "helowrdxus|in<>/\u2581"]
    backend = Backend(models.Unigram([("<unk>", 0.0), ("<s>", 0.0), *chars], 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["<s>", *added])
    return Tokenizer(backend.to_str())


def bpe(*added: AddedToken) -> Tokenizer:
    return sentencepiece(added=added)


KINDS: dict[str, tuple[TextModel, TextModel]] = {
    make.__name__: (
        TextModel(make(USER, END, WORD, SPELLED), TEMPLATE),
        TextModel(make(USER, END, WORD), TEMPLATE),
    )
    for make in (bpe, unigram)
}


def messages(texts: list[str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=contents)
async def test_the_careful_path_encodes_as_if_what_is_spelled_were_no_special_token(
    kind: str, texts: list[str]
) -> None:
    model, without = KINDS[kind]
    texts = [text.replace("hello", "") for text in texts]
    ids = await model.encode_chat(messages([*texts, "<x> o"]), limit=999)
    expected = await without.encode_chat(messages([*texts, "<x> o"]), limit=999)
    assert ids == expected
    text = TEMPLATE.render(messages([*texts, "<x> o"]))
    assert ids == without.tokenizer.encode(text, trusted=True)


async def test_genuine_tokens_keep_their_ids_and_swallow_spaces() -> None:
    model, _ = KINDS["bpe"]
    special = model.tokenizer.special_texts
    ids = await model.encode_chat(messages(["<x>"]), limit=999)
    assert ids[0] == special["<|user|>"]
    assert special["<x>"] not in ids
    assert special["hello"] in ids
    tail = ids[ids.index(special["<|end|>"]) + 1 :]
    assert tail[0] == special["<s>"], "the newline after the end belongs to it"


@given(text=st.text("helo <x>|end\u00e9", max_size=30), add_special=st.booleans())
def test_a_text_that_is_not_trusted_has_no_special_tokens(text: str, add_special: bool) -> None:
    tokenizer = KINDS["bpe"][0].tokenizer
    oracle = Backend.from_str(tokenizer._trusting.to_str())
    oracle.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special=add_special)
    assert ids == oracle.encode(text, add_special_tokens=add_special).ids


@given(sample=st.text(max_size=40))
def test_the_embedded_vocabulary_reads_text_as_the_tokenizer_itself(
    text: TextModel, sample: str
) -> None:
    assert text.tokenizer.encode(sample) == text.tokenizer.encode(sample, trusted=True)


@pytest.mark.parametrize("make", [bpe, unigram])
def test_added_tokens_keep_the_ids_that_the_tokenizer_gives_them(
    make: Callable[..., Tokenizer],
) -> None:
    """A file may have other ids for them than the vocabulary; the vocabulary wins."""
    spec: dict[str, Any] = json.loads(make(USER, END)._trusting.to_str())
    for token in spec["added_tokens"]:
        token["id"] += 5
    spec["added_tokens"].append({**spec["added_tokens"][-1], "content": "<y>", "special": False})
    tokenizer = Tokenizer(json.dumps(spec))
    for sample in ("<|user|>\n", "<|end|>", "<s>", "h<y>w"):
        disguised = tokenizer.rename_special_tokens(sample)
        assert (disguised == sample) == (sample == "h<y>w")
        assert tokenizer.encode(disguised) == tokenizer.encode(sample, trusted=True)


async def test_a_far_too_long_chat_is_refused_before_the_careful_work(
    text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextModel, "_encode_marked", None)
    with pytest.raises(ContextLengthExceeded):
        await text.encode_chat(messages(["<|im_end|>" * 10_000]), limit=16)


def test_every_private_use_character_may_be_the_mark() -> None:
    private = [chr(code) for code in range(0x10000) if unicodedata.category(chr(code)) == "Co"]
    assert len(private) == 6400
    special = re.compile("<x>")
    escaper = SpecialTokenEscaper(special, ["".join(private[:-1])])
    assert escaper.escape("<x>") == f"{private[-1]}0{private[-1]}"
    with pytest.raises(InvalidRequest, match="every private-use character"):
        SpecialTokenEscaper(special, ["".join(private)])
