"""GGUF models: logits equal transformers'; refusals."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.gguf.header import read_header
from gatewayd_engine.model.linears import select_cpu
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.rotary_embedding import frequencies
from gatewayd_engine.model.spec import SpecError, read_spec
from gatewayd_quant_gguf.config import GgufConfig
from gatewayd_quant_gguf.strategy import Gguf
from tests.engine.gguf_blocks import BLOCKS, packed
from tests.engine.gguf_files import Put, convert, entry_of, metadata, written

Make = Callable[..., Path]
ALL = (*BLOCKS, "F16", "BF16", "F32")
IDS = torch.arange(2, 42)
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "max_shard_size": "1GB",
}


def opened(folder: Path, *, is_packed: bool = False) -> Checkpoint:
    spec = read_spec(folder)
    assert spec.quantization is not None
    scheme = Gguf(GgufConfig(packed=is_packed)).scheme(spec.quantization)
    return Checkpoint.open(folder, spec, scheme)


def loaded(folder: Path, *, is_packed: bool = False) -> Decoder:
    checkpoint = opened(folder, is_packed=is_packed)
    return read(checkpoint, torch.float32, "cpu", lambda fraction: None)


@pytest.fixture
def converted(make_checkpoint: Make, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """A checkpoint as GGUF, and the same numbers as safetensors."""

    def make(name: str, architecture: str, kinds: Sequence[str] = ALL, **changes: Any) -> Any:
        source = make_checkpoint(tmp_path / "source", name, **WIDE)
        folder, plain = tmp_path / "gguf", tmp_path / "plain"
        folder.mkdir()
        plain.mkdir()
        numbers = convert(source, folder, architecture, kinds, **changes)
        shutil.copy(source / "config.json", plain)
        save_file(
            {name: t.contiguous() for name, t in numbers.items()}, plain / "model.safetensors"
        )
        return folder, plain

    return make


@pytest.fixture
def tiny(make_checkpoint: Make, tmp_path: Path) -> Path:
    """A llama of floats as GGUF, to be changed."""
    source = make_checkpoint(
        tmp_path / "source", "llama", num_hidden_layers=1, max_shard_size="1GB"
    )
    folder = tmp_path / "tiny"
    folder.mkdir()
    convert(source, folder, "llama", ("F32", "Q8_0"))
    return folder


def rewritten(folder: Path, more: Sequence[Put] = (), drop: str = "", **changes: Any) -> Path:
    """The file once more, with other facts, named without their architecture, and tensors."""
    config = json.loads((folder / "config.json").read_text())
    facts = metadata("llama", config) | {key.replace("__", "."): v for key, v in changes.items()}
    entries = [entry_of(key, fact) for key, fact in facts.items() if fact is not None]
    data = (folder / "model.gguf").read_bytes()
    puts = [
        Put(name, tensor.shape, tensor.type, data[tensor.begin : tensor.begin + tensor.nbytes])
        for name, tensor in read_header(folder / "model.gguf").tensors.items()
        if name != drop
    ]
    (folder / "model.gguf").write_bytes(written(entries, [*puts, *more]))
    return folder


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("llama3", "llama"),
        ("qwen3", "qwen3"),
        ("gemma2", "gemma2"),
        ("phi3", "phi3"),
    ],
)
def test_logits_are_those_of_transformers_with_the_same_numbers(
    name: str,
    architecture: str,
    converted: Any,
    our_logits: Any,
    their_logits: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, plain = converted(name, architecture)
    theirs = their_logits(plain, IDS)
    if name == "qwen3":
        kept = our_logits(loaded(folder, is_packed=True), IDS)
        # Kernels of codes round what they multiply as bfloat16 does, and both parts of a product
        # where each code is two of 4 bits.
        assert (kept - theirs).abs().max() < 2.0**-5 * theirs.abs().max()
        for kernel in ("fits_int4", "fits_int4_pairs", "fits_groups_of_16"):
            monkeypatch.setattr(select_cpu, kernel, lambda weight: False)
    ours = our_logits(loaded(folder, is_packed=name == "qwen3"), IDS)
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("llama_biases", "llama"), ("mistral", "llama"), ("qwen2", "qwen2"), ("gemma2", "gemma2")],
)
def test_every_tensor_is_what_was_converted(name: str, architecture: str, converted: Any) -> None:
    folder, plain = converted(name, architecture)
    checkpoint, numbers = opened(folder), load_file(plain / "model.safetensors")
    for full, wanted in numbers.items():
        stem = full.removesuffix(".weight")
        is_matrix = wanted.dim() == 2
        found = checkpoint.matrix(stem) if is_matrix else checkpoint.tensor(full)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found.float(), wanted), full


def test_parts_of_a_model_are_read_as_one(tiny: Path, our_logits: Any) -> None:
    whole = our_logits(loaded(tiny), IDS)
    data, tensors = (tiny / "model.gguf").read_bytes(), read_header(tiny / "model.gguf").tensors
    puts = [
        Put(name, t.shape, t.type, data[t.begin : t.begin + t.nbytes])
        for name, t in tensors.items()
    ]
    config = json.loads((tiny / "config.json").read_text())
    facts = metadata("llama", config) | {"split.count": 2}
    (tiny / "model.gguf").unlink()
    first, second = tiny / "m-00001-of-00002.gguf", tiny / "m-00002-of-00002.gguf"
    first.write_bytes(written([entry_of(*fact) for fact in facts.items()], puts[:5]))
    second.write_bytes(written([entry_of("split.no", 1)], puts[5:]))
    assert torch.equal(our_logits(loaded(tiny), IDS), whole)
    second.write_bytes(written([], puts[4:]))
    with pytest.raises(SpecError, match=r"is in m-00001-of-00002.gguf and again in m-00002-of"):
        read_spec(tiny)
    second.unlink()
    with pytest.raises(SpecError, match=r"lacks m-00002-of-00002.gguf"):
        read_spec(tiny)
    first.rename(second)
    with pytest.raises(SpecError, match=r"lacks m-00001-of-00002.gguf"):
        read_spec(tiny)
    second.rename(tiny / "other.gguf")
    with pytest.raises(SpecError, match=r"other.gguf: split.count is 2, but the other parts"):
        read_spec(tiny)
    (tiny / "another.gguf").write_bytes(b"")
    with pytest.raises(SpecError, match=r"more than one model, another.gguf and other.gguf"):
        read_spec(tiny)


def test_safetensors_are_served_where_there_are_some(tiny: Path) -> None:
    save_file({"a": torch.zeros(1)}, tiny / "model.safetensors")
    assert read_spec(tiny).quantization is None


def test_what_config_json_says_of_other_weights_is_refused(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tiny / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match="quantization_config is of other weights than"):
        read_spec(tiny)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"llama__block_count": 2},
            "llama.block_count is 2, but config.json has num_hidden_layers 1",
        ),
        ({"llama__block_count": None}, "it lacks llama.block_count"),
        (
            {"llama__embedding_length": 128},
            "embedding_length is 128, but config.json has hidden_size",
        ),
        ({"llama__feed_forward_length": ["1"]}, "feed_forward_length is an array of 1, but"),
        (
            {"llama__attention__head_count": "4"},
            "head_count is '4', but config.json has num_attention",
        ),
        ({"llama__attention__head_count_kv": 4}, "head_count_kv is 4, but config.json has"),
        ({"llama__attention__key_length": 32}, "key_length is 32, but config.json has head_dim 16"),
        ({"llama__attention__layer_norm_rms_epsilon": 1e-5}, "rms_norm_eps 1e-06"),
        (
            {"llama__rope__freq_base": 5e5},
            "freq_base is 500000, but config.json has rope_theta 10000",
        ),
        ({"llama__rope__dimension_count": 8}, "dimension_count is 8, but config.json has rotated"),
        ({"llama__vocab_size": 321}, "vocab_size is 321, but config.json has vocab_size 320"),
        ({"llama__expert_count": 8}, "expert_count is 8, but config.json has num_experts 0"),
        ({"llama__attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50, but"),
    ],
)
def test_what_the_file_and_config_json_tell_differently_is_named(
    changes: dict[str, Any], sentence: str, tiny: Path
) -> None:
    rewritten(tiny, **changes)
    with pytest.raises(LoadError) as raised:
        opened(tiny)
    assert str(raised.value).startswith("model.gguf: ")
    assert sentence in str(raised.value)


def test_all_that_differs_is_named_at_once(tiny: Path) -> None:
    rewritten(tiny, llama__block_count=9, llama__vocab_size=9)
    with pytest.raises(LoadError, match=r"block_count is 9.*; model.gguf: llama.vocab_size is 9"):
        opened(tiny)


@pytest.mark.parametrize("architecture", ["phi4", 3, None])
def test_another_architecture_is_refused(architecture: Any, tiny: Path) -> None:
    rewritten(tiny, general__architecture=architecture)
    with pytest.raises(
        SpecError, match=r"general.architecture is .*; read are llama, .*qwen2, qwen3"
    ):
        read_spec(tiny)


def test_the_architecture_is_that_of_config_json(tiny: Path) -> None:
    rewritten(tiny, general__architecture="qwen3")
    with pytest.raises(LoadError, match=r"is qwen3, but config.json says LlamaForCausalLM"):
        opened(tiny)


def test_heads_that_are_tied_in_one_and_not_in_the_other_are_named(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    tied = json.dumps(config | {"tie_word_embeddings": True})
    (tiny / "config.json").write_text(tied)
    with pytest.raises(
        LoadError, match=r"has output.weight, but config.json has tie_word_embeddings"
    ):
        opened(tiny)
    (tiny / "config.json").write_text(json.dumps(config))
    rewritten(tiny, drop="output.weight")
    with pytest.raises(LoadError, match=r"it lacks output.weight"):
        opened(tiny)


def test_tensors_that_no_such_model_has_are_named(tiny: Path) -> None:
    rewritten(tiny, [Put("blk.0.ffn_gate_shexp.weight", (3,), "F32", bytes(12))])
    with pytest.raises(
        SpecError, match=r"model.gguf: tensor blk.0.ffn_gate_shexp.weight is none of a"
    ):
        read_spec(tiny)


def test_missing_and_wrong_tensors_are_named(tiny: Path) -> None:
    q = "blk.0.attn_q.weight"
    wrong = Put(q, (64, 96), "Q8_0", packed("Q8_0", torch.ones(64, 96)))
    rewritten(tiny, [wrong], drop=q)
    with pytest.raises(
        LoadError, match=r"model.gguf: .*q_proj.q8_0 is U8 \[64, 102\], not U8 \[64, 68\]"
    ):
        opened(tiny)
    rewritten(tiny, drop=q)
    with pytest.raises(LoadError, match=r"missing tensors: model.layers.0.self_attn.q_proj.weight"):
        opened(tiny)


def test_a_scale_that_is_not_finite_is_named_with_its_matrix(tiny: Path) -> None:
    q = "blk.0.attn_q.weight"
    data = bytearray(packed("Q8_0", torch.ones(64, 64)))
    data[34:36] = struct.pack("<e", float("inf"))
    rewritten(tiny, [Put(q, (64, 64), "Q8_0", bytes(data))], drop=q)
    with pytest.raises(
        LoadError, match=r"model.gguf: model.layers.0.self_attn.q_proj: a scale of its Q8_0"
    ):
        loaded(tiny)


def test_a_file_that_is_cut_after_its_header_was_read_is_named(tiny: Path) -> None:
    checkpoint = opened(tiny)
    (tiny / "model.gguf").write_bytes(b"")
    with pytest.raises(
        LoadError, match=r"model.gguf: model.norm.weight cannot be read: the file became"
    ):
        checkpoint.tensor("model.norm.weight")


def test_stretched_frequencies_are_those_of_config_json(converted: Any) -> None:
    folder, _ = converted("llama3", "llama", ("F32",))
    rope = read_spec(folder).rope
    plain = 1.0 / rope.theta ** (torch.arange(0, rope.rotary_dim, 2) / rope.rotary_dim)
    factors = plain / frequencies(rope)
    assert factors.max() > 7
    name, count = "rope_freqs.weight", len(factors)
    rewritten(folder, [Put(name, (count,), "F32", packed("F32", factors))])
    opened(folder)
    for wrong in (factors * 1.01, torch.ones(count), factors[:-1]):
        put = Put(name, tuple(wrong.shape), "F32", packed("F32", wrong))
        rewritten(folder, [put], drop=name)
        with pytest.raises(LoadError, match=r"rope_freqs.weight does not match rope_scaling"):
            opened(folder)
