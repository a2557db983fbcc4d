"""Attention over records equals dense attention over what they are decoded to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gatewayd_engine.attention import contexts
from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.kv.codec import Codec
from gatewayd_kv_fp8.config import Fp8Config
from gatewayd_kv_fp8.strategy import Fp8
from gatewayd_kv_int8.config import Int8Config
from gatewayd_kv_int8.strategy import Int8
from tests.engine.attention.test_reference import Twin, diverge, wander

DIM = 8
CODECS: dict[str, Any] = {"int8": Int8(Int8Config()), "fp8": Fp8(Fp8Config())}


def codec(name: str) -> Codec:
    strategy = CODECS[name]
    return Codec(strategy, strategy.record_bytes(DIM, torch.float32), DIM, torch.float32)


@pytest.mark.parametrize(
    ("name", "softcap", "windows", "copy_bytes"),
    [
        ("int8", None, (0, 0), 0),
        ("fp8", 3.0, (0, 9), 300_000),
        ("int8", None, (0, 9), 1 << 26),
        ("fp8", None, (0, 0), 1 << 26),
    ],
)
def test_pages_give_what_dense_attention_gives(
    name: str, softcap: float | None, windows: tuple[int, ...], copy_bytes: int
) -> None:
    shape = AttentionShape(2, 6, 2, DIM, 0.3, softcap, windows)
    wander(Twin(shape, copy_bytes, 1, codec(name)), 14)


def test_what_sequences_share_is_attended_as_if_it_were_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contexts, "_LEAST_GAIN", 4096)
    shape = AttentionShape(2, 6, 2, DIM, 0.3, None, (0, 0))
    diverge(Twin(shape, 1 << 26, 3, codec("int8")), 30)
