"""Fixtures: engines with device steps on the CPU: torch kernels, FlashInfer stand-in."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.sinks import SinkScaling
from gatewayd_engine.attention.triton_decode import DecodeAttention, DecodeKernels
from gatewayd_engine.core import build as assembly
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.runner import backend
from gatewayd_engine.runner.backend import DeviceBackend
from gatewayd_engine.runner.gpu.cuda_graphs import Capture, LaunchEach
from tests.engine.attention import fake_flashinfer
from tests.engine.attention.conftest import flashinfer
from tests.engine.core.conftest import (
    Harness,
    MakeEngine,
    build,
    make_engine,
    mixed_prompts,
    oracle,
    patient,
    small_model,
    undisturbed,
)
from tests.engine.runner.gpu.strict_capture import is_recording

__all__ = [
    "flashinfer",
    "make_engine",
    "mixed_prompts",
    "oracle",
    "patient",
    "small_model",
    "undisturbed",
]


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's attention looks through all pages that it is given; here those of no line are not."""
    attend: Any = TorchKernels.decode_attention

    def narrowed(query: Any, layer: Any, indptr: Any, pages: Any, *rest: Any, **named: Any) -> None:
        if not is_recording():  # what is recorded must not depend on lengths
            pages = pages[: max(int(indptr.numpy()[-1]), 1)]
        attend(query, layer, indptr, pages, *rest, **named)

    monkeypatch.setattr(TorchKernels, "decode_attention", staticmethod(narrowed))


@pytest.fixture
def capture() -> Capture:
    """How steps are captured."""
    return LaunchEach()


@pytest.fixture(params=["paged", "captured"])
def make_device_engine(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    flashinfer: SimpleNamespace,
    capture: Capture,
    few_pages: None,
) -> Iterator[MakeEngine]:
    """See ``build``; with torch's attention, or with FlashInfer's and captured steps.

    Tests that ask for "own" get captured steps with the decode attention of our kernels.
    """

    def backend_for(config: EngineConfig, progress: Any) -> DeviceBackend:
        return DeviceBackend(config, TorchKernels(), capture, progress)

    def attention(
        shape: Any,
        pool: Any,
        append: Any,
        *sizes: Any,
        shares_prefixes: bool,
        tuning: Any,
        **named: Any,
    ) -> Any:
        own, sinks = DecodeKernels(shape, pool, append, *sizes, **named), named["sinks"]
        scaling = None if sinks is None else SinkScaling(TorchKernels(), sinks)
        least = 64 if shares_prefixes else None
        if request.param == "own" or shape.values_are_keys:
            return DecodeAttention(own, PagedAttention(shape, pool, append, own, sinks), least)
        if shape.chunked and any(shape.windows):
            flash = flashinfer.ChunkedAttention(shape, pool, append, scaling)
        elif shares_prefixes:
            flash = flashinfer.CascadeAttention(shape, pool, append, least_saved=64, sinks=scaling)
        else:
            flash = flashinfer.FlashAttention(shape, pool, append, scaling)
        return DecodeAttention(own, flash, least)

    monkeypatch.setattr(fake_flashinfer, "IS_GUARDED", False)
    opened: list[Harness] = []

    def make(model: Path | None = None, **fields: Any) -> Harness:
        fields = {"kv_bytes": 1 << 30, "dtype": "float32", **fields}
        with monkeypatch.context() as patch:
            patch.setattr(assembly, "backend_for", backend_for)
            # A decoder of its own, also after tests whose engines share theirs: what is chosen for
            # its products is kept in it.
            patch.setattr(assembly, "read", read)
            # No garbage holds memory of a device here; there is much to look through.
            patch.setattr(gc, "collect", lambda: 0)
            if request.param != "paged":
                patch.setattr(backend, "device_attention", attention)
            opened.append(build(model, **fields))
        return opened[-1]

    yield make
    for harness in opened:
        harness.core.check()
        harness.core.strategies.close()


@pytest.fixture
def device_runner() -> Callable[[Harness], Any]:
    """What computes an engine's batches."""
    return lambda engine: engine.core._runner
