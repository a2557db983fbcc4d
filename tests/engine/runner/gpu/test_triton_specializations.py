"""Triton specializations: recompilations that warmup misses are found."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.runner.gpu.test_warmup import verified
from tests.engine.runner.gpu.triton_specializations import compiled_kind, made_with

Make = Callable[..., Any]
constexpr = Any


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize(
    ("module", "kernel"),
    [
        ("attention.decode", "_decode_attention"),
        ("attention.partial_results", "_merge_parts"),
        ("verification.accept", "_accept"),
    ],
)
def test_a_number_that_a_kernel_is_specialized_on_is_found(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, module: str, kernel: str
) -> None:
    """Kernels are given numbers of lines in steps that were not among those of warming."""
    found = getattr(import_module(f"gatewayd_engine.kernels.{module}"), kernel)
    monkeypatch.setitem(made_with(found), "do_not_specialize", ())
    kernels, warmed = verified(make_device_engine, monkeypatch, "chain", capture="off")
    assert {kind.kernel for kind in kernels.kinds - warmed} == {kernel}


def test_kinds_are_those_of_triton() -> None:
    def fn(x: Any, size: Any, count: Any, BLOCK: constexpr) -> None:
        """Of which nothing is launched."""

    kernel = SimpleNamespace(fn=fn, kwargs={"do_not_specialize": ["count"]})
    x = torch.zeros(64)

    def kind(*args: Any, **named: Any) -> object:
        return compiled_kind(kernel, args, {"BLOCK": 4, "num_warps": 4, **named})

    assert kind(x, 3, 3) == kind(x[4:], 5, 1) == kind(x, 17, 16)
    several = [
        kind(x, 3, 3),
        kind(x, 1, 3),
        kind(x, 16, 3),
        kind(x, 1 << 40, 3),
        kind(x, (1 << 40) + 1, 3),
        kind(x, 3, 1 << 40),
        kind(x[1:], 3, 3),
        kind(x.int(), 3, 3),
        kind(x, 3.0, 3),
        kind(None, 3, 3),
        kind(x, 3, 3, BLOCK=8),
        kind(x, 3, 3, num_warps=8),
    ]
    assert len(set(several)) == len(several)
