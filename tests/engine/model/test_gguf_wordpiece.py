"""WordPiece tokenizers of GGUF files: ids equal transformers' from the same vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.model.gguf.expansion.wordpiece import LOWERCASE, STRIP_ACCENTS
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from tests.engine.gguf_tokenizers import SPACE, wordpiece
from tests.engine.model.test_gguf_tokenizers import TEXTS, made

FACTS, IDS = wordpiece([*TEXTS, *Path(__file__).read_text("utf-8").splitlines()])
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as BERT's": ({}, {}),
    "cased": ({LOWERCASE: False}, {"do_lower_case": False}),
    "accents": ({STRIP_ACCENTS: False}, {"strip_accents": False}),
}


@pytest.mark.parametrize("text", [*TEXTS, "Reading files, the [MASK] of Ünïcode!"])
@pytest.mark.parametrize("name", SETTINGS)
def test_ids_are_those_of_transformers(name: str, text: str, tmp_path: Path) -> None:
    import transformers

    facts, options = SETTINGS[name]
    theirs: Any = transformers.BertTokenizer(vocab=IDS, **options)
    ours = made(FACTS | facts, tmp_path)
    ids = theirs.encode(text)
    assert ours.encode(text).ids == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_tokens_around_a_text_are_those_of_the_file(tmp_path: Path) -> None:
    facts = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_sep_token": False}
    whole = made(FACTS, tmp_path).encode("files").ids
    assert made(FACTS | facts, tmp_path).encode("files").ids == whole[1:-1]


def test_tokens_that_only_marks_tell_apart_are_refused(tmp_path: Path) -> None:
    tokens = [*FACTS["tokenizer.ggml.tokens"][:-2], "##x", f"{SPACE}####x"]
    with pytest.raises(LoadError, match=r"words.gguf: tokenizer.ggml.tokens must be texts that"):
        made(FACTS | {"tokenizer.ggml.tokens": tokens}, tmp_path)


def test_a_vocabulary_without_a_token_for_unknown_words_is_refused(tmp_path: Path) -> None:
    facts = {
        "tokenizer.ggml.tokens": FACTS["tokenizer.ggml.tokens"][:90],
        "tokenizer.ggml.token_type": FACTS["tokenizer.ggml.token_type"][:90],
        "tokenizer.ggml.unknown_token_id": None,
    }
    with pytest.raises(LoadError, match=r"unknown_token_id must be the id of a token, not None"):
        made(FACTS | facts, tmp_path)
