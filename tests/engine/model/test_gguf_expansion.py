"""Expansion of GGUF files: config.json equals the original's; names, parts, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gatewayd_engine.model.config.rope import RopeSpec
from gatewayd_engine.model.gguf.expansion.model_folder import expanded, needs_expansion
from gatewayd_engine.model.gguf.header import read_header
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.rotary_embedding import frequencies
from gatewayd_engine.model.spec import ModelSpec, read_spec
from gatewayd_quant_gguf.config import GgufConfig
from gatewayd_quant_gguf.strategy import Gguf
from tests.engine.gguf_blocks import packed
from tests.engine.gguf_families import FAMILIES, GLM_MOE, LLAMA3, TOKENIZER
from tests.engine.gguf_files import Put, convert, entry_of, metadata, written

Make = Callable[..., Path]
FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(make_checkpoint: Make, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """A checkpoint and a GGUF file of it."""

    def make(name: str, architecture: str, more: Any = (), **facts: Any) -> tuple[Path, Path]:
        changes = {"num_hidden_layers": 2, "max_shard_size": "1GB", **dict(more)}
        source = make_checkpoint(tmp_path / "source", name, **changes)
        folder = tmp_path / "made"
        folder.mkdir()
        convert(source, folder, architecture, ("F32",), **{**TOKENIZER, **facts})
        (folder / "config.json").unlink()
        return source, folder / "model.gguf"

    return make


def rewritten(
    path: Path,
    facts: Mapping[str, Any],
    more: tuple[Put, ...] = (),
    architecture: str = "llama",
) -> None:
    """A file, by default of a llama, once more, with other facts and more tensors."""
    data = path.read_bytes()
    puts = [
        Put(name, t.shape, t.type, data[t.begin : t.begin + t.nbytes])
        for name, t in read_header(path).tensors.items()
        if name not in {put.name for put in more}
    ]
    source = json.loads((path.parents[1] / "source" / "config.json").read_text())
    said = {**metadata(architecture, source), **TOKENIZER, **facts}
    entries = [entry_of(key, fact) for key, fact in said.items() if fact is not None]
    path.write_bytes(written(entries, [*puts, *more]))


def rounded(rope: RopeSpec) -> RopeSpec:
    return replace(rope, theta=float(torch.tensor(rope.theta)))


def comparable(spec: ModelSpec) -> ModelSpec:
    """Without what the forms of the weights decide, numbers as the file has them: float32."""
    return replace(
        spec,
        quantization=None,
        dtype="",
        norm_eps=float(torch.tensor(spec.norm_eps)),
        rope=rounded(spec.rope),
        layer_ropes=tuple(map(rounded, spec.layer_ropes)),
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_configuration_is_that_of_the_converted_model(name: str, file: Any) -> None:
    checkpoint, architecture, changes, facts = FAMILIES[name]
    source, path = file(checkpoint, architecture, changes, **facts)
    made = read_spec(expanded(path))
    assert comparable(made) == comparable(read_spec(source))


def test_stretched_frequencies_are_llama_3s(file: Any) -> None:
    source, path = file("llama", "llama", {"rope_parameters": LLAMA3})
    spec = read_spec(source)
    plain = 1.0 / spec.rope.theta ** (
        torch.arange(0, spec.rope.rotary_dim, 2) / spec.rope.rotary_dim
    )
    factors = plain / frequencies(spec.rope)
    assert 1 < sorted(factors)[len(factors) // 2] < 8
    name, shape = "rope_freqs.weight", tuple(factors.shape)
    rewritten(path, {}, (Put(name, shape, "F32", packed("F32", factors)),))
    assert comparable(read_spec(expanded(path))) == comparable(spec)
    rewritten(path, {}, (Put(name, shape, "F32", packed("F32", factors * 1.01)),))
    with pytest.raises(LoadError, match=r"model.gguf: rope_freqs.weight has other factors than"):
        expanded(path)
    rewritten(path, {}, (Put(name, shape, "F32", packed("F32", torch.ones(shape))),))
    assert read_spec(expanded(path)).rope.kind == "default"


def test_stretched_frequencies_of_llama_4_have_one_step(file: Any) -> None:
    rope = {**LLAMA3, "factor": 16.0, "high_freq_factor": 1.0}
    changes = {"rope_parameters": rope, "floor_scale": 8192, "head_dim": 64}
    source, path = file("llama4", "llama4", changes)
    spec = read_spec(source)
    turns = 8192 / (2 * torch.pi) * 500_000.0 ** -(torch.arange(0, 64, 2) / 64)
    factors = torch.where(turns > 1, 1.0, 16.0)
    assert sorted({*factors.tolist()}) == [1.0, 16.0]
    more = (Put("rope_freqs.weight", (32,), "F32", packed("F32", factors)),)
    rewritten(path, {}, more, "llama4")
    assert comparable(read_spec(expanded(path))) == comparable(spec)


def test_a_context_of_millions_of_llama_4_is_served_in_part(file: Any) -> None:
    _, path = file("llama4", "llama4", {"floor_scale": 8192})
    rewritten(path, {"llama4.context_length": 10_485_760}, architecture="llama4")
    assert read_spec(expanded(path)).max_model_len == 1 << 21


def test_layers_that_predict_further_tokens_are_not_read(file: Any) -> None:
    _, path = file("glm4_moe", "glm4moe", {}, **GLM_MOE)
    ends = {"attn_norm": (64,), "nextn.eh_proj": (64, 128)}
    more = tuple(
        Put(f"blk.2.{end}.weight", shape, "F32", packed("F32", torch.ones(shape)))
        for end, shape in ends.items()
    )
    rewritten(path, GLM_MOE, more, "glm4moe")

    def opened() -> Checkpoint:
        folder = expanded(path)
        spec = read_spec(folder)
        return Checkpoint.open(folder, spec, Gguf(GgufConfig()).scheme(spec.quantization))  # type: ignore[arg-type]

    assert opened().spec.draft_layers == 1
    unsaid = {"glm4moe.block_count": 2, "glm4moe.nextn_predict_layers": None}
    rewritten(path, {**GLM_MOE, **unsaid}, more, "glm4moe")
    with pytest.raises(LoadError, match=r"unexpected tensors: model.layers.2.input_layernorm"):
        opened()
    rewritten(path, {**GLM_MOE, "glm4moe.nextn_predict_layers": 3}, more, "glm4moe")
    with pytest.raises(LoadError, match=r"block_count must be above 3, the layers for further"):
        expanded(path)


def test_a_folder_has_the_models_name_and_files(file: Any, cache: Path) -> None:
    _, path = file("llama", "llama", **{"general.name": "some-org/Some Model 1B"})
    made = expanded(path)
    assert made.name == "Some Model 1B"
    assert cache in made.parents
    assert sorted(one.name for one in made.iterdir()) == sorted([*FILES, "model.gguf"])
    assert (made / "model.gguf").resolve() == path.resolve()
    assert expanded(path) == expanded(path.parent) == made
    # No half of a folder is left.
    assert len([*(cache / "gatewayd" / "gguf").iterdir()]) == 1


@pytest.mark.parametrize("name", [None, "", "..", "a/..", "x\ny", "x" * 201, 7, "org/"])
def test_a_file_without_a_usable_name_is_called_as_it_is(name: Any, file: Any) -> None:
    _, path = file("llama", "llama", **{"general.name": name})
    assert expanded(path.rename(path.with_name("mine.Q4.gguf"))).name == "mine.Q4"


def test_a_file_with_other_content_has_another_folder(file: Any) -> None:
    _, path = file("llama", "llama")
    before = expanded(path)
    rewritten(path, {"llama.context_length": 512})
    after = expanded(path)
    assert before != after
    assert [read_spec(folder).max_model_len for folder in (before, after)] == [1024, 512]


def test_a_file_needs_no_ending(file: Any) -> None:
    _, path = file("llama", "llama")
    blob = path.rename(path.with_name("0a1b2c"))
    assert needs_expansion(blob)
    made = expanded(blob)
    assert made.name == "0a1b2c"
    assert (made / "0a1b2c.gguf").resolve() == blob.resolve()
    assert read_spec(made).quantization is not None
    blob.write_text("# no GGUF file")
    with pytest.raises(LoadError, match=r"0a1b2c is no GGUF file: it begins with b'# no'"):
        expanded(blob)


def test_folders_with_a_config_json_stay_as_they_are(file: Any, tmp_path: Path) -> None:
    source, path = file("llama", "llama")
    assert needs_expansion(path)
    assert needs_expansion(path.parent)
    assert needs_expansion(tmp_path / "missing.gguf")
    assert not needs_expansion(source)
    (path.parent / "config.json").write_text("{}")
    assert not needs_expansion(path.parent)


def test_tokens_that_end_an_answer_are_all_of_them(file: Any) -> None:
    tokens = ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<eos>", "x"]
    types = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 1, 4, 3]}
    ids = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 4}
    _, path = file("llama", "llama", **types, **ids, **{"tokenizer.ggml.merges": []})
    # Not that of an ordinary token that is spelled so.
    assert read_spec(expanded(path)).eos_token_ids == (0, 1, 3, 4)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"llama.block_count": None}, "model.gguf lacks llama.block_count"),
        ({"llama.embedding_length": 0}, "llama.embedding_length must be an integer from 1"),
        ({"llama.attention.head_count": "4"}, "head_count must be an integer from 1 to"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "must be a number above 0"),
        (
            {"llama.context_length": 2**31 - 1},
            "context_length must be an integer from 1 to 2097152",
        ),
        ({"llama.context_length": ["x"]}, "must be an integer from 1 to 2147483647, not an array"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'; read from a GGUF file are none"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 256,
                "llama.rope.scaling.attn_factor": 0.5,
            },
            "llama.rope.scaling.attn_factor must be 1, not 0.5",
        ),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv', which is not known"),
        ({"tokenizer.ggml.pre": "new-words"}, "pre is 'new-words', which is not known here;"),
        ({"tokenizer.ggml.tokens": None}, "model.gguf lacks tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a", "c", "d"]}, "tokens 0 and 2 are both 'a'"),
        ({"tokenizer.ggml.tokens": ["a" * 1025, *"bcde"]}, "token 0 has 1025 characters; at most"),
        ({"tokenizer.ggml.tokens": list(map(str, range(321)))}, "token_type must be an array of"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type must be an array of 5 numbers"),
        ({"tokenizer.ggml.eos_token_id": 5}, "eos_token_id must be below 5, the number of tokens"),
        ({"tokenizer.ggml.merges": ["a b", "ab"]}, "has 'ab' as number 1, which merges no"),
        ({"tokenizer.ggml.merges": ["b a"]}, "has 'b a' as number 0, which merges no two"),
        ({"tokenizer.chat_template": 3}, "tokenizer.chat_template must be a text, not 3"),
        ({"general.architecture": "mamba"}, "general.architecture is 'mamba'; read are llama"),
    ],
)
def test_what_cannot_be_served_is_named(facts: dict[str, Any], sentence: str, file: Any) -> None:
    _, path = file("llama", "llama")
    rewritten(path, facts)
    with pytest.raises(LoadError) as raised:
        expanded(path)
    assert sentence in str(raised.value)
    assert "model.gguf" in str(raised.value)
    assert str(raised.value).isprintable()


def test_more_tokens_than_embeddings_are_named(file: Any) -> None:
    _, path = file("llama", "llama")
    tokens = [str(i) for i in range(321)]
    no_types: dict[str, Any] = {"tokenizer.ggml.token_type": None, "tokenizer.ggml.merges": []}
    rewritten(path, {"tokenizer.ggml.tokens": tokens, **no_types})
    with pytest.raises(LoadError, match="has 321 tokens, but embeddings of 320"):
        expanded(path)


def test_a_missing_file_and_a_read_only_cache_are_named(
    file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LoadError, match=r"missing.gguf is no file"):
        expanded(tmp_path / "missing.gguf")
    _, path = file("llama", "llama")
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "plain"))
    with pytest.raises(LoadError, match=r"cannot be written, .* set XDG_CACHE_HOME to another"):
        expanded(path)


def test_any_part_of_a_model_stands_for_all(file: Any, tmp_path: Path) -> None:
    source, path = file("llama", "llama")
    data, tensors = path.read_bytes(), read_header(path).tensors
    puts = [
        Put(name, t.shape, t.type, data[t.begin : t.begin + t.nbytes])
        for name, t in tensors.items()
    ]
    said = {**metadata("llama", json.loads((source / "config.json").read_text())), **TOKENIZER}
    split = {"split.count": 3, "split.tensors.count": len(puts)}
    paths = [tmp_path / f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    # As gguf-split writes them: the metadata are in the first, which may have no tensors.
    shares: list[tuple[dict[str, Any], list[Put]]] = [(said, []), ({}, puts[:7]), ({}, puts[7:])]
    for number, (part, (facts, share)) in enumerate(zip(paths, shares, strict=True)):
        entries = [entry_of(*fact) for fact in {**facts, "split.no": number, **split}.items()]
        part.write_bytes(written(entries, share))
    # Other models in the folder do not matter.
    (tmp_path / "n-00001-of-00002.gguf").write_bytes(b"")
    (tmp_path / "m.gguf").write_bytes(b"")
    made = {expanded(part) for part in paths}
    assert len(made) == 1
    (folder,) = made
    assert sorted(folder.glob("*.gguf")) == [folder / part.name for part in paths]
    spec = read_spec(folder)
    assert comparable(spec) == comparable(read_spec(source))
    scheme = Gguf(GgufConfig()).scheme(spec.quantization)  # type: ignore[arg-type]
    checkpoint = Checkpoint.open(folder, spec, scheme)
    for name, tensor in load_file(source / "model.safetensors").items():
        assert torch.equal(checkpoint.tensor(name), tensor.float())
    paths[1].unlink()
    with pytest.raises(LoadError, match=r"lacks m-00002-of-00003.gguf"):
        expanded(paths[2])
    paths[0].rename(tmp_path / "first.gguf")
    with pytest.raises(LoadError, match=r"first.gguf: split.count is 3, but the other parts"):
        expanded(tmp_path / "first.gguf")


def test_a_base_of_wavelengths_that_is_not_llamas_must_be_in_the_file(file: Any) -> None:
    sizes = {"num_hidden_layers": 3, "query_pre_attn_scalar": 16}
    bases = {"gemma3.rope.freq_base": None, "gemma3.attention.sliding_window": 16}
    _, path = file("gemma3_scaled", "gemma3", sizes, **bases)
    with pytest.raises(LoadError, match=r"lacks gemma3\.rope\.freq_base$"):
        expanded(path)


def test_the_bases_of_ollamas_converter_are_read(file: Any) -> None:
    sizes = {"num_hidden_layers": 3, "query_pre_attn_scalar": 16}
    facts = {
        "gemma3.rope.freq_base": None,
        "gemma3.rope.global.freq_base": 7e5,
        "gemma3.rope.local.freq_base": 3e4,
        "gemma3.attention.sliding_window": 16,
        "gemma3.attention.sliding_window_pattern": [True, False, True],
    }
    _, path = file("gemma3_scaled", "gemma3", sizes, **facts)
    assert [rope.theta for rope in read_spec(expanded(path)).layer_ropes] == [3e4, 7e5, 3e4]
