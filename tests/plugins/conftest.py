"""Fixtures of all tests of plugins: what is drawn is the same in each run."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """What is drawn without a generator is the same whatever ran before."""
    import torch

    torch.manual_seed(0)
