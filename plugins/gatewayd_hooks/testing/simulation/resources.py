"""Resources of a small engine, with which the kit opens strategies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gatewayd_hooks.resources import EngineResources

FIRST_SLOTS = 4
"""Initial capacity; small, so that the columns grow."""


def engine_resources(**changes: Any) -> EngineResources:  # noqa: ANN401 - any of its fields
    """Return the resources of a small engine.

    Args:
        changes: fields that differ.
    """
    sizes = EngineResources(
        num_pages=64,
        page_size=16,
        max_running=8,
        max_batch_tokens=128,
        max_model_len=1024,
        vocab_size=64,
        eos_token_ids=(2,),
        device="cpu",
        slots=FIRST_SLOTS,
        page_bytes=96,
    )
    return replace(sizes, **changes)
