"""Tokenizers of GGUF files: ids equal those of the tokenizers that they were converted from."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from gatewayd.text.text_model import TextModel
from gatewayd_engine.model import embedded
from gatewayd_engine.model.gguf.expansion.byte_level import COMPOSING
from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.expansion.pre_tokenizers import WORD_SPLITS
from gatewayd_engine.model.gguf.expansion.tokenizer_json import (
    WANTED,
    tokenizer_config_json,
    tokenizer_json,
)
from gatewayd_engine.model.gguf.expansion.vocabulary import GgufVocabulary
from gatewayd_engine.model.gguf.header import read_header
from tests.engine.gguf_files import entry_of, written
from tests.engine.gguf_tokenizers import byte_level

NANO = embedded.folder("nano")
TEXTS = [
    "",
    " ",
    "Hello, world! It's 3:45 o'clock; we'LL see.",
    "  two spaces,   three,\ttab\t\ttabs, \n\n\n newlines \r\n and   trailing   ",
    "1 12 123 1234 12345 3.14159 1e-9 0x1F ½ ²³ ١٢٣ Ⅻ",
    "Grüße aus Köln: naïve café, Ærøskøbing, łódź, ĳ, ﬁn, e\u0301",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم",  # noqa: RUF001
    "你好，世界！今天是2026年。こんにちは世界。안녕하세요 세계",  # noqa: RUF001
    "नमस्ते दुनिया ไทยภาษา ខ្មែរ",
    "👋🏽 👩‍👩‍👧‍👦 🇩🇪 🦙🦙 ☺️ ✔︎",
    'def f(x: int) -> str:\n    """Doc."""\n    return f"{x!r}" if x != 0 else \'none\'\n',
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|> b <tool_call>{}</tool_call><|endoftext|>",
    "https://example.org/a_b?c=d&e=%20#f ... --- === !!! ??? @#$%^&*()",
    "\u00a0\u2003\u3000\u200b\ufeff x \x00 \x7f",
    "camelCase snake_case SCREAMING_CASE kebab-case I'm you've THEY'D",
]


def vocabulary(facts: Mapping[str, Any], folder: Path) -> GgufVocabulary:
    """The tokens of a file that has nothing else."""
    path = folder / "words.gguf"
    path.write_bytes(
        written([entry_of(*fact) for fact in facts.items() if fact[1] is not None], [])
    )
    return GgufVocabulary.of_metadata(GgufFields(read_header(path, WANTED).metadata, path.name))


def made(facts: Mapping[str, Any], folder: Path) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary(facts, folder))))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_embedded_models_tokenizer(text: str, tmp_path: Path) -> None:
    ours, theirs = made(byte_level(NANO), tmp_path), Tokenizer.from_file(f"{NANO}/tokenizer.json")
    ids = theirs.encode(text).ids
    assert ours.encode(text).ids == ids
    for is_skipped in (False, True):
        assert ours.decode(ids, skip_special_tokens=is_skipped) == theirs.decode(
            ids, skip_special_tokens=is_skipped
        )


def test_a_chat_is_rendered_and_encoded_as_by_the_original(tmp_path: Path) -> None:
    found = vocabulary(byte_level(NANO), tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(found)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config_json(found)))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is <|im_end|> for?"},
    ]
    ours, theirs = (
        TextModel.from_folder(folder).render_chat(messages, limit=1000).encode()
        for folder in (tmp_path, NANO)
    )
    assert ours == theirs
    assert ours.count(2) == 2  # not the one that is spelled


def test_a_template_for_tools_is_used_for_tools(tmp_path: Path) -> None:
    facts = byte_level(NANO) | {"tokenizer.chat_template.tool_use": "{{ tools }}"}
    assert tokenizer_config_json(vocabulary(facts, tmp_path))["chat_template"] == [
        {"name": "default", "template": facts["tokenizer.chat_template"]},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]


@pytest.mark.parametrize("name", WORD_SPLITS)
def test_every_kind_of_words_keeps_all_characters(name: str, tmp_path: Path) -> None:
    tokenizer = made(byte_level(NANO, name), tmp_path)
    for text in TEXTS:
        kept = unicodedata.normalize("NFC", text) if name in COMPOSING else text
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == kept


@pytest.mark.parametrize(
    ("name", "kind"), [("qwen2", Qwen2Tokenizer), ("qwen35", Qwen3_5Tokenizer)]
)
def test_ids_are_those_of_the_class_in_transformers(name: str, kind: Any, tmp_path: Path) -> None:
    facts = byte_level(NANO, name)
    merges = [tuple(one.rsplit(" ", 1)) for one in facts["tokenizer.ggml.merges"]]
    words = {text: i for i, text in enumerate(facts["tokenizer.ggml.tokens"])}
    theirs, ours = kind(vocab=words, merges=merges), made(facts, tmp_path)
    for text in TEXTS:
        if "<|" not in text:  # their class has special tokens of its own
            assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.parametrize(
    ("facts", "ids"),
    [
        ({}, [38]),
        ({"tokenizer.ggml.add_bos_token": True}, [1, 38]),
        ({"tokenizer.ggml.add_eos_token": True}, [38, 2]),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, [1, 38, 2]),
        ({"tokenizer.ggml.add_bos_token": None}, [1, 38]),  # as the kind says
    ],
)
def test_tokens_are_put_around_a_text_as_the_file_says(
    facts: dict[str, Any], ids: list[int], tmp_path: Path
) -> None:
    tokenizer = made({**byte_level(NANO), "tokenizer.ggml.bos_token_id": 1, **facts}, tmp_path)
    assert tokenizer.encode("A").ids == ids
    assert tokenizer.encode("A", add_special_tokens=False).ids == [38]


def test_a_word_that_is_a_token_is_taken_whole_where_the_kind_says_so(tmp_path: Path) -> None:
    facts = byte_level(NANO)
    # No merge makes it.
    facts["tokenizer.ggml.tokens"][4000] = "Zyxwv"
    facts["tokenizer.ggml.merges"] = [
        one for one in facts["tokenizer.ggml.merges"] if set(one) <= set("abc ")
    ]
    assert made(facts, tmp_path).encode("Zyxwv").ids == [4000]
    assert len(made({**facts, "tokenizer.ggml.pre": "qwen2"}, tmp_path).encode("Zyxwv").ids) == 5


def test_without_types_tokens_of_a_special_meaning_are_special(tmp_path: Path) -> None:
    facts = {**byte_level(NANO), "tokenizer.ggml.token_type": None}
    tokenizer = made(facts, tmp_path)
    assert tokenizer.encode("a<|im_end|>").ids[-1] == 2
    assert tokenizer.encode("a<tool_call>").ids[-1] != 3
