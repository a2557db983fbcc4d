"""Attention over encoded KV: equals dense attention over the decoded values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gatewayd_engine.attention import dense_contexts
from gatewayd_engine.kv.codec import Codec
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_kv_bf16.config import Bf16Config
from gatewayd_kv_bf16.strategy import Bf16
from gatewayd_kv_fp8.config import Fp8CodecConfig
from gatewayd_kv_fp8.strategy import Fp8Codec
from gatewayd_kv_int4.config import Int4CodecConfig
from gatewayd_kv_int4.strategy import Int4Codec
from gatewayd_kv_int8.config import Int8CodecConfig
from gatewayd_kv_int8.strategy import Int8Codec
from tests.engine.attention.test_reference import Twin, diverge, wander

CODECS: dict[str, tuple[Any, int]] = {
    "int8": (Int8Codec(Int8CodecConfig()), 8),
    "fp8": (Fp8Codec(Fp8CodecConfig()), 8),
    "fp8 e5m2 plain": (Fp8Codec(Fp8CodecConfig(format="e5m2", scale="none")), 8),
    "int4": (Int4Codec(Int4CodecConfig()), 32),
    "int4 as it is": (Int4Codec(Int4CodecConfig(rotate=False)), 32),
    "bf16": (Bf16(Bf16Config()), 8),
}
"""Codecs, and the smallest heads that they take here."""


def codec(name: str) -> Codec:
    strategy, dim = CODECS[name]
    return Codec(strategy, strategy.record_bytes(dim, torch.float32), dim, torch.float32)


@pytest.mark.parametrize(
    ("name", "softcap", "windows", "copy_bytes"),
    [
        ("int8", None, (0, 0), 0),
        ("fp8", 3.0, (0, 9), 300_000),
        ("int8", None, (0, 9), 1 << 26),
        ("fp8", None, (0, 0), 1 << 26),
        ("fp8 e5m2 plain", None, (0, 9), 300_000),
        ("int4", 3.0, (0, 9), 0),
        ("int4 as it is", None, (0, 0), 1 << 20),
        ("bf16", None, (0, 9), 1 << 26),
    ],
)
def test_pages_give_what_dense_attention_gives(
    name: str, softcap: float | None, windows: tuple[int, ...], copy_bytes: int
) -> None:
    shape = AttentionShape(2, 6, 2, CODECS[name][1], 0.3, softcap, windows)
    wander(Twin(shape, copy_bytes, 1, codec(name)), 14)


@pytest.mark.parametrize("values_are_keys", [False, True])
def test_what_sequences_share_is_attended_as_if_it_were_their_own(
    values_are_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_contexts, "_LEAST_GAIN", 2048)
    shape = AttentionShape(2, 6, 2, 8, 0.3, None, (0, 0), values_are_keys)
    diverge(Twin(shape, 1 << 26, 3, codec("int8")), 30)
