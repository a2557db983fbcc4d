"""Fixtures: FlashInfer attention over a stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from tests.engine.attention import fake_flashinfer

_MODULES = [
    f"gatewayd_engine.attention.flashinfer.{name}"
    for name in ("wrappers", "ragged", "backend", "cascade", "chunked")
]


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The classes that use FlashInfer, over the fake: ``FlashAttention``, ``CascadeAttention``."""
    fake_flashinfer.reset()
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(torch.cuda, "Event", fake_flashinfer.Event)
    for name in _MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    _, ragged, flash, cascade, chunked = [import_module(name) for name in _MODULES]
    yield SimpleNamespace(
        FlashAttention=flash.FlashAttention,
        CascadeAttention=cascade.CascadeAttention,
        ChunkedAttention=chunked.ChunkedAttention,
        flash=flash,
        ragged=ragged,
        prefill_backend=flash.prefill_backend,
        plans=fake_flashinfer.PLANS,
        runs=fake_flashinfer.RUNS,
    )
    for name in _MODULES:
        sys.modules.pop(name, None)
