"""Host syncs counted where a CPU stands for a device."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_METHODS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")
_OPERATIONS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
_NUMBERS = {torch.ops.aten.index_put_.default: 2, torch.ops.aten.copy_.default: 1}
"""Where the value of ``x[i] = 1`` stands, which is copied from the host and waited for; ``fill_``
takes it along with the launch."""
_STAND_INS = ("/kernels/", "/tests/", "/device/transfers.py")
"""Twins and FlashInfer's stand-in compute on the host; only copies to the host are waited for."""


class Waits:
    """What was asked of tensors while it was watched: by whom, and how often."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._is_watched = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        self._is_watched = True
        try:
            with _Operations(self):
                yield
        finally:
            self._is_watched = False

    def note(self, name: str) -> None:
        if not self._is_watched:
            return
        frame: Any = sys._getframe(2)
        while "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        file = frame.f_code.co_filename
        if not any(part in file for part in _STAND_INS):
            self.asked[f"{name} in {file}:{frame.f_lineno}"] += 1


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, waits: Waits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = [one for one in args[1] if one is not None] if func in _INDEXING else []
        is_number = func in _NUMBERS and not args[_NUMBERS[func]].dim()
        if func in _OPERATIONS or is_number or any(one.dtype == torch.bool for one in masks):
            self._waits.note(str(func))
        return func(*args, **(kwargs or {}))


def watch(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Count where it is watched."""
    waits = Waits()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **named: Any) -> Any:
            waits.note(name)
            return method(*args, **named)

        return noted

    for name in _METHODS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    return waits
