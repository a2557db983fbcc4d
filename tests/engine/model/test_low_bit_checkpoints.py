"""Low-bit checkpoints: read as they mean, or refused before a byte is read."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.linears import select_cpu
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import load, read
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.loading.tensor_sources import SafetensorsSource
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import Matrix, Weight
from gatewayd_quant_int4.config import Int4QuantizerConfig
from gatewayd_quant_int4.strategy import Int4Quantizer
from gatewayd_quant_int8.strategy import Int8Quantizer
from tests.engine.four_bit_format_plugin import Nibbles, announce, pack, rounded

Make = Callable[..., Path]
Ours = Callable[[Decoder, torch.Tensor], torch.Tensor]
Theirs = Callable[..., torch.Tensor]
IDS = torch.arange(2, 42)
DOWN = "model.layers.1.mlp.down_proj"


def packed(make: Make, folder: Path, name: str = "llama") -> dict[str, torch.Tensor]:
    make(folder, name, max_shard_size="1GB", hidden_size=64)
    return pack(folder)


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors | ({} if tensor is None else {name: tensor}), folder / "model.safetensors")


def opened(folder: Path) -> Checkpoint:
    return Checkpoint.open(folder, read_spec(folder), Nibbles())


@pytest.mark.parametrize("name", ["llama_biases", "phi3", "mixtral", "gemma2"])
def test_what_is_read_is_what_transformers_has_of_the_same_numbers(
    name: str,
    make_checkpoint: Make,
    tmp_path: Path,
    our_logits: Ours,
    their_logits: Theirs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of packed codes inputs are rounded, for which there are other tests.
    monkeypatch.setattr(select_cpu, "fits_groups_of_16", lambda weight: False)
    numbers = packed(make_checkpoint, tmp_path, name)
    seen: list[float] = []
    decoder = read(opened(tmp_path), torch.float32, "cpu", seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    ours = our_logits(decoder, IDS)
    announce(tmp_path, None)
    save_file(numbers, tmp_path / "model.safetensors", {"format": "pt"})
    floats = load(tmp_path, read_spec(tmp_path), torch.float32, "cpu", lambda part: None)
    assert decoder.num_parameters == floats.num_parameters
    assert decoder.weight_bytes < 0.6 * floats.weight_bytes
    torch.testing.assert_close(ours, our_logits(floats, IDS), atol=5e-5, rtol=0)
    torch.testing.assert_close(ours, their_logits(tmp_path, IDS), atol=5e-5, rtol=0)


def in_nibbles(matrix: Matrix, weight: torch.Tensor) -> Weight:
    """A matrix in 4 bits."""
    made = Int4Quantizer(Int4QuantizerConfig(group_size=32, head=True)).quantize(matrix, weight)
    return weight if made is None else made


def in_their_floats(matrix: Matrix, weight: torch.Tensor) -> Weight:
    """What those mean, as floats."""
    return dense(in_nibbles(matrix, weight))


def in_bytes(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What a linear layer of transformers makes with 8 bits on both sides, summed in 64."""

    def in_steps(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scales = rows.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        return (rows / scales).round().double(), scales

    (codes, scales), (weights, sizes) = in_steps(x), in_steps(self.weight)
    made = (codes @ weights.t()).float() * scales * sizes[:, 0]
    return made if self.bias is None else made + self.bias


@pytest.mark.parametrize("name", ["llama_biases", "gemma2", "qwen3"])
def test_int8_is_what_transformers_makes_with_8_bits_on_both_sides(
    name: str,
    checkpoint: Callable[[str], Path],
    our_logits: Ours,
    their_logits: Theirs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = checkpoint(name)
    files = Checkpoint.open(folder, read_spec(folder))
    decoder = read(files, torch.float32, "cpu", lambda part: None, None, Int8Quantizer().quantize)
    ours, floats = our_logits(decoder, IDS), their_logits(folder, IDS)
    monkeypatch.setattr(torch.nn.Linear, "forward", in_bytes)
    theirs = their_logits(folder, IDS)
    # Noise of 1e-7 may round a number the other way: a hundredth of what rounding does.
    assert (ours - theirs).abs().mean() < 0.05 * (ours - floats).abs().mean()
    assert (ours - theirs).abs().median() < 1e-5


@pytest.mark.parametrize("name", ["llama_biases", "gemma2", "qwen3"])
def test_int4_is_what_transformers_makes_of_the_same_numbers_but_for_16_bits(
    name: str, checkpoint: Callable[[str], Path], our_logits: Ours, their_logits: Theirs
) -> None:
    folder = checkpoint(name)
    spec = read_spec(folder)
    decoder, exact = (
        read(Checkpoint.open(folder, spec), torch.float32, "cpu", lambda part: None, None, quantize)
        for quantize in (in_nibbles, in_their_floats)
    )
    assert decoder.rounds_inputs
    assert not exact.rounds_inputs
    made, wanted, floats = (
        our_logits(decoder, IDS),
        our_logits(exact, IDS),
        their_logits(folder, IDS),
    )
    # Rounding inputs to bfloat16 is a fraction of what rounding weights to 4 bits is.
    assert (made - wanted).abs().mean() < 0.1 * (wanted - floats).abs().mean()
    assert (made - wanted).abs().mean() > 0


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        (f"{DOWN}.scales", None, f"missing tensors: {DOWN}.scales"),
        (
            f"{DOWN}.scales",
            torch.ones(64, 7).half(),
            f"model.safetensors: {DOWN}.scales is F16 [64, 7], not F16 [64, 6]",
        ),
        (
            f"{DOWN}.packed",
            torch.zeros(64, 48, dtype=torch.int32),
            f"model.safetensors: {DOWN}.packed holds I32; supported are U8",
        ),
        (f"{DOWN}.zeros", torch.ones(3), f"unexpected tensors: {DOWN}.zeros"),
        (f"{DOWN}.least", torch.ones(3, 3), f"{DOWN}.least holds F32; supported are F16"),
        ("model.norm.weight", None, "missing tensors: model.norm.weight"),
    ],
)
def test_damage_is_named_before_anything_is_read(
    name: str,
    tensor: torch.Tensor | None,
    sentence: str,
    make_checkpoint: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed(make_checkpoint, tmp_path)
    change(tmp_path, name, tensor)
    monkeypatch.setattr(SafetensorsSource, "read", lambda self, name: pytest.fail("it was read"))
    with pytest.raises(LoadError, match=re.escape(sentence)) as refusal:
        opened(tmp_path)
    assert "config.json: quantization_config" in str(refusal.value)


def test_what_may_be_missing_is_not_missed(make_checkpoint: Make, tmp_path: Path) -> None:
    packed(make_checkpoint, tmp_path)
    change(tmp_path, f"{DOWN}.least", None)
    decoder = read(opened(tmp_path), torch.float32, "cpu", lambda part: None)
    assert decoder.weight_bytes


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_numbers_that_cannot_be_are_named(
    value: str, make_checkpoint: Make, tmp_path: Path
) -> None:
    packed(make_checkpoint, tmp_path)
    change(tmp_path, f"{DOWN}.scales", torch.full((64, 6), float(value)).half())
    with pytest.raises(LoadError, match=rf"{DOWN}: a scale is not finite"):
        read(opened(tmp_path), torch.float32, "cpu", lambda part: None)


def test_a_weight_of_another_shape_is_named(
    make_checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(make_checkpoint, tmp_path)
    halved = Nibbles.weight

    def half(self: Nibbles, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        made = halved(self, matrix, take)
        return made._replace(codes=made.codes[:, ::2])

    monkeypatch.setattr(Nibbles, "weight", half)
    with pytest.raises(LoadError, match=r"tokens: the codes are uint8 \[320, 32\], not bytes"):
        read(opened(tmp_path), torch.float32, "cpu", lambda part: None)


def test_bits_that_nobody_has_announced_are_named(make_checkpoint: Make, tmp_path: Path) -> None:
    packed(make_checkpoint, tmp_path)
    announce(tmp_path, None)
    with pytest.raises(LoadError, match=r"so it looks quantized, but config\.json has no"):
        Checkpoint.open(tmp_path, read_spec(tmp_path))


def test_bytes_in_place_of_floats_are_named(make_checkpoint: Make, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", max_shard_size="1GB")
    change(tmp_path, f"{DOWN}.weight", torch.zeros(64, 96, dtype=torch.int8))
    sentence = rf"{DOWN}\.weight holds I8, so it looks quantized, but config.json has no"
    with pytest.raises(LoadError, match=sentence):
        Checkpoint.open(tmp_path, read_spec(tmp_path))


def test_a_draft_model_of_few_bits_is_refused(make_checkpoint: Make, tmp_path: Path) -> None:
    packed(make_checkpoint, tmp_path)
    with pytest.raises(LoadError, match="quantization_config: the weights are quantized; only"):
        load(tmp_path, read_spec(tmp_path), torch.float32, "cpu", lambda part: None)


def test_beside_what_is_packed_there_is_one_matrix_of_floats(
    make_checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, "llama", max_shard_size="1GB", tie_word_embeddings=False)
    alive: list[weakref.ref[torch.Tensor]] = []
    stored, counts = SafetensorsSource.read, []

    def noting(self: SafetensorsSource, name: str) -> torch.Tensor:
        tensor = stored(self, name).clone()
        if tensor.dim() == 2 and "embed" not in name:
            alive.append(weakref.ref(tensor))
        return tensor

    def quantize(matrix: Matrix, weight: torch.Tensor) -> Weight:
        counts.append(sum(one() is not None for one in alive))
        return rounded(weight)

    monkeypatch.setattr(SafetensorsSource, "read", noting)
    checkpoint = Checkpoint.open(tmp_path, read_spec(tmp_path))
    read(checkpoint, torch.float32, "cpu", lambda part: None, None, quantize)
    # That which is quantized may be the one that was read; of joined ones none is left.
    assert len(counts) == 4 * read_spec(tmp_path).num_layers + 1
    assert max(counts) <= 1
