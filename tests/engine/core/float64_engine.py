"""Engines that compute in float64 on request."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gatewayd_engine.core import build


def compute_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make float64 a type that an engine may have.

    The last digits of a float32 depend on what else is in the batch. Without a codec that hardly
    ever matters; with one, a number between two codes may be rounded to either. No number of
    float64 is as near to the middle.
    """
    norm = torch.linalg.vector_norm

    def without_narrowing(*args: Any, dtype: object = None, **options: Any) -> torch.Tensor:
        found: torch.Tensor = norm(*args, **options)
        return found

    monkeypatch.setitem(build._DTYPES, "float64", torch.float64)
    monkeypatch.setattr(torch.linalg, "vector_norm", without_narrowing)
