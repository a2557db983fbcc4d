"""Whole engines whose captured decode steps attend by the decode attention of our kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.core.test_tokens import compare
from tests.engine.device.conftest import mixed_prompts

pytestmark = [
    pytest.mark.usefixtures("small_model"),
    pytest.mark.parametrize("make_device_engine", ["own"], indirect=True),
]

Make = Callable[..., Any]


def test_windows_give_the_tokens_of_transformers(
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
    oracle: Callable[[Path], Any],
) -> None:
    folder = checkpoint("mistral")
    engine = make_device_engine(
        folder, page_size=2, kv_pages=180, max_batch_tokens=64, max_running=4, max_model_len=320
    )
    compare(engine, oracle(folder), mixed_prompts(6, 300, 160), 8, must_preempt=None)
