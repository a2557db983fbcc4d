"""KV codec conformance: rejects larger errors than declared, and dependence on neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.kv_codecs import KvCodecConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


@pytest.mark.parametrize("name", ["int8", "fp8", "bf16"])
def test_a_sound_one_passes(verdict: Verdict, name: str) -> None:
    assert verdict(KvCodecConformance, Kind.KV_CODEC, name) == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def has_one_scale_for_all(codec: Any) -> None:
    encode = codec.encode

    def broken(values: torch.Tensor, out: torch.Tensor) -> None:
        most = values.abs().max() if values.numel() else values.new_ones(())
        encode(torch.cat([values, most.expand(*values.shape[:-1], 2)], -1), room := _room(out))
        out[..., :-2] = room[..., :-4]
        out[..., -2:] = room[..., -2:]

    codec.encode = broken


def _room(out: torch.Tensor) -> torch.Tensor:
    return out.new_empty(*out.shape[:-1], out.shape[-1] + 2)


def leaves_bytes_unwritten(codec: Any) -> None:
    record_bytes = codec.record_bytes
    encode, decode = codec.encode, codec.decode
    codec.record_bytes = lambda head_dim, dtype: record_bytes(head_dim, dtype) + 2
    codec.encode = lambda values, out: encode(values, out[..., :-2])
    codec.decode = lambda records, out: decode(records[..., :-2], out)


def begins_with_ones(codec: Any) -> None:
    decode = codec.decode

    def broken(records: torch.Tensor, out: torch.Tensor) -> None:
        decode(records, out)
        out[(records == 0).all(-1)] = 1

    codec.decode = broken


def cuts_small_numbers_off(codec: Any) -> None:
    encode = codec.encode
    codec.encode = lambda values, out: encode(torch.where(values.abs() < 1e-6, 0, values), out)


def overflows(codec: Any) -> None:
    decode = codec.decode

    def broken(records: torch.Tensor, out: torch.Tensor) -> None:
        decode(records, out)
        out[out.abs() > 65_504] = torch.inf

    codec.decode = broken


def overflows_far_out(codec: Any) -> None:
    decode = codec.decode

    def broken(records: torch.Tensor, out: torch.Tensor) -> None:
        decode(records, out)
        out.mul_(2.0**6).mul_(2.0**-6)

    codec.decode = broken


def throws_dice(codec: Any) -> None:
    encode = codec.encode

    def broken(values: torch.Tensor, out: torch.Tensor) -> None:
        step = values.abs().amax(-1, keepdim=True) / 127
        encode(values + step * (torch.rand(values.shape) - 0.5), out)

    codec.encode = broken


def depends_on_its_place(codec: Any) -> None:
    encode = codec.encode

    def broken(values: torch.Tensor, out: torch.Tensor) -> None:
        encode(values * (1 + torch.arange(len(values))[:, None, None] % 2 * 0.05), out)

    codec.encode = broken


def changes_what_it_is_given(codec: Any) -> None:
    encode = codec.encode

    def broken(values: torch.Tensor, out: torch.Tensor) -> None:
        encode(values, out)
        values.mul_(1.01)

    codec.encode = broken


def changes_records(codec: Any) -> None:
    decode = codec.decode

    def broken(records: torch.Tensor, out: torch.Tensor) -> None:
        decode(records, out)
        records.add_(1)

    codec.decode = broken


def needs_records_side_by_side(codec: Any) -> None:
    decode = codec.decode

    def broken(records: torch.Tensor, out: torch.Tensor) -> None:
        decode(records.as_strided(records.shape, records.new_empty(records.shape).stride()), out)

    codec.decode = broken


def knows_three_dimensions(codec: Any) -> None:
    decode = codec.decode

    def broken(records: torch.Tensor, out: torch.Tensor) -> None:
        tokens, heads, _ = records.shape
        decode(records, out.view(tokens, heads, -1))

    codec.decode = broken


def grows_once_it_is_open(codec: Any) -> None:
    record_bytes, open_ = codec.record_bytes, codec.open

    def broken(resources: Any) -> None:
        open_(resources)
        codec.record_bytes = lambda head_dim, dtype: record_bytes(head_dim, dtype) + 1

    codec.open = broken


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (has_one_scale_for_all, "test_a_record_depends_only_on_its_own_token_and_head"),
        (leaves_bytes_unwritten, "test_equal_numbers_give_equal_bytes_in_any_buffer"),
        (begins_with_ones, "test_a_record_of_zero_bytes_is_zeros"),
        (cuts_small_numbers_off, "test_numbers_come_back_within_the_bound"),
        (overflows, "test_numbers_come_back_within_the_bound"),
        (overflows_far_out, "test_very_large_numbers_stay_finite"),
        (throws_dice, "test_equal_numbers_give_equal_bytes_in_any_buffer"),
        (depends_on_its_place, "test_a_record_depends_only_on_its_own_token_and_head"),
        (changes_what_it_is_given, "test_inputs_are_not_modified"),
        (changes_records, "test_inputs_are_not_modified"),
        (
            needs_records_side_by_side,
            "test_gaps_between_records_are_not_written",
        ),
        (knows_three_dimensions, "test_records_may_have_any_shape_even_an_empty_one"),
        (grows_once_it_is_open, "test_the_size_of_a_record_is_known_before_it_is_opened"),
    ],
)
def test_a_broken_one_fails(
    catches: Catches, broken: Callable[[Any], None], caught_by: str
) -> None:
    assert catches(KvCodecConformance, Kind.KV_CODEC, "int8", broken, caught_by)
