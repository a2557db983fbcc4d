"""SentencePiece's and Mistral's tokenizer files: ids equal the originals'; refusals."""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import Tokenizer as TextTokenizer
from gatewayd_engine.model import embedded
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.tokenizer_files.conversion import with_tokenizer
from tests.engine.gguf_tokenizers import sentencepiece
from tests.engine.model.test_gguf_sentencepiece import CORPUS, naive
from tests.engine.model.test_gguf_tokenizers import TEXTS
from tests.engine.tokenizer_files import NUM_SPECIAL, model_proto, naive_tekken, tekken_of

FACTS = sentencepiece(CORPUS)
PLAIN: dict[str, Any] = {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"}
CASES = 200
MEMORY = 64 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model without a tokenizer, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder := tmp_path / "model").mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def texts(count: int = 200) -> list[str]:
    """Lines of this repository, and random ones of difficult characters."""
    draw = random.Random(1)
    # No accent alone: normalizers of both libraries differ where it follows what carries none.
    letters = "abc  .\n_\u00e9\ufb01\u65e5\u3000\u2167\U0001f389 tion0"
    made = ["".join(draw.choices(letters, k=draw.randrange(40))) for _ in range(count)]
    return [*TEXTS, *draw.sample(CORPUS, min(count, len(CORPUS))), *made]


def write(folder: Path, data: bytes, **config: Any) -> None:
    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def converted(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(with_tokenizer(folder) / "tokenizer.json"))


@pytest.mark.parametrize("has_prefix", [True, False])
def test_ids_of_a_sentencepiece_model_are_those_of_a_naive_merge(
    has_prefix: bool, folder: Path
) -> None:
    write(folder, model_proto(FACTS, normalizer=[(3, int(has_prefix)), (4, 0)]))
    tokenizer = converted(folder)
    for text in TEXTS:
        ids = naive(text, FACTS, has_prefix=has_prefix)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        assert tokenizer.encode(text).ids == [1, *ids]


@pytest.mark.parametrize(
    "options",
    [
        {**PLAIN, "byte_fallback": True},
        {**PLAIN, "byte_fallback": True, "add_dummy_prefix": False},
        # Compatible characters, and neither spaces around a text nor several in it.
        {"byte_fallback": True},
        {"byte_fallback": False},
        {
            **PLAIN,
            "add_dummy_prefix": False,
            "user_defined_symbols": ["\u2581\u2581", "\u2581\u2581\u2581", "<sep>"],
        },
    ],
    ids=["llama", "no prefix", "normalized", "no bytes", "runs of spaces"],
)
def test_ids_are_those_of_sentencepiece(options: dict[str, Any], folder: Path) -> None:
    spm = pytest.importorskip("sentencepiece")
    data = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in CORPUS if line.strip()]),
        model_writer=data,
        vocab_size=600,
        model_type="bpe",
        minloglevel=2,
        **options,
    )
    theirs = spm.SentencePieceProcessor(model_proto=data.getvalue())
    write(folder, data.getvalue())
    # Special tokens that are spelled in a text are ordinary text to both.
    ours = TextTokenizer.from_folder(with_tokenizer(folder))
    for text in [*texts(), "a<sep>b", "<sep>  c"]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.encode(text, add_special=True) == [1, *ids]
        if options.get("byte_fallback"):
            assert ours.decode(ids) == theirs.decode(ids)


def test_ids_of_a_tekken_file_are_those_of_a_naive_merge(folder: Path) -> None:
    file = tekken_of(embedded.folder())
    (folder / "tekken.json").write_text(json.dumps(file))
    tokenizer = converted(folder)
    for text in [*texts(), "[INST] a[/INST]</s>"]:
        ids = naive_tekken(text, file)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        assert tokenizer.encode(text).ids == [1, *ids]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.get_vocab_size() == file["config"]["default_vocab_size"]


