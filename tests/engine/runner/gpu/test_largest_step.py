"""Largest step of Llama 3.1 8B: memory of its live tensors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gatewayd_engine.runner.gpu.memory import run_largest
from tests.engine.runner.gpu.meta_device import decoder_of, install
from tests.engine.runner.gpu.no_host_reads import Unread
from tests.engine.runner.gpu.test_kernel_count import LLAMA_8B

GIB = 1 << 30
TOKENS, LINES = 8192, 512
"""The defaults for a GPU."""


class Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operations have made and that are not let go yet.

    Attributes:
        peak: the most of them at a time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(out):
            if _memory(tensor) not in given:
                storage = tensor.untyped_storage()
                made = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
                self._made[_memory(tensor)] = made
        self._made = {
            at: made
            for at, made in self._made.items()
            if not made[0].expired()  # type: ignore[no-untyped-call]
        }
        self.peak = max(self.peak, sum(num_bytes for _, num_bytes in self._made.values()))
        return out


def _memory(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(("has_drafts", "gib"), [(False, 1.0), (True, 1.1)])
def test_what_the_documentation_says_of_the_largest_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flashinfer: SimpleNamespace,
    has_drafts: bool,
    gib: float,
) -> None:
    """See the table of memory in ``docs/gpu.md``."""
    install(monkeypatch, Unread())
    from gatewayd_engine.kernels.triton_kernels import TritonKernels

    kernels: Any = TritonKernels()
    decoder = decoder_of(tmp_path, LLAMA_8B, kernels)
    with torch.inference_mode(), Living() as living:
        run_largest(decoder, kernels, TOKENS, LINES, has_drafts=has_drafts)
    assert round(living.peak / GIB, 1) == gib
