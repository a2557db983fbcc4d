"""KV codecs: the kit with what each may lose, and their numbers against torch's own."""

from __future__ import annotations

import torch

from gatewayd_hooks.testing.kv_codecs import KvCodecConformance
from gatewayd_kv_fp8.config import Fp8Config
from gatewayd_kv_fp8.strategy import Fp8
from gatewayd_kv_int8.config import Int8Config
from gatewayd_kv_int8.strategy import Int8


class TestInt8(KvCodecConformance):
    def make(self) -> Int8:
        return Int8(Int8Config())

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        # Half a step, and what the scale has lost by its own rounding.
        return values.abs().amax(-1, keepdim=True) / 127 * (0.5 + 2.0**-7)


class TestFp8(KvCodecConformance):
    def make(self) -> Fp8:
        return Fp8(Fp8Config())

    def bound(self, values: torch.Tensor) -> torch.Tensor:
        # Half of the last of four digits; half of the smallest number of all.
        step = values.abs().amax(-1, keepdim=True) / 448
        return values.abs() * 2.0**-4 * (1 + 2.0**-7) + step * 2.0**-10 * (1 + 2.0**-7)


def test_a_record_is_a_byte_for_each_number_and_two_for_their_scale() -> None:
    for codec in (Int8(Int8Config()), Fp8(Fp8Config())):
        assert codec.record_bytes(64, torch.float32) == codec.record_bytes(64, torch.bfloat16) == 66


def records_of(codes: torch.Tensor, scale: float) -> torch.Tensor:
    kept = torch.tensor([scale]).bfloat16().view(torch.uint8)
    return torch.cat([codes, kept])


def test_every_code_of_int8_is_that_often_its_scale() -> None:
    codes = torch.arange(256).to(torch.uint8)
    out = torch.empty(256)
    Int8(Int8Config()).decode(records_of(codes, 0.25), out)
    assert out.tolist() == [0.25 * (i if i < 128 else i - 256) for i in range(256)]


def test_every_code_of_fp8_is_what_torch_says() -> None:
    codes = torch.arange(256).to(torch.uint8)
    oracle = codes.view(torch.float8_e4m3fn).float()
    finite = oracle.isfinite()
    assert int(finite.sum()) == 254
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(256, dtype=dtype)
        Fp8(Fp8Config()).decode(records_of(codes, 4.0), out)
        assert torch.equal(out[finite].float(), oracle[finite] * 4)


def test_the_largest_number_of_a_head_is_the_largest_code() -> None:
    values = torch.zeros(1, 2, 8)
    values[0, 0, 3], values[0, 1, 0] = -127.0, 448.0 * 8
    values[0, 0, 1], values[0, 1, 1] = 64.0, 0.5
    out = torch.empty(1, 2, 10, dtype=torch.uint8)
    Int8(Int8Config()).encode(values, out)
    assert out[0, 0, :8].view(torch.int8).tolist() == [0, 64, 0, -127, 0, 0, 0, 0]
    Fp8(Fp8Config()).encode(values, out)
    assert out[0, 1, :8].view(torch.float8_e4m3fn).float().tolist()[:2] == [448.0, 0.0625]
    assert out[0, 1, 8:].view(torch.bfloat16).item() == 8.0
