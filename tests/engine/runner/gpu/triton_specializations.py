"""Triton specializations: keys for which a kernel would be recompiled, on the CPU.

The project's kernels are called down to their launch, which is noted in place of Triton's; torch's
compute. What is noted is what Triton makes a binary for: types, numbers that are one or divisible
by 16 and alignment of tensors, unless a kernel is told not to specialize on them, and constants.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels

_ALIGNED = 16
_INT32 = 1 << 31


class CompiledKind(NamedTuple):
    """One binary of a kernel.

    Attributes:
        kernel: its name.
        arguments: by name, what the binary depends on; options of the launch among them.
    """

    kernel: str
    arguments: frozenset[tuple[str, object]]


class Noted:
    """Torch's kernels; notes what Triton would compile of the project's own.

    Attributes:
        kinds: which binaries ran.
        launches_early: see ``Kernels``.
    """

    can_launch_early = False

    def __init__(self) -> None:
        # Not before: what tests of kernels are told to interpret is told at the first import.
        from gatewayd_engine.kernels.triton_kernels import TritonKernels

        self._torch: Any = TorchKernels()
        self._triton: Any = TritonKernels()
        self.launches_early = False
        self.kinds: set[CompiledKind] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        compute, launch = getattr(self._torch, name), getattr(self._triton, name)

        def noted(*args: Any, **named: Any) -> Any:
            self._note(launch, args, named)
            return compute(*args, **named)

        return noted

    def attended(self) -> set[tuple[int, int]]:
        """Width and parts of a context of each kind of attention with a mask of ancestors."""
        found = [dict(kind.arguments) for kind in self.kinds if kind.kernel == "_decode_attention"]
        return {(kind["WIDTH"], kind["SPLITS"]) for kind in found if kind["MASK"] == "tree"}  # type: ignore[misc]

    def _note(self, launch: Callable[..., Any], args: Any, named: Any) -> None:
        from triton.runtime.jit import KernelInterface

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KernelInterface, "__getitem__", self._launch)
            launch(*args, **named)

    @property
    def _launch(self) -> Callable[[Any, Any], Any]:
        """In the place of Triton's ``kernel[grid]``."""
        return lambda kernel, grid: (
            lambda *args, **named: self.kinds.add(compiled_kind(kernel, args, named))
        )


def compiled_kind(kernel: Any, args: Any, named: Any) -> CompiledKind:
    """The binary that a launch of a kernel takes.

    Args:
        kernel: of Triton.
        args: of the launch.
        named: likewise, with its options.
    """
    exempt = made_with(kernel)["do_not_specialize"] or ()
    is_constant = _parameters(kernel.fn)
    given = dict(zip(is_constant, args, strict=False)) | named
    kinds = {
        name: value if is_constant.get(name, True) else _kind(value, name not in exempt)
        for name, value in given.items()
    }
    return CompiledKind(kernel.fn.__name__, frozenset(kinds.items()))


def made_with(kernel: Any) -> dict[str, Any]:
    """The options of a kernel of Triton; where it is interpreted they are kept apart."""
    options: dict[str, Any] = getattr(kernel, "kwargs", None) or vars(kernel)
    return options


@cache
def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """Whether each parameter is a constant."""
    parameters = inspect.signature(function).parameters
    return {name: "constexpr" in str(each.annotation) for name, each in parameters.items()}


def _kind(value: Any, is_specialized: bool) -> object:
    if isinstance(value, torch.Tensor):
        return value.dtype, is_specialized and value.data_ptr() % _ALIGNED == 0
    if isinstance(value, bool) or not isinstance(value, int):
        return type(value)
    if is_specialized and value == 1:
        return 1
    is_small = -_INT32 <= value < _INT32
    return is_small, is_specialized and value % _ALIGNED == 0
