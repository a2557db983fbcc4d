"""Batch-invariant layers: same numbers per row for any batch and thread count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gatewayd_engine.model.assembly.linears import Quantize
from gatewayd_engine.model.batch_invariance import BatchInvariantMode
from gatewayd_engine.model.config.rope import RopeSpec
from gatewayd_engine.model.latent_attention import HeadProduct
from gatewayd_engine.model.layers import Gated, Linear
from gatewayd_engine.model.linears.dequantized import DequantizedLinear
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.rotary_embedding import Rotary
from gatewayd_engine.model.spec import read_spec
from gatewayd_hooks.quantization import GroupedWeight, Matrix, Weight
from gatewayd_quant_int8.strategy import Int8Quantizer
from tests.engine.core.small_model import small

Part = Callable[[torch.Tensor], torch.Tensor]
ROWS = 300


@pytest.fixture(autouse=True, params=[1, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One of which cuts most operations at no multiple of anything."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def linear(*, has_bias: bool) -> tuple[BatchInvariantMode, Part, int]:
    made = Linear(torch.randn(640, 384), torch.randn(640) if has_bias else None)
    return made, made, 384


def dequantized() -> tuple[BatchInvariantMode, Part, int]:
    codes = torch.randint(0, 16, (96, 64), dtype=torch.uint8)
    made = DequantizedLinear(GroupedWeight(codes, torch.rand(96, 2), torch.rand(96, 2), 4))
    return made, made, 64


def gated(name: str, size: int) -> tuple[BatchInvariantMode, Part, int]:
    made = Gated(name)
    return made, made, 2 * size


def rotary(dim: int) -> tuple[BatchInvariantMode, Part, int]:
    made = Rotary(RopeSpec("default", 10_000.0, dim, ROWS), ROWS, "cpu")

    def turned(x: torch.Tensor) -> torch.Tensor:
        heads = x.clone().view(len(x), 8, dim)
        # Where a row stands is in the row.
        made.rotate(made.view(heads), made.at(x[:, 0].abs().mul(100).long().clamp_max(ROWS - 1)))
        return heads.flatten(1)

    return made, turned, 8 * dim


def by_head(heads: int) -> tuple[BatchInvariantMode, Part, int]:
    made = HeadProduct(torch.randn(heads, 40, 96))

    def multiplied(x: torch.Tensor) -> torch.Tensor:
        return made(x.view(len(x), heads, 40)).flatten(1)

    return made, multiplied, heads * 40


PARTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (linear, {"has_bias": False}),
    (linear, {"has_bias": True}),
    (dequantized, {}),
    *(
        (gated, {"name": name, "size": size})
        for name in ("silu", "gelu", "gelu_tanh")
        for size in (1024, 500, 37)
    ),
    *((rotary, {"dim": dim}) for dim in (64, 20)),
    # More matrices than are converted at a time, and fewer.
    *((by_head, {"heads": heads}) for heads in (250, 3)),
]


@pytest.mark.parametrize(("make", "fields"), PARTS)
def test_a_row_does_not_depend_on_its_batch(
    make: Callable[..., tuple[BatchInvariantMode, Part, int]], fields: dict[str, Any]
) -> None:
    part, call, width = make(**fields)
    x = 3 * torch.randn(ROWS, width)
    plain = call(x)
    part.is_steady = True
    whole = call(x)
    torch.testing.assert_close(whole, plain, atol=2e-4, rtol=1e-4)
    for size in (1, 2, 7, 33, 100):
        split = torch.cat([call(some.clone()) for some in torch.split(x[: ROWS // 2], size)])
        assert torch.equal(split, whole[: ROWS // 2])


def test_what_is_written_and_added_is_what_is_returned() -> None:
    made = Linear(torch.randn(33, 17), torch.randn(33))
    made.is_steady = True
    x = torch.randn(5, 17)
    out, onto = torch.empty(5, 40)[:, 7:], torch.ones(5, 33)
    assert made(x, out=out).data_ptr() == out.data_ptr()
    assert torch.equal(out, made(x))
    assert made.add_to(onto, x) is None
    assert torch.equal(onto, made(x) + 1)
    assert made(x[:0]).shape == (0, 33)


def parts_of(quantize: Quantize | None) -> tuple[bool, Any]:
    """Whether a decoder of the embedded model says that it rounds, and the decoder."""
    folder = small()
    checkpoint = Checkpoint.open(folder, read_spec(folder, None), None)
    made: Any = read(checkpoint, torch.float32, "cpu", lambda part: None, None, quantize)
    return made.rounds_inputs, made


def rounding(*names: str) -> Quantize:
    def quantize(matrix: Matrix, weight: torch.Tensor) -> Weight:
        return Int8Quantizer().quantize(matrix, weight) if matrix.name.endswith(names) else weight

    return quantize


def test_a_model_is_steady_if_anything_rounds() -> None:
    rounds, plain = parts_of(None)
    assert not rounds
    layer = plain.layers[1]
    assert not layer.mlp.down.is_steady
    assert not plain.rotaries[0].is_steady
    # All that a rounding head is given comes from floats.
    for names in (("down_proj",), ("lm_head",)):
        rounds, made = parts_of(rounding(*names))
        assert rounds
        layer = made.layers[0]
        floats = [layer.attention.entry, layer.attention.out, layer.mlp.entry]
        assert all(part.is_steady for part in (*floats, layer.mlp._gated, *made.rotaries))
    rounds, made = parts_of(rounding("down_proj"))
    assert isinstance(made.head, Linear)
    assert not made.head.is_steady
