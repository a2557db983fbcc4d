"""Watermark oracle: the definition in plain integers."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from gatewayd_logits_watermark.config import WatermarkConfig

MASK64, MASK32 = 2**64 - 1, 2**32 - 1
SECRET = "a secret of sixteen and more"


def config(**settings: Any) -> WatermarkConfig:
    return WatermarkConfig(secret=SECRET, **settings)


def is_green(key: bytes, context: Sequence[int], token: int, gamma: float) -> bool:
    """The definition, in integers of any size."""
    digest = blake2b(np.array(context, "<i8").tobytes(), digest_size=8, key=key).digest()
    multiplier = int.from_bytes(digest[:4], "little") | 1
    addend = int.from_bytes(digest[4:], "little")
    value = (token + 0x9E3779B97F4A7C15) & MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK64
    number = (value ^ value >> 31) >> 32
    # Signed numbers begin in the middle of the unsigned ones.
    return (multiplier * number + addend + 2**31) & MASK32 < round(gamma * 2**32)
