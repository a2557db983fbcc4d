"""KV codecs: the kit with each one's tolerance, and torch's values."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from gatewayd_hooks.kv_codecs import PlainRecords
from gatewayd_hooks.testing.kv_codecs import KvCodecConformance
from gatewayd_kv_bf16.config import Bf16Config
from gatewayd_kv_bf16.strategy import Bf16
from gatewayd_kv_fp8.config import Fp8CodecConfig
from gatewayd_kv_fp8.strategy import Fp8Codec
from gatewayd_kv_int4.config import Int4CodecConfig
from gatewayd_kv_int4.strategy import Int4Codec
from gatewayd_kv_int8.config import Int8CodecConfig
from gatewayd_kv_int8.strategy import Int8Codec

Format = Literal["e4m3", "e5m2"]
E4M3, E5M2 = Fp8CodecConfig(), Fp8CodecConfig(format="e5m2")
PLAIN = [Fp8CodecConfig(format=one.format, scale="none") for one in (E4M3, E5M2)]
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


class TestInt8(KvCodecConformance):
    def make(self) -> Int8Codec:
        return Int8Codec(Int8CodecConfig())

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        # Half a step, and what the scale has lost by its own rounding.
        return values.abs().amax(-1, keepdim=True) / 127 * (0.5 + 2.0**-7)


class TestFp8(KvCodecConformance):
    def make(self) -> Fp8Codec:
        return Fp8Codec(E4M3)

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        # Half of the last of four digits; half of the smallest number of all.
        step = values.abs().amax(-1, keepdim=True) / 448
        return values.abs() * 2.0**-4 * (1 + 2.0**-7) + step * 2.0**-10 * (1 + 2.0**-7)


class TestFp8OfMoreReach(KvCodecConformance):
    def make(self) -> Fp8Codec:
        return Fp8Codec(E5M2)

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        step = values.abs().amax(-1, keepdim=True) / 57_344
        return values.abs() * 2.0**-3 * (1 + 2.0**-7) + step * 2.0**-17 * (1 + 2.0**-7)


class TestFp8WithoutScale(KvCodecConformance):
    def make(self) -> Fp8Codec:
        return Fp8Codec(PLAIN[0])

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        sizes = values.abs()
        return torch.where(sizes > 448, sizes, sizes * 2.0**-4 + 2.0**-10)


class TestFp8OfMoreReachWithoutScale(KvCodecConformance):
    def make(self) -> Fp8Codec:
        return Fp8Codec(PLAIN[1])

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        sizes = values.abs()
        return torch.where(sizes > 57_344, sizes, sizes * 2.0**-3 + 2.0**-17)


class TestBf16(KvCodecConformance):
    def make(self) -> Bf16:
        return Bf16(Bf16Config())

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        return values.abs() * 2.0**-8


class TestInt4(KvCodecConformance):
    def make(self) -> Int4Codec:
        return Int4Codec(Int4CodecConfig(rotate=False))

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        # Half a step, and what its length and the least number lose as float16.
        inside = values.clamp(-65_504, 65_504)
        groups = inside.view(*inside.shape[:-1], -1, 32)
        least, reach = groups.amin(-1), groups.amax(-1) - groups.amin(-1)
        lost = reach / 30 + (least.abs() + reach) * 2.0**-10 + 2.0**-20
        return lost.repeat_interleave(32, -1) + (values - inside).abs()


class TestInt4Rotated(KvCodecConformance):
    def make(self) -> Int4Codec:
        return Int4Codec(Int4CodecConfig())

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        # What each of the 64 has lost is in all of them.
        rotated = (values.double() @ hadamard(64) / 64).float()
        lost = TestInt4().bound(rotated).double().sum(-1, keepdim=True)
        return (lost + rotated.abs().amax(-1, keepdim=True).double() * 2.0**-9).float()


def hadamard(size: int) -> torch.Tensor:
    """By the definition of Sylvester: minus one for each common one in the digits of its place."""
    ones = [[bin(i & j).count("1") for i in range(size)] for j in range(size)]
    return torch.tensor([[(-1.0) ** count for count in row] for row in ones]).double()


@pytest.mark.parametrize(
    ("codec", "dim", "size"),
    [
        (Int8Codec(Int8CodecConfig()), 64, 66),
        (Fp8Codec(E4M3), 128, 130),
        (Fp8Codec(E5M2), 64, 66),
        (Fp8Codec(PLAIN[0]), 64, 64),
        (Fp8Codec(PLAIN[1]), 65, 65),
        (Bf16(Bf16Config()), 64, 128),
        (Int4Codec(Int4CodecConfig()), 32, 20),
        (Int4Codec(Int4CodecConfig()), 64, 40),
        (Int4Codec(Int4CodecConfig(rotate=False)), 96, 60),
        (Int4Codec(Int4CodecConfig()), 256, 160),
    ],
)
def test_a_record_has_as_many_bytes_as_it_says(codec: Any, dim: int, size: int) -> None:
    assert codec.record_bytes(dim, torch.float32) == codec.record_bytes(dim, torch.bfloat16) == size
    values = torch.randn(3, 2, dim, generator=torch.Generator().manual_seed(dim))
    records = torch.empty(3, 2, size, dtype=torch.uint8)
    codec.encode(values, records)
    out = torch.full_like(values, torch.nan)
    codec.decode(records, out)
    assert float((out - values).abs().max()) < 0.5


@pytest.mark.parametrize(
    ("codec", "dim", "sentence"),
    [
        (
            Int4Codec(Int4CodecConfig()),
            80,
            "heads have 80 numbers, not a multiple of 32",
        ),
        (
            Int4Codec(Int4CodecConfig()),
            16,
            "heads have 16 numbers, not a multiple of 32",
        ),
        (Int8Codec(Int8CodecConfig()), 65, "heads have 65 numbers; int8 needs an even number"),
        (Fp8Codec(E4M3), 65, "heads have 65 numbers; fp8 needs an even number"),
    ],
)
def test_heads_that_do_not_fit_are_refused(codec: Any, dim: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        codec.record_bytes(dim, torch.float32)


def records_of(codes: torch.Tensor, scale: float) -> torch.Tensor:
    kept = torch.tensor([scale]).bfloat16().view(torch.uint8)
    return torch.cat([codes, kept])


def test_every_code_of_int8_is_that_often_its_scale() -> None:
    codes = torch.arange(256).to(torch.uint8)
    out = torch.empty(256)
    Int8Codec(Int8CodecConfig()).decode(records_of(codes, 0.25), out)
    assert out.tolist() == [0.25 * (i if i < 128 else i - 256) for i in range(256)]


@pytest.mark.parametrize(("name", "num_finite"), [("e4m3", 254), ("e5m2", 248)])
def test_every_code_of_fp8_is_what_torch_says(name: Format, num_finite: int) -> None:
    codes = torch.arange(256).to(torch.uint8)
    oracle = codes.view(FORMATS[name]).float()
    finite = oracle.isfinite()
    assert int(finite.sum()) == num_finite
    # As far as its reach is a float16's: the scale in a record belongs to those.
    factor = 256 if name == "e4m3" else 1
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(256, dtype=dtype)
        Fp8Codec(Fp8CodecConfig(format=name)).decode(records_of(codes, 4.0 * factor), out)
        assert torch.equal(out[finite].float(), oracle[finite] * 4)
        Fp8Codec(Fp8CodecConfig(format=name, scale="none")).decode(codes, out)
        assert torch.equal(out[finite].float(), oracle[finite])


def test_fp8_without_scales_is_plain_floats_for_a_device() -> None:
    for name in ("e4m3", "e5m2"):
        plain, scaled = (
            Fp8Codec(Fp8CodecConfig(format=name, scale="none")),
            Fp8Codec(Fp8CodecConfig(format=name)),
        )
        assert isinstance(plain, PlainRecords)
        assert plain.element(torch.bfloat16) == FORMATS[name]
        assert scaled.element(torch.bfloat16) is None


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_without_a_scale_codes_are_what_torch_rounds_to(name: Format) -> None:
    most = torch.finfo(FORMATS[name]).max
    values = torch.randn(64, 3, 64, generator=torch.Generator().manual_seed(3)) * most / 3
    out = torch.empty(64, 3, 64, dtype=torch.uint8)
    Fp8Codec(Fp8CodecConfig(format=name, scale="none")).encode(values, out)
    oracle = values.clamp(-most, most).to(FORMATS[name])
    assert torch.equal(out, oracle.view(torch.uint8))
    assert bool((oracle.float().abs() == most).any())


def test_the_largest_number_of_a_head_is_the_largest_code() -> None:
    values = torch.zeros(1, 2, 8)
    values[0, 0, 3], values[0, 1, 0] = -127.0, 448.0 * 8
    values[0, 0, 1], values[0, 1, 1] = 64.0, 0.5
    out = torch.empty(1, 2, 10, dtype=torch.uint8)
    Int8Codec(Int8CodecConfig()).encode(values, out)
    assert out[0, 0, :8].view(torch.int8).tolist() == [0, 64, 0, -127, 0, 0, 0, 0]
    Fp8Codec(E4M3).encode(values, out)
    assert out[0, 1, :8].view(torch.float8_e4m3fn).float().tolist()[:2] == [448.0, 0.0625]
    assert out[0, 1, 8:].view(torch.bfloat16).item() == 8.0 * 256


def test_a_bfloat16_engine_loses_nothing_with_bf16() -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16).view(64, 16, 64)
    out = torch.empty(64, 16, 128, dtype=torch.uint8)
    found = torch.empty_like(values)
    codec = Bf16(Bf16Config())
    codec.encode(values, out)
    codec.decode(out, found)
    assert torch.equal(found.view(torch.int16), bits.view(64, 16, 64))


def test_the_largest_of_float32_is_the_largest_bfloat16() -> None:
    values = torch.full((1, 1, 2), torch.finfo(torch.float32).max)
    out, found = torch.empty(1, 1, 4, dtype=torch.uint8), torch.empty(1, 1, 2)
    codec = Bf16(Bf16Config())
    codec.encode(values, out)
    codec.decode(out, found)
    assert found.tolist() == [[[torch.finfo(torch.bfloat16).max] * 2]]


def test_numbers_of_four_bits_are_what_a_loop_makes_of_a_record() -> None:
    record = torch.randint(256, (40,), generator=torch.Generator().manual_seed(4)).to(torch.uint8)
    ends = [(0.5, -3.0), (2.0, 1.25)]  # of each group the step and the least
    for group, pair in enumerate(ends):
        record[20 * group + 16 :][:4] = torch.tensor(pair).half().view(torch.uint8)
    plain, rotated = torch.empty(64), torch.empty(64)
    Int4Codec(Int4CodecConfig(rotate=False)).decode(record, plain)
    for i in range(64):
        byte = int(record[20 * (i // 32) + i % 32 // 2])
        step, least = ends[i // 32]
        assert plain[i] == least + (byte // 16 if i % 2 else byte % 16) * step
    Int4Codec(Int4CodecConfig()).decode(record, rotated)
    torch.testing.assert_close(rotated, (plain.double() @ hadamard(64)).float(), atol=0.02, rtol=0)


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 256])
def test_a_rotated_head_does_not_depend_on_those_beside_it(dim: int) -> None:
    # A product of floats does, in its last digits, from 256 numbers on at the latest.
    codec = Int4Codec(Int4CodecConfig())
    values = torch.randn(500, 3, dim, generator=torch.Generator().manual_seed(dim))
    records = torch.empty(500, 3, codec.record_bytes(dim, torch.float32), dtype=torch.uint8)
    numbers = torch.empty_like(values)
    codec.encode(values, records)
    codec.decode(records, numbers)
    for some in (slice(0, 1), slice(7, 9), slice(100, 103), slice(20, 220)):
        again, decoded = torch.empty_like(records[some]), torch.empty_like(values[some])
        codec.encode(values[some], again)
        codec.decode(again, decoded)
        assert torch.equal(again, records[some])
        assert torch.equal(decoded, numbers[some])


def test_a_rotation_spreads_what_stands_out() -> None:
    values = torch.randn(200, 2, 64, generator=torch.Generator().manual_seed(5))
    values[:, :, 7] *= 60

    def error(rotate: bool) -> float:
        codec = Int4Codec(Int4CodecConfig(rotate=rotate))
        records, out = torch.empty(200, 2, 40, dtype=torch.uint8), torch.empty_like(values)
        codec.encode(values, records)
        codec.decode(records, out)
        return float((out - values).square().mean())

    assert error(rotate=True) < error(rotate=False) / 2
