"""Notes what Triton would compile a kernel anew for, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels


class Noted:
    """Torch's kernels; notes for what Triton would compile one of its own.

    Attributes:
        kinds: which kernels ran, over what kinds of tensors.
    """

    def __init__(self) -> None:
        self._kernels: Any = TorchKernels()
        self.kinds: set[tuple[object, ...]] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._kernels, name)

        def noted(*args: Any, **named: Any) -> Any:
            given = (*args, *named.values())
            kinds = [kind for arg in given for kind in _kinds(arg)]
            if name == "decode_attention":
                # Constants of the kernel, and what others follow from.
                kinds += [named["width"], named["splits"], named["window"], args[0].shape[1:]]
            self.kinds.add((name, *kinds))
            return kernel(*args, **named)

        return noted

    def attended(self) -> set[tuple[int, int]]:
        """Width and parts of a context of each kind of attention with a mask of ancestors."""
        return {
            (kind[-4], kind[-3])  # type: ignore[misc]
            for kind in self.kinds
            if kind[0] == "decode_attention" and any(_is_mask(one) for one in kind)
        }


def _is_mask(kind: object) -> bool:
    return isinstance(kind, tuple) and kind[0] == torch.int64


def _kinds(argument: Any) -> list[object]:
    """Types, alignment, and which strides are one or multiples of 16."""
    if is_dataclass(argument):
        return [kind for f in fields(argument) for kind in _kinds(getattr(argument, f.name))]
    if isinstance(argument, torch.Tensor):
        strides = [1 if stride == 1 else stride % 16 == 0 for stride in argument.stride()]
        return [(argument.dtype, argument.data_ptr() % 16 == 0, *strides)]
    return [argument is None]
