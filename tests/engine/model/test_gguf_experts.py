"""GGUF experts: one tensor per layer or per expert; refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gatewayd_engine.model.gguf import experts
from gatewayd_engine.model.gguf.header import read_header
from gatewayd_engine.model.linears import select_cpu
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import SpecError, read_spec
from tests.engine.gguf_files import Put, convert, entry_of, metadata, written
from tests.engine.model.test_gguf import ALL, IDS, loaded, opened

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "max_shard_size": "1GB",
}
MODELS = {
    "mixtral": ("llama", SIZES),
    "qwen3_moe": ("qwen3moe", {**SIZES, "moe_intermediate_size": 256}),
}
Make = Callable[..., tuple[Path, Path]]


@pytest.fixture
def converted(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Make:
    """A checkpoint as GGUF, and the same numbers as safetensors."""

    def make(name: str, **more: Any) -> tuple[Path, Path]:
        architecture, sizes = MODELS[name]
        source = make_checkpoint(tmp_path / "source", name, **sizes)
        folder, plain = tmp_path / "gguf", tmp_path / "plain"
        folder.mkdir()
        plain.mkdir()
        numbers = convert(source, folder, architecture, more.pop("kinds", ALL), **more)
        shutil.copy(source / "config.json", plain)
        save_file(
            {name: t.contiguous() for name, t in numbers.items()}, plain / "model.safetensors"
        )
        return folder, plain

    return make


def rewritten(
    folder: Path,
    architecture: str,
    change: Callable[[Put], Put | None],
    more: Sequence[Put] = (),
    **facts: Any,
) -> None:
    """The file once more, with each tensor changed or left out, others, and other facts."""
    path = folder / "model.gguf"
    config = json.loads((folder / "config.json").read_text())
    data, puts = path.read_bytes(), []
    for name, t in read_header(path).tensors.items():
        put = change(Put(name, t.shape, t.type, data[t.begin : t.begin + t.nbytes]))
        puts += [] if put is None else [put]
    said = metadata(architecture, config)
    for key, value in facts.items():
        said[key if key.startswith("tokenizer.") else f"{architecture}.{key}"] = value
    entries = [entry_of(key, fact) for key, fact in said.items() if fact is not None]
    path.write_bytes(written(entries, [*puts, *more]))


@pytest.mark.parametrize(
    ("name", "is_apart"), [("mixtral", False), ("mixtral", True), ("qwen3_moe", False)]
)
def test_logits_are_those_of_transformers_with_the_same_numbers(
    name: str,
    is_apart: bool,
    converted: Make,
    our_logits: Any,
    their_logits: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, plain = converted(name, is_apart=is_apart)
    stored = read_header(folder / "model.gguf").tensors
    assert ("blk.0.ffn_gate.4.weight" in stored) is is_apart
    assert ("blk.0.ffn_gate_exps.weight" in stored) is not is_apart
    assert len({tensor.type for name, tensor in stored.items() if ".ffn_" in name}) > 3
    theirs = their_logits(plain, IDS)
    ours = our_logits(loaded(folder), IDS)
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)
    for kernel in [name for name in vars(select_cpu) if name.startswith("fits_")]:
        monkeypatch.setattr(select_cpu, kernel, lambda weight: False)
    kept = our_logits(loaded(folder, is_packed=True), IDS)
    torch.testing.assert_close(kept, theirs, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_every_expert_is_what_was_converted(name: str, converted: Make) -> None:
    from safetensors.torch import load_file

    folder, plain = converted(name)
    checkpoint = opened(folder)
    found = 0
    for full, wanted in load_file(plain / "model.safetensors").items():
        if ".experts." in full or full.endswith(".gate.weight"):
            matrix = checkpoint.matrix(full.removesuffix(".weight"))
            assert isinstance(matrix, torch.Tensor)
            assert torch.equal(matrix.float(), wanted), full
            found += 1
    spec = read_spec(folder)
    assert spec.moe is not None
    assert found == sum(spec.moe.layers) * (3 * spec.moe.num_experts + 1)


@pytest.mark.parametrize(
    ("name", "facts", "sentence"),
    [
        ("mixtral", {"expert_used_count": 1}, "is 1, but config.json has num_experts_per_tok 2"),
        ("mixtral", {"expert_used_count": None}, "it lacks llama.expert_used_count"),
        ("mixtral", {"expert_shared_count": 1}, "is 1, but config.json has shared experts 0"),
        ("mixtral", {"expert_weights_scale": 2.5}, "is 2.5, but config.json has a scale of"),
        ("mixtral", {"expert_gating_func": 2}, "is 2, but config.json has the gating function 1"),
        (
            "qwen3_moe",
            {"expert_feed_forward_length": 128},
            "qwen3moe.expert_feed_forward_length is 128, but config.json has moe_intermediate_size",
        ),
        ("qwen3_moe", {"expert_weights_norm": 0}, "is 0, but config.json has norm_topk_prob 1"),
    ],
)
def test_what_the_file_and_config_json_tell_differently_is_named(
    name: str, facts: dict[str, Any], sentence: str, converted: Make
) -> None:
    folder, _ = converted(name, kinds=("Q8_0",))
    rewritten(folder, MODELS[name][0], lambda put: put, **facts)
    with pytest.raises(LoadError) as raised:
        opened(folder)
    assert sentence in str(raised.value)


def test_other_experts_than_the_file_says_are_named(
    converted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = converted("mixtral", kinds=("Q8_0",))
    whole, name = (folder / "model.gguf").read_bytes(), "blk.1.ffn_up_exps.weight"

    def refused(change: Callable[[Put], Put | None], sentence: str, **facts: Any) -> None:
        (folder / "model.gguf").write_bytes(whole)
        rewritten(folder, "llama", change, **facts)
        with pytest.raises((SpecError, LoadError), match=sentence):
            opened(folder)

    def fewer(put: Put) -> Put | None:
        if put.name != name:
            return put
        return put._replace(shape=(4, *put.shape[1:]), data=put.data[: len(put.data) // 5 * 4])

    refused(fewer, rf"model.gguf: {name} is \[4, 256, 256\]; .* is llama.expert_count, 5")
    refused(lambda put: put if put.name != name else None, r"missing tensors: .*experts.0.w3")
    said = r"ffn_.*_exps.weight is .*, of which the first is llama.expert_count"
    refused(lambda put: put, f"{said}, 6", expert_count=6)
    refused(lambda put: put, f"{said}, 0", expert_count=None)
    refused(lambda put: put, r"expert_count is an array of 1, not how many", expert_count=["5"])
    flat = (1280, 256)
    refused(lambda put: put._replace(shape=flat) if put.name == name else put, r"is \[1280, 256\];")
    monkeypatch.setattr(experts, "MOST_MATRICES", 29)
    refused(lambda put: put, "there are more than 29 experts")


def test_a_dense_model_has_no_experts(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path, "llama", num_hidden_layers=1, max_shard_size="1GB")
    folder = tmp_path / "gguf"
    folder.mkdir()
    said: dict[str, Any] = {"llama.expert_count": 8}
    convert(source, folder, "llama", ("F32",), **said)
    with pytest.raises(LoadError, match=r"expert_count is 8, but config.json has num_experts"):
        opened(folder)
