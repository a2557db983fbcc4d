"""SentencePiece tokenizers of GGUF files: ids equal transformers' and a naive merge's."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gatewayd.text.tokenizer import Tokenizer as TextTokenizer
from gatewayd_engine.model.gguf.expansion.tokenizer_json import tokenizer_json
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from tests.engine.gguf_tokenizers import BYTE, CONTROL, SPACE, UNKNOWN, sentencepiece
from tests.engine.model.test_gguf_tokenizers import TEXTS, made, vocabulary

CORPUS = [*TEXTS, *Path(__file__).read_text("utf-8").splitlines()] * 2
FACTS = sentencepiece(CORPUS)


def naive(text: str, facts: dict[str, Any], *, has_prefix: bool = True) -> list[int]:
    """Ids: of all adjacent pairs the one whose result has the best score is merged, from the left.

    Special tokens and user-defined ones are found first; each other part gets a space.
    """
    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    scores = dict(zip(tokens, facts["tokenizer.ggml.scores"], strict=True))
    ids = {token: i for i, token in enumerate(tokens)}
    whole = [t for t, kind in zip(tokens, types, strict=True) if kind in (2, 3, 4)]
    hidden = {t for t, kind in zip(tokens, types, strict=True) if kind in (UNKNOWN, CONTROL, BYTE)}
    pattern = "|".join(map(re.escape, sorted(whole, key=len, reverse=True)))
    found: list[int] = []
    for part in re.split(f"({pattern})", text):
        if not part:
            continue
        if part in whole:
            found.append(ids[part])
            continue
        symbols = list((" " * has_prefix + part).replace(" ", SPACE))
        while True:
            pairs = [a + b for a, b in pairwise(symbols)]
            ranked = [(-scores[p], i) for i, p in enumerate(pairs) if p in ids and p not in hidden]
            if not ranked:
                break
            _, at = min(ranked)
            symbols[at : at + 2] = [pairs[at]]
        for symbol in symbols:
            encoded = [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
            found += [ids[symbol]] if symbol in ids else encoded
    return found


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("has_prefix", [True, False])
def test_ids_are_those_of_a_naive_merge(text: str, has_prefix: bool, tmp_path: Path) -> None:
    facts = FACTS if has_prefix else FACTS | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = made(facts, tmp_path)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == naive(text, FACTS, has_prefix=has_prefix)
    assert tokenizer.encode(text).ids == [1, *ids]


@pytest.mark.parametrize("text", [text for text in TEXTS if not text.startswith(" ")])
def test_ids_are_those_of_transformers_from_the_same_vocabulary(text: str, tmp_path: Path) -> None:
    import transformers
    from transformers.convert_slow_tokenizer import generate_merges

    tokens = FACTS["tokenizer.ggml.tokens"]
    ids = {token: i for i, token in enumerate(tokens)}
    skipped = tokens[:259] + tokens[-2:]
    scores = zip(tokens, FACTS["tokenizer.ggml.scores"], strict=True)
    merges = generate_merges(ids, scores, skipped)
    theirs: Any = transformers.LlamaTokenizer(vocab=ids, merges=merges, legacy=True)
    # Without them, as transformers knows no others than its three.
    facts = FACTS | {"tokenizer.ggml.token_type": [*FACTS["tokenizer.ggml.token_type"][:-2], 5, 5]}
    ours = made(facts, tmp_path).encode(text, add_special_tokens=False).ids
    assert ours == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_texts_are_decoded_as_they_were(has_prefix: bool, tmp_path: Path) -> None:
    facts = FACTS | {"tokenizer.ggml.add_space_prefix": has_prefix}
    tokenizer = TextTokenizer(json.dumps(tokenizer_json(vocabulary(facts, tmp_path))))
    # As in Llama 2's tokenizer, what follows a token that was found first gets one more space.
    for text in [text for text in TEXTS if not (has_prefix and "  " in text)]:
        ids = tokenizer.encode(text, add_special=True)
        assert tokenizer.decode(ids, skip_special=True) == text
        assert (
            b"".join(tokenizer.piece(one, opens=at == 0) for at, one in enumerate(ids[1:])).decode()
            == text
        )


def test_special_tokens_of_phi_3_take_the_spaces_after_them(tmp_path: Path) -> None:
    for architecture, taken in (("llama", 1), ("phi3", 2)):
        facts = FACTS | {"general.architecture": architecture}
        tokenizer: Tokenizer = made(facts, tmp_path)
        one, other = (tokenizer.encode(text).ids for text in ("<|end|>a", "<|end|>\n a"))
        assert (one == other) == (taken == 2)
        assert tokenizer.encode("<s>\n a").ids != tokenizer.encode("<s>a").ids


def test_a_vocabulary_without_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"words.gguf lacks tokenizer.ggml.scores"):
        made(FACTS | {"tokenizer.ggml.scores": None}, tmp_path)
    scores = [float("nan"), *FACTS["tokenizer.ggml.scores"][1:]]
    with pytest.raises(LoadError, match=r"scores must be numbers, not an array of"):
        made(FACTS | {"tokenizer.ggml.scores": scores}, tmp_path)


def test_tokens_of_too_many_pairs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd_engine.model.gguf.expansion.sentencepiece.MOST_MERGES", 10)
    with pytest.raises(LoadError, match="its tokens consist of more than 10 pairs of tokens"):
        made(FACTS, tmp_path)