def test_ids_of_a_tekken_file_are_those_of_tiktoken(folder: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    file = tekken_of(embedded.folder())
    (folder / "tekken.json").write_text(json.dumps(file))
    ours = TextTokenizer.from_folder(with_tokenizer(folder))
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in file["vocab"][:-1]}
    theirs = tiktoken.Encoding(
        "t", pat_str=file["config"]["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    for text in texts():
        ids = [NUM_SPECIAL + one for one in theirs.encode(text)]
        assert ours.encode(text) == ids, text


def test_added_tokens_are_found_in_texts(folder: Path) -> None:
    size = len(FACTS["tokenizer.ggml.tokens"])
    added = {
        "2": {"content": "</end>", "special": True},
        str(size): {"content": "<|tool|>", "special": False},
        str(size + 3): {"content": "<|user|>", "special": True},
    }
    write(folder, model_proto(FACTS), added_tokens_decoder=added, legacy=False)
    (folder / "added_tokens.json").write_text(json.dumps({"<|tool|>": size, "<x>": size + 1}))
    text = TextModel.from_folder(with_tokenizer(folder)).tokenizer
    found = text.encode("<|user|><|tool|><x></end>", trusted=True)
    assert found == [size + 3, size, size + 1, 2]
    assert {size + 3, 2} <= text.special_ids
    assert size not in text.special_ids
    # With legacy false a text gets its space once, and not behind special tokens too.
    assert text.encode("<|user|>a", trusted=True)[1:] != text.encode("a")
    assert text.decode(text.encode("a b")) == "a b"


def test_the_folder_has_the_models_files_and_is_made_once(folder: Path, tmp_path: Path) -> None:
    write(folder, model_proto(FACTS))
    (folder / "model.safetensors").write_bytes(b"weights")
    made = with_tokenizer(folder)
    assert made.name == "model"
    assert tmp_path / "cache" in made.parents
    assert {path.name for path in made.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json"),
        *("tokenizer.model", "tokenizer_config.json"),
    }
    assert (made / "model.safetensors").resolve() == folder / "model.safetensors"
    before = (made / "tokenizer.json").stat().st_mtime_ns
    assert with_tokenizer(folder) == made
    assert (made / "tokenizer.json").stat().st_mtime_ns == before
    assert not (folder / "tokenizer.json").exists()
    # What the tokenizer's files say now is another folder; a tokenizer.json needs none.
    write(folder, model_proto(FACTS), add_bos_token=False)
    assert with_tokenizer(folder) != made
    shutil.copy(made / "tokenizer.json", folder)
    assert with_tokenizer(folder) == folder


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("tokenizer.model", b"", "has no pieces"),
        ("tokenizer.model", b"IQ== 0\nIg== 1\n", "tokenizer.model is no SentencePiece model"),
        ("tokenizer.model", model_proto(FACTS)[:-1], "is cut"),
        ("tokenizer.model", model_proto(FACTS, trainer=[(3, 1)]), "of the kind unigram; only bpe"),
        ("tokenizer.model", model_proto(FACTS, trainer=[(3, 2), (24, 1)]), "writes spaces otherw"),
        ("tekken.json", b"[]", "tekken.json must hold a JSON object"),
        ("tekken.json", b"{}", "tekken.json lacks config"),
        ("spiece.model", b"", "spiece.model is not converted here"),
        ("qwen.tiktoken", b"", "qwen.tiktoken is not converted here"),
    ],
)
def test_what_is_not_converted_is_named_with_the_command(
    name: str, data: bytes, sentence: str, folder: Path
) -> None:
    (folder / name).write_bytes(data)
    with pytest.raises(LoadError) as raised:
        with_tokenizer(folder)
    assert sentence in str(raised.value)
    assert f"T.from_pretrained('{folder}').save_pretrained('{folder}')" in str(raised.value)


def test_a_large_file_is_refused_unread(folder: Path) -> None:
    with (folder / "tokenizer.model").open("wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(LoadError, match=r"tokenizer\.model has more than 33554432 bytes"):
        with_tokenizer(folder)


@pytest.mark.parametrize("kind", ["tokenizer.model", "tekken.json"])
def test_a_damaged_file_is_refused_in_one_sentence_or_converted(kind: str, folder: Path) -> None:
    small = sentencepiece(["abc abcd aba cd ab", "abab cdcd"], 30)
    whole = model_proto(small) if kind == "tokenizer.model" else b""
    if not whole:
        file = tekken_of(embedded.folder())
        file["vocab"] = file["vocab"][:300]
        file["config"]["default_vocab_size"] = 300
        whole = json.dumps(file).encode()
    draw, refused = random.Random(kind), 0
    for _ in range(CASES):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(data))
            match draw.randrange(4):
                case 0:
                    data[at] = draw.randrange(256)
                case 1:
                    data[at : at + 4] = draw.randbytes(4) if draw.random() < 0.5 else b"\xff" * 9
                case 2:
                    del data[at : at + draw.randrange(9)]
                case _:
                    del data[len(data) - draw.randrange(40) :]
        (folder / kind).write_bytes(data)
        tracemalloc.start()
        said, is_ours = "", True
        try:
            path = with_tokenizer(folder) / "tokenizer.json"
            TextTokenizer(path.read_text("utf-8")).encode("abcd ab <s>", add_special=True)
        except ValueError as error:
            said = str(error)
            is_ours = isinstance(error, LoadError) or said.startswith("not a tokenizer.json")
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert is_ours
        assert said.isprintable()
        assert peak < MEMORY
        refused += bool(said)
    assert 0 < refused < CASES
