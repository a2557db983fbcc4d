"""``gguf``: the kit, published formulas, and gguf-py's values, bit for bit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gatewayd_quant_gguf
from gatewayd_engine.kernels.cpu.integer_panels import pack_integers
from gatewayd_engine.kernels.llvm.processor import AVX2
from gatewayd_engine.kernels.quantized.packing import pack
from gatewayd_hooks.quantization import Announcement, GroupedWeight, Matrix, Stored
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_gguf.config import GgufConfig
from gatewayd_quant_gguf.strategy import Gguf
from tests.engine.gguf_blocks import BLOCKS, HALVES, meant

NAME = "model.layers.0.mlp.down_proj"
DIGESTS = {
    "Q8_0": "1fdcec8b27e087840af9aefb92887ca1ac162f2af7b347dfb8a8ea5ed59aea1c",
    "Q4_0": "8f1929ff1fae879ef2e7e00fb196d38f04d94a0a4fc9529c293a92f74818e495",
    "Q4_1": "2f357d70c43e4c531e5f15096a9c7ca8403bc5c81a31eb015f9eb022e22ece0e",
    "Q5_0": "ecd97077523cbbe486ec8f0fd8ad81bbb7928b94cdf9706d842d35d98c8d647c",
    "Q5_1": "76bc7e118ec680e17dbbbd3880fd68a91b95ab8c51331651d56f66c2da2e4bd9",
    "Q2_K": "2c524b7c515ac6355fc076db945378cba098c4bd40e79531565bf465076c37a3",
    "Q3_K": "4e18795f859a8d2d34a86eb9197c9cdc4b80d872530bd93ab725959d1c38a2bb",
    "Q4_K": "21c6ef5217061ce7c0010bdf6bcbcb214d1b06a98f349d240dbefe581d04c3ed",
    "Q5_K": "fe0779e3904cd8b3b7ea91703404b7f3a5d4a247e42f6ca9cfe6123e247f70ff",
    "IQ4_NL": "cfd832fb29b95ff436b6f0421b9323e0c3dbdb4fc66562456c55aa8eaa8f5740",
    "IQ4_XS": "59943df5275cb1c6632809f98019cfcf19f34ea46d8b38fc8f51a47a6e0d2021",
    "MXFP4": "6d2835c4ec48a5653c1ac43929596455dcf0ed06648f21d419e6ca06d50aae36",
    "Q6_K": "c5d2f61932883b104b7cfbb7062c39d38aceb5af3988e2e0388c8692cac7feae",
}
"""Of what ``gguf.quants.dequantize`` of gguf 0.19.0 makes of ``drawn(kind, 64)``, as float32."""


def drawn(kind: str, count: int) -> np.ndarray[Any, Any]:
    """Blocks of any bits but the one that would make a half infinite: uint8 ``[count, bytes]``."""
    nbytes = BLOCKS[kind][1]
    bits = hashlib.shake_128(kind.encode()).digest(count * nbytes)
    blocks = np.frombuffer(bits, np.uint8).reshape(count, nbytes).copy()
    for at in HALVES[kind]:
        blocks[:, at + 1] &= 0xBF
    if kind == "MXFP4":
        blocks[:, 0] = 112 + blocks[:, 0] % 32  # exponents of no NaN and of no overflow
    return blocks


def made(kind: str, blocks: np.ndarray[Any, Any], *, is_packed: bool = False, rows: int = 4) -> Any:
    """What the strategy makes of blocks."""
    scheme = Gguf(GgufConfig(packed=is_packed)).scheme(
        Announcement({"quant_method": "gguf", "types": {NAME: kind}}, "here")
    )
    raw = torch.from_numpy(blocks).reshape(rows, -1)
    matrix = Matrix(NAME, rows, len(blocks) // rows * BLOCKS[kind][0])
    assert scheme.stored(matrix) == {kind.lower(): (Stored("U8", tuple(raw.shape)),)}
    return scheme.weight(matrix, {kind.lower(): raw}.__getitem__)


def bits(numbers: torch.Tensor) -> torch.Tensor:
    """Also zeros have a sign."""
    return numbers.contiguous().view(torch.int32)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("is_packed", [False, True])
def test_every_number_is_the_formulas_bit_for_bit(kind: str, is_packed: bool) -> None:
    blocks = drawn(kind, 64)
    weight = made(kind, blocks, is_packed=is_packed)
    if isinstance(weight, GroupedWeight):
        size = weight.codes.shape[1] // weight.scales.shape[1]
        scales = weight.scales.repeat_interleave(size, 1)
        numbers = weight.codes.float() * scales
        if weight.offsets is not None:
            numbers = numbers + weight.offsets.repeat_interleave(size, 1)
    else:
        numbers = weight
    wanted = meant(kind, blocks.tobytes(), tuple(numbers.shape))
    assert torch.equal(bits(numbers), bits(wanted))


@pytest.mark.parametrize(("kind", "digest"), DIGESTS.items())
def test_every_number_is_that_of_llama_cpps_own_reader(kind: str, digest: str) -> None:
    numbers = made(kind, drawn(kind, 64)).numpy()
    assert hashlib.sha256(numbers.astype("<f4").tobytes()).hexdigest() == digest


@pytest.mark.parametrize("kind", BLOCKS)
def test_many_rows_are_made_floats_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = drawn(kind, 64)
    whole = made(kind, blocks, rows=16)
    monkeypatch.setattr("gatewayd_quant_gguf.strategy._BLOCK", 5 * whole.shape[1])
    assert torch.equal(made(kind, blocks, rows=16), whole)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_a_scale_that_is_not_finite_is_refused(kind: str, number: str) -> None:
    for at in HALVES[kind]:
        blocks = drawn(kind, 8)
        blocks[5, at : at + 2] = np.array([float(number)], "<f2").view(np.uint8)
        with pytest.raises(ValueError, match=f"a scale of its {kind} blocks is not finite"):
            made(kind, blocks)


def test_an_exponent_that_is_no_number_is_refused() -> None:
    blocks = drawn("MXFP4", 8)
    blocks[5, 0] = 255
    with pytest.raises(ValueError, match="a scale of its MXFP4 blocks is not finite"):
        made("MXFP4", blocks)


class _Conformance(QuantizerConformance):
    kind: str
    is_packed: bool

    def make(self) -> Gguf:
        return Gguf(GgufConfig(packed=self.is_packed))

    def announced(self) -> Mapping[str, Any]:
        return {"quant_method": "gguf", "types": {NAME: self.kind}}

    def damages(self) -> Sequence[tuple[Mapping[str, Any], str]]:
        return [
            ({"types": {NAME: "IQ3_S"}}, "IQ3_S"),
            ({"types": {NAME: 8}}, NAME),
            ({"types": {NAME: ["Q8_0"]}}, NAME),
            ({"types": [NAME]}, "types"),
            ({"types": None}, "types"),
            ({"bits": 4}, "bits"),
        ]

    def sample(
        self, forms: Mapping[str, Stored], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        ((suffix, stored),) = forms.items()
        rows, nbytes = stored.shape
        blocks = drawn(self.kind, rows * nbytes // BLOCKS[self.kind][1])
        return {suffix: torch.from_numpy(blocks).reshape(rows, nbytes)}


class TestBytes(_Conformance):
    """Eight bits, as codes."""

    kind, is_packed = "Q8_0", True


class TestNibbles(_Conformance):
    """Four bits, as floats."""

    kind, is_packed = "Q4_0", False


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_is_kept_of_each_number_is_what_is_said(kind: str) -> None:
    text = Path(gatewayd_quant_gguf.__file__).with_name("README.md").read_text("utf-8")
    said = re.search(rf"^\| {kind} \| ([\d.]+) \| ([\d.]+) \| ([\d.]+)", text, re.MULTILINE)
    assert said is not None
    columns, nbytes = BLOCKS[kind]
    weight = made(kind, drawn(kind, 64), is_packed=True)
    packed, panels = pack(weight), pack_integers(weight, AVX2)
    assert packed is not None
    assert panels is not None
    assert float(said[1]) == pytest.approx(8 * nbytes / columns, abs=0.005)
    numbers = panels.data.shape[0] * 2 * AVX2.lanes * panels.inputs
    assert float(said[2]) == pytest.approx(8 * panels.data.nbytes / numbers, abs=0.006)
    assert float(said[3]) == 8 * packed.nbytes / (64 * columns)
