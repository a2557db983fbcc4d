"""Ragged prefill on a device runner: answers equal the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.attention import fake_flashinfer
from tests.engine.core.prompts import PROMPTS

pytestmark = pytest.mark.usefixtures("small_model")


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize("tokens", [16, 512])
def test_prompts_whole_and_in_chunks(
    make_device_engine: Callable[..., Any],
    undisturbed: list[list[int]],
    flashinfer: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
) -> None:
    monkeypatch.setattr(flashinfer.flash, "prefill_backend", lambda shape, pool: "fa3")
    kind = flashinfer.ragged.RaggedChunks
    monkeypatch.setattr(flashinfer.flash, "RaggedChunks", lambda *args: kind(*args, least_merged=0))
    engine = make_device_engine(max_batch_tokens=tokens, max_running=6)
    fake_flashinfer.RUNS.clear()
    asked: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    ids = [engine.submit(prompt, **asked)[0] for prompt in PROMPTS[:6]]
    done = engine.run()
    assert [done[i].tokens for i in ids] == undisturbed[:6]
    assert fake_flashinfer.BatchPrefillWithRaggedKVCacheWrapper in map(type, fake_flashinfer.RUNS)
    # The same prompts again: all but their last tokens are in pages.
    ids = [engine.submit(prompt, **asked)[0] for prompt in PROMPTS[:6]]
    done = engine.run()
    assert [done[i].tokens for i in ids] == undisturbed[:6]
