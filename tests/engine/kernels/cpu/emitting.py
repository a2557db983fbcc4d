"""Small functions compiled around emitted kernels, called with tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.llvm.builder import F32, I64, KernelFunction, new_module
from gatewayd_engine.kernels.llvm.compiler import to_object
from gatewayd_engine.kernels.llvm.library import Library
from gatewayd_engine.kernels.llvm.processor import Processor, host

FLOATS, INTEGERS, NUMBER = [F32], [I64], I64
"""Types of parameters: addresses of float32 numbers or of int64, and an int64."""


def this_processor() -> Processor:
    """This machine's processor, or none of the test."""
    found = host()
    if found is None:
        pytest.skip("no compiled kernels for this processor")
    return found


class Emitted:
    """A compiled function.

    Args:
        parameters: see ``KernelFunction``.
        emit: emits its body.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        emit: Callable[..., None],
    ) -> None:
        processor = this_processor()
        module = new_module("emitted")
        f = KernelFunction(module, "emitted", parameters, is_exported=True)
        emit(f, *f.arguments)
        f.finish()
        self._library = Library(to_object(module, processor))
        self.address = self._library.address("emitted")
        self._function = self._library.function("emitted", len(parameters))

    def __call__(self, *arguments: torch.Tensor | int) -> None:
        """Call it; the numbers of tensors are adjacent, and None is a null pointer."""
        for each in arguments:
            assert not isinstance(each, torch.Tensor) or each.is_contiguous()
        self._function(
            *(each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments)
        )
