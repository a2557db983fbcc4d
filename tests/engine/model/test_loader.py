"""Loader: equivalent layouts on disk; wrong ones are named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model import embedded
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.spec import read_spec

Make = Callable[..., Path]
Ours = Callable[[Decoder, torch.Tensor], torch.Tensor]
IDS = torch.arange(2, 42)
INDEX = "model.safetensors.index.json"


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load(folder, read_spec(folder), dtype, "cpu", lambda fraction: None)


def single(make_checkpoint: Make, folder: Path, name: str = "llama") -> dict[str, torch.Tensor]:
    """Write a checkpoint in one file and return its tensors."""
    make_checkpoint(folder, name, max_shard_size="1GB")
    return load_file(folder / "model.safetensors")


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(
        {key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors"
    )


def test_one_file_and_many_shards_load_alike(
    make_checkpoint: Make, checkpoint: Callable[[str], Path], tmp_path: Path, our_logits: Ours
) -> None:
    single(make_checkpoint, tmp_path)
    assert len(list(checkpoint("llama").glob("model-*.safetensors"))) > 3
    ours = our_logits(loaded(tmp_path), IDS)
    assert torch.equal(ours, our_logits(loaded(checkpoint("llama")), IDS))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe"])
def test_stacked_experts_load_like_single_ones(
    name: str, make_checkpoint: Make, tmp_path: Path, our_logits: Ours
) -> None:
    tensors = single(make_checkpoint, tmp_path, name)
    apart = our_logits(loaded(tmp_path), IDS)
    spec = read_spec(tmp_path)
    assert spec.moe is not None
    gate, up, down = (
        ("w1", "w3", "w2") if name == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    )
    for layer, has_experts in enumerate(spec.moe.layers):
        if not has_experts:
            continue
        old = f"model.layers.{layer}.{'block_sparse_moe' if name == 'mixtral' else 'mlp'}"
        new = f"model.layers.{layer}.mlp"
        parts = [
            [tensors.pop(f"{old}.experts.{expert}.{part}.weight") for part in (gate, up, down)]
            for expert in range(spec.moe.num_experts)
        ]
        for key in [key for key in tensors if key.startswith(f"{old}.gate.")]:
            tensors[key.replace(old, new)] = tensors.pop(key)
        tensors[f"{new}.experts.gate_up_proj"] = torch.stack([torch.cat(p[:2]) for p in parts])
        tensors[f"{new}.experts.down_proj"] = torch.stack([p[2] for p in parts])
    save(tmp_path, tensors)
    assert torch.equal(our_logits(loaded(tmp_path), IDS), apart)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_are_converted_to_the_type_asked_for(
    stored: torch.dtype, make_checkpoint: Make, tmp_path: Path
) -> None:
    tensors = single(make_checkpoint, tmp_path)
    save(tmp_path, {key: value.to(stored) for key, value in tensors.items()})
    for asked in (torch.float32, torch.bfloat16):
        decoder = loaded(tmp_path, asked)
        assert decoder.dtype == asked
        hidden = torch.ones(1, 64, dtype=asked)
        expected = tensors["lm_head.weight"].to(stored).to(asked).sum(-1).float()
        torch.testing.assert_close(decoder.logits(hidden)[0], expected, atol=0.1, rtol=0.02)


def test_parameters_are_counted_once_and_progress_ends_at_one() -> None:
    folder = embedded.folder("nano")
    seen: list[float] = []
    decoder = load(folder, read_spec(folder), torch.float32, "cpu", seen.append)
    assert decoder.num_parameters == 11_015_040
    assert seen == sorted(seen)
    assert seen[0] < 0.2
    assert seen[-1] == 1.0


def test_a_tied_head_is_counted_where_it_takes_memory_of_its_own() -> None:
    """A CPU has a transposed copy, beside a table of 16 bits; a device reads the table itself."""
    folder = embedded.folder("nano")
    parts = FusedParts(TorchKernels())
    device = load(folder, read_spec(folder), torch.float32, "cpu", lambda part: None, parts)
    assert device.weight_bytes == 4 * 11_015_040
    assert loaded(folder).weight_bytes == 4 * 11_015_040 + 2 * 4096 * 384


def test_leftovers_of_old_releases_are_ignored(make_checkpoint: Make, tmp_path: Path) -> None:
    tensors = single(make_checkpoint, tmp_path, "llama3")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save(tmp_path, tensors)
    loaded(tmp_path)


def test_all_wrong_tensors_are_named_before_any_is_read(
    make_checkpoint: Make, tmp_path: Path
) -> None:
    tensors = single(make_checkpoint, tmp_path)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(64, 95)
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.zeros(16)
    save(tmp_path, tensors)
    read: list[float] = []
    with pytest.raises(LoadError) as failure:
        load(tmp_path, read_spec(tmp_path), torch.float32, "cpu", read.append)
    message = str(failure.value)
    assert "missing tensors: model.norm.weight" in message
    assert "model.layers.0.mlp.down_proj.weight is [64, 95], not [64, 96]" in message
    assert "unexpected tensors: model.layers.0.self_attn.q_norm.weight" in message
    assert read == []


def test_a_long_list_of_missing_tensors_is_cut(make_checkpoint: Make, tmp_path: Path) -> None:
    tensors = single(make_checkpoint, tmp_path)
    save(tmp_path, {"lm_head.weight": tensors["lm_head.weight"]})
    with pytest.raises(LoadError, match=r"and \d+ more"):
        loaded(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
def test_a_cut_file_is_named(kept: float, make_checkpoint: Make, tmp_path: Path) -> None:
    single(make_checkpoint, tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.stat().st_size
    os.truncate(path, whole - 1 if kept < 0 else int(whole * kept if kept < 1 else kept))
    with pytest.raises(LoadError, match=r"model\.safetensors is not a whole safetensors file"):
        loaded(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_a_corrupt_header_is_a_load_error(seed: int, make_checkpoint: Make, tmp_path: Path) -> None:
    single(make_checkpoint, tmp_path)
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    for position in torch.randint(600, (4,), generator=torch.Generator().manual_seed(seed)):
        data[int(position)] ^= 0x15
    path.write_bytes(data)
    with pytest.raises(LoadError, match=str(tmp_path)):
        loaded(tmp_path)


def test_integer_weights_are_refused(make_checkpoint: Make, tmp_path: Path) -> None:
    tensors = single(make_checkpoint, tmp_path)
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save(tmp_path, tensors)
    with pytest.raises(LoadError, match=r"model\.norm\.weight holds I8; supported are F32"):
        loaded(tmp_path)


@pytest.mark.parametrize("other", ["pytorch_model.bin", "model.pt", "model.pkl"])
def test_formats_that_run_code_are_refused(
    other: str, make_checkpoint: Make, tmp_path: Path
) -> None:
    single(make_checkpoint, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / other)
    with pytest.raises(LoadError, match=rf"{other} but no safetensors; .* convert them"):
        loaded(tmp_path)


def test_a_folder_without_weights_is_named(make_checkpoint: Make, tmp_path: Path) -> None:
    single(make_checkpoint, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"holds neither model\.safetensors nor"):
        loaded(tmp_path)


def test_a_missing_shard_is_named(make_checkpoint: Make, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(
        LoadError, match=rf"{shard.name} does not exist, but .*index\.json names it"
    ):
        loaded(tmp_path)


def test_a_tensor_in_two_shards_is_named(make_checkpoint: Make, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    first, second = sorted(tmp_path.glob("model-*.safetensors"))[:2]
    both = load_file(first)
    name = sorted(load_file(second))[0]
    save_file({**both, name: load_file(second)[name]}, first)
    with pytest.raises(LoadError, match=rf"tensor {name} is in {first.name} and again in"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("../outside.safetensors", "/etc/passwd", "sub/part.safetensors", "weights.bin", ""),
        *(
            "a\0.safetensors",
            "a\x1b[2J.safetensors",
            "\ud800.safetensors",
            f"{'a' * 300}.safetensors",
        ),
    ],
)
def test_an_index_reaches_no_other_folder(name: str, make_checkpoint: Make, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(LoadError, match="is no safetensors file name") as refusal:
        loaded(tmp_path)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_a_wrong_index_is_named(text: str, make_checkpoint: Make, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(LoadError, match=INDEX):
        loaded(tmp_path)


def test_layers_that_predict_further_tokens_are_not_read(
    make_checkpoint: Make, tmp_path: Path, our_logits: Ours
) -> None:
    tensors = single(make_checkpoint, tmp_path, "glm4_moe")
    logits = our_logits(loaded(tmp_path), IDS)
    more = {"model.layers.3.eh_proj.weight": torch.ones(64, 128)}
    more["model.layers.3.mlp.gate.weight"] = torch.ones(12, 64)
    save(tmp_path, tensors | more)
    assert torch.equal(our_logits(loaded(tmp_path), IDS), logits)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 1
    save(tmp_path, tensors | {"model.layers.4.eh_proj.weight": torch.ones(64, 128)})
    with pytest.raises(LoadError, match=r"unexpected tensors: model\.layers\.4\.eh_proj\.weight"):
        loaded(tmp_path)
    config["num_nextn_predict_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    save(tmp_path, tensors | more)
    with pytest.raises(LoadError, match=r"unexpected tensors: model\.layers\.3\.eh_proj\.weight"):
        loaded(tmp_path)
