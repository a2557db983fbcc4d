"""Damaged GGUF files: one sentence or a served model, within the file's memory."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd.text.text_model import TextModel
from gatewayd_engine.model.gguf.expansion.model_folder import expanded, needs_expansion
from gatewayd_engine.model.gguf.header import read_header
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import SpecError
from tests.engine.gguf_files import convert
from tests.engine.gguf_tokenizers import sentencepiece
from tests.engine.model.test_gguf import loaded

CASES = 250
HUGE = (0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
ROOM = 4 << 20
"""Bytes that a start takes whatever the file is, and Python's objects for short texts."""
BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": [*"abcdefghij", "ab", "cd", "abcd", "<|im_end|>", "<|user|>"],
    "tokenizer.ggml.token_type": [*[1] * 13, 3, 3],
    "tokenizer.ggml.merges": ["a b", "c d", "ab cd"],
    "tokenizer.ggml.eos_token_id": 13,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}",
    "general.name": "some/model",
}
PIECES = sentencepiece(["abc abcd aba cd ab", "abab cdcd"], 20)


@pytest.fixture(scope="module", params=["byte level", "pieces", "latents"])
def whole(request: Any, make_checkpoint: Any, tmp_path_factory: Any) -> bytes:
    """A file that is served."""
    folder: Path = tmp_path_factory.mktemp("whole")
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    name, architecture = "llama", "llama"
    if request.param == "latents":
        name, architecture = "deepseek_v3", "deepseek2"
        sizes |= {"first_k_dense_replace": 0, "n_routed_experts": 2, "kv_lora_rank": 32}
    source = make_checkpoint(folder / "source", name, max_shard_size="1GB", **sizes)
    facts = PIECES if request.param == "pieces" else BYTE_LEVEL
    convert(source, folder, architecture, ("Q8_0", "F32"), **facts)
    return (folder / "model.gguf").read_bytes()


def damaged(data: bytes, header: int, draw: random.Random) -> bytes:
    """Some bytes of the header changed, removed, repeated, or the end cut."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(min(header, len(made) - 16))
        match draw.randrange(6):
            case 0:
                made[at] = draw.randrange(256)
            case 1:
                made[at] ^= 1 << draw.randrange(8)
            case 2 | 3:
                size = draw.choice((4, 8))
                number = draw.choice(HUGE) & (1 << 8 * size) - 1
                made[at : at + size] = number.to_bytes(size, "little")
            case 4:
                end = at + draw.randrange(1, 16)
                made[at:end] = b"" if draw.random() < 0.5 else made[at:end] * 2
            case _:
                del made[draw.randrange(len(made) // 2, len(made)) :]
    return bytes(made)


def serve(path: Path, our_logits: Callable[..., torch.Tensor]) -> None:
    """What a start reads of a file, and a first step."""
    folder = expanded(path)
    text = TextModel.from_folder(folder)
    ids = text.tokenizer.encode("abcd ab <|im_end|>", add_special=True)
    text.tokenizer.decode(ids)
    found = our_logits(loaded(folder), torch.tensor([1, 2, 3]))
    assert found.shape[0] == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_a_damaged_file_is_refused_in_one_sentence_or_served(
    seed: int,
    whole: bytes,
    our_logits: Callable[..., torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, cache = tmp_path / "model.gguf", tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    path.write_bytes(whole)
    header = min(tensor.begin for tensor in read_header(path).tensors.values())
    serve(path, our_logits)
    draw, served = random.Random(seed), 0
    for _ in range(CASES):
        data = damaged(whole, header, draw)
        path.write_bytes(data)
        tracemalloc.start()
        try:
            serve(path, our_logits)
            said = ""
        except ValueError as error:
            said = str(error)
            is_ours = isinstance(error, LoadError | SpecError)
            assert is_ours or said.startswith("the chat template does not compile: ")
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert said.isprintable()
        assert len(said) < 2000
        assert peak < 20 * len(data) + ROOM
        served += not said
        shutil.rmtree(cache, ignore_errors=True)
    # Both happen, so neither is all that is tested.
    assert CASES // 50 < served < CASES


@pytest.mark.parametrize("key", ["tokenizer.chat_template", "tokenizer.ggml.tokens", "scores"])
def test_a_length_that_only_the_weights_fill_is_refused(tmp_path: Path, key: str) -> None:
    """Of a model's file most bytes are weights: a length within it may still be wrong."""
    claimed = 3 << 30
    name = key.encode()
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(name)) + name
    match key:
        case "tokenizer.chat_template":
            value = struct.pack("<IQ", 8, claimed)
        case "tokenizer.ggml.tokens":
            value = struct.pack("<IIQQ", 9, 8, 1, claimed)
        case _:
            value = struct.pack("<IIQ", 9, 6, claimed // 4)
    path = tmp_path / "model.gguf"
    path.write_bytes(head + value)
    os.truncate(path, 8 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(LoadError, match="read"):
            read_header(path, {key})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < ROOM


@pytest.mark.parametrize("damage", ["missing", "empty", "another link", "one more"])
def test_a_damaged_folder_of_the_cache_is_made_once_more(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    folder = expanded(path)
    texts = {each.name: each.read_bytes() for each in folder.iterdir()}
    match damage:
        case "missing":
            (folder / "tokenizer.json").unlink()
        case "empty":
            (folder / "config.json").write_text("")
        case "another link":
            (folder / "model.gguf").unlink()
            (folder / "model.gguf").symlink_to("/dev/null")
        case _:
            (folder / "chat_template.jinja").write_text("{{ 1 }}")
    assert expanded(path) == folder
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == texts


def test_a_cache_that_others_can_write_is_refused(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    with pytest.raises(LoadError, match="set it to an absolute path"):
        expanded(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = expanded(path).parents[1]
    folder.chmod(0o777)
    with pytest.raises(LoadError, match="can be written by, other users"):
        expanded(path)


def test_a_part_that_the_system_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a folder above cannot be entered; the tests may run as root, who enters all."""

    def refuse(path: Path, **_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    for call in (needs_expansion, expanded):
        with pytest.raises(LoadError, match=r"model.gguf cannot be read: Permission denied"):
            call(tmp_path / "model.gguf")
