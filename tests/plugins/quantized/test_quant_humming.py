"""``quantizer.humming``: accepted formats, packing, and library calls."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_hooks.multiplying import Form
from gatewayd_hooks.quantization import (
    Announcement,
    GroupedWeight,
    Matrix,
    QuantizerResources,
)
from gatewayd_hooks.testing import multiplying
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_compressed_tensors.strategy import CompressedTensors
from gatewayd_quant_gptq.strategy import Gptq
from gatewayd_quant_humming.config import HummingConfig
from gatewayd_quant_humming.packing import pack, packed
from gatewayd_quant_humming.strategy import Humming
from tests.plugins.quantized.fake_humming import HummingLayer, humming, unpacked
from tests.plugins.quantized.writers import WRITERS

__all__ = ["humming"]
GPU = QuantizerResources("", "cuda:0")
AMPERE, HOPPER = (8, 6), (9, 0)
ALL_CASES = multiplying.cases


def opened(**settings: Any) -> Humming:
    made = Humming(HummingConfig(**settings))
    made.open(GPU)
    return made


def cases() -> Iterator[multiplying.Case]:
    """Those of the kit, as if there were a GPU."""
    for case in ALL_CASES():
        yield case._replace(form=case.form._replace(capability=HOPPER))


@pytest.mark.usefixtures("humming")
class TestHumming(QuantizerConformance):
    @pytest.fixture(autouse=True)
    def _on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(multiplying, "cases", cases)

    def make(self) -> Humming:
        return opened()


@pytest.mark.usefixtures("humming")
class TestInOneOrder(TestHumming):
    def make(self) -> Humming:
        return opened(batch_invariant=True)


@pytest.mark.usefixtures("humming")
def test_it_takes_what_it_can_hold() -> None:
    strategy = opened()
    for case in cases():
        form, weight = case.form, case.weight
        is_known = form.dtype == torch.bfloat16 and weight.group_of is None
        is_known &= weight.activations == "float" and form.rows == 128
        assert strategy.suits(form) == is_known, form
        if is_known:
            # The kit has one with offsets that are not whole numbers of steps.
            whole = weight.offsets is None or not (weight.offsets / weight.scales).frac().any()
            assert (strategy.take(*case) is not None) == whole


FORM = Form(
    rows=128,
    columns=256,
    codes=torch.int8,
    bits=4,
    groups=2,
    has_offsets=False,
    is_ordered=True,
    activations="float",
    has_bias=False,
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
    capability=HOPPER,
)


@pytest.mark.usefixtures("humming")
@pytest.mark.parametrize(
    ("fields", "suits"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"capability": None}, False),
        ({"is_ordered": False}, False),
        ({"rows": 192}, False),
        ({"columns": 224, "groups": 7}, False),
        ({"groups": 1}, True),
        ({"groups": 16}, True),
        ({"groups": 32}, False),
        ({"columns": 192, "groups": 2}, False),
        ({"bits": 8}, True),
        ({"bits": 1}, False),
        ({"codes": torch.uint8, "has_offsets": True}, True),
        ({"activations": "int8", "bits": 8}, False),
        ({"codes": torch.float8_e4m3fn, "bits": 8}, True),
        ({"codes": torch.float8_e5m2, "bits": 8}, False),
        ({"codes": torch.float8_e4m3fn, "bits": 8, "activations": "e4m3"}, False),
        (
            {
                "codes": torch.float8_e4m3fn,
                "bits": 8,
                "activations": "e4m3",
                "capability": AMPERE,
            },
            True,
        ),
    ],
)
def test_what_suits(fields: dict[str, Any], suits: bool) -> None:
    assert opened().suits(FORM._replace(**fields)) is suits


@pytest.mark.parametrize("bits", range(2, 9))
def test_codes_lie_one_behind_the_other_from_the_lowest_bit(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (5, 96), dtype=torch.uint8)
    words = pack(codes, bits)
    assert words.shape == (5, 3 * bits)
    whole = [sum(int(code) << (bits * place) for place, code in enumerate(row)) for row in codes]
    found = [sum((int(w) & 0xFFFFFFFF) << (32 * i) for i, w in enumerate(row)) for row in words]
    assert found == whole
    assert (unpacked(words.numpy(), bits) == codes.numpy()).all()


def test_a_zero_that_is_the_middle_is_none_and_others_lie_along_the_rows() -> None:
    codes = torch.randint(0, 16, (64, 64), dtype=torch.uint8)
    scales = torch.full((64, 2), 0.5)
    middle = GroupedWeight(codes, scales, -8 * scales, 4)
    made = packed(middle, None, torch.bfloat16)
    assert made is not None
    assert made.tensors.keys() == {"weight", "weight_scale"}
    signed = GroupedWeight((codes.to(torch.int8) - 8), scales, None, 4)
    again = packed(signed, None, torch.bfloat16)
    assert again is not None
    assert torch.equal(again.tensors["weight"], made.tensors["weight"])
    zeros = torch.arange(128).view(2, 64).t() % 16
    other = packed(middle._replace(offsets=-zeros * scales), None, torch.bfloat16)
    assert other is not None
    stored = other.tensors["zero_point"]
    assert stored.shape == (8, 2)
    assert (unpacked(stored.t().contiguous().numpy(), 4) == zeros.t().numpy()).all()


@pytest.mark.parametrize("zero", [-1.0, 16.0, 7.5])
def test_a_zero_that_is_no_code_is_not_held(zero: float) -> None:
    scales = torch.full((64, 1), 0.25)
    weight = GroupedWeight(torch.ones(64, 64, dtype=torch.uint8), scales, -zero * scales, 4)
    assert packed(weight, None, torch.bfloat16) is None


def test_groups_of_zeros_alone_are_held() -> None:
    none = torch.zeros(64, 1)
    weight = GroupedWeight(torch.ones(64, 64, dtype=torch.uint8), none, none, 4)
    assert packed(weight, None, torch.bfloat16) is not None


READERS: dict[str, Callable[[], Any]] = {
    "awq": Awq,
    "gptq": Gptq,
    "gptq of 8 bits, a group of a row": Gptq,
    "packed with zeros": CompressedTensors,
}


@pytest.mark.usefixtures("humming")
@pytest.mark.parametrize("name", READERS)
def test_what_checkpoints_hold_is_multiplied_by_what_it_means(name: str) -> None:
    writer = WRITERS[name]
    rng = np.random.default_rng(3)
    tensors, meant = writer.write(rng.standard_normal((128, 256)).astype(np.float32))
    scheme = READERS[name]().scheme(Announcement(writer.announced, "here"))
    matrix = Matrix("model.layers.0.mlp.down_proj", 128, 256)
    weight = scheme.weight(matrix, tensors.__getitem__)
    form = FORM._replace(
        codes=weight.codes.dtype,
        bits=weight.bits,
        groups=weight.scales.shape[1],
        has_offsets=weight.offsets is not None,
    )
    strategy = opened()
    assert strategy.suits(form)
    product = strategy.take(form, weight, None)
    assert product is not None
    x = torch.from_numpy(rng.standard_normal((3, 256))).bfloat16()
    exact = x.double() @ torch.from_numpy(meant).double().t()
    error = torch.linalg.vector_norm(product(x).double() - exact)
    assert error < 0.004 * torch.linalg.vector_norm(exact), "scales and sums are bfloat16"


@pytest.mark.usefixtures("humming")
def test_the_library_is_asked_for_one_order_only_if_that_is_set() -> None:
    weight = next(multiplying.weights())
    form = FORM._replace(groups=weight.scales.shape[1])
    for is_set, asked in ((False, None), (True, {"use_batch_invariant": True})):
        product: Any = opened(batch_invariant=is_set).take(form, weight, None)
        product(torch.ones(2, form.columns, dtype=torch.bfloat16))
        assert product._forward.__self__.asked == [asked]
        assert product.is_steady is is_set


@pytest.mark.usefixtures("humming")
def test_a_library_that_wants_other_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HummingLayer, "named_parameters", lambda self: iter(()))
    weight = next(multiplying.weights())
    with pytest.raises(RuntimeError, match=r"expects \[\], not \['weight', 'weight_scale'\]"):
        opened().take(FORM._replace(groups=weight.scales.shape[1]), weight, None)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "humming.layer", None)
    with pytest.raises(ValueError, match=r"pip install 'gatewayd\[humming\]', or take humming out"):
        opened()


def test_on_a_cpu_it_does_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    strategy = Humming(HummingConfig())
    with caplog.at_level(logging.WARNING):
        strategy.open(QuantizerResources("", "cpu"))
    assert "humming requires a GPU; it has no effect on cpu" in caplog.text
    assert not strategy.suits(FORM)
