"""Capture on meta tensors: launches have nothing to read on the host.

Tensors of torch's meta device stand for those of a GPU. All that would make the host wait for it,
or that a graph could not do again, is an error: a number that is read, a shape that follows from
numbers, and a copy between host and device. Kernels are the project's own down to their launch,
where it is looked at what they are given.
"""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gatewayd_engine.runner.gpu.cuda_graphs import PiecewiseLaunches, Replay

DEVICE = torch.device("meta")
_READS = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"}
_READS |= {"__contains__", "is_nonzero", "equal", "allclose"}
_COPIES = {"tensor", "as_tensor", "new_tensor"}
"""Make tensors of numbers of the host."""
_DYNAMIC = {"nonzero", "masked_select", "unique", "_unique2", "unique_dim", "bincount", "argwhere"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_OPTIONS = {"num_warps", "num_stages", "num_ctas", "launch_pdl"}
"""Of a launch, and no arguments of its kernel."""


class Waits(RuntimeError):
    """The host would wait for the device, or a replay would not do the same again."""


class Unread:
    """Launches once what is captured, and notes what was wrong with it.

    Attributes:
        captured: how often something was.
        launched: the kernels of the project, by name.
        errors: what captures raised.
    """

    def __init__(self) -> None:
        self.captured = 0
        self.launched: Counter[str] = Counter()
        self.errors: list[Exception] = []

    def whole(self, launches: Replay) -> Replay:
        self._launch(launches)
        return launches

    def pieces(self, launches: PiecewiseLaunches) -> PiecewiseLaunches:
        self._launch(lambda: launches(lambda _: None))
        return launches

    def _launch(self, launches: Replay) -> None:
        try:
            with pytest.MonkeyPatch.context() as patch:
                for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
                    patch.setattr(owner, "synchronize", _wait, raising=False)
                with _Calls(), _Operations():  # type: ignore[no-untyped-call]
                    launches()
        except Exception as error:
            # Others may be left out with a warning.
            self.errors.append(error)
            raise
        self.captured += 1

    def kernel(self, kernel: Any, grid: Any) -> Any:
        """In the place of Triton's ``kernel[grid]``."""

        def launch(*args: Any, **named: Any) -> None:
            sizes = {name: value for name, value in named.items() if name not in _OPTIONS}
            bound = inspect.signature(kernel.fn).bind(*args, **sizes)
            name = kernel.fn.__name__
            if not all(type(size) is int for size in grid):
                raise Waits(f"{name} is launched on a grid of {grid}")
            for parameter, value in bound.arguments.items():
                if isinstance(value, torch.Tensor) and value.device != DEVICE:
                    raise Waits(f"{name} is given {parameter} on {value.device}")
            self.launched[name] += 1

        return launch


def _wait(*args: object) -> None:
    raise Waits("the host waits for the device")


class _Calls(TorchFunctionMode):
    """Sees what is not dispatched: numbers that are read, or that come from the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            raise Waits(f"{name} reads a tensor")
        if name == "__setitem__" and args[0].device == DEVICE and not torch.is_tensor(args[2]):
            where = args[1] if isinstance(args[1], tuple) else (args[1],)
            is_number = len(where) == args[0].dim() and all(isinstance(one, int) for one in where)
            # Elsewhere the value is an argument of a launch.
            if is_number or any(map(torch.is_tensor, where)):
                raise Waits("a number that is assigned is copied from the host")
        out = func(*args, **(kwargs or {}))
        if name in _COPIES and out.device == DEVICE:
            raise Waits(f"{name} copies numbers of the host")
        return out


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the rest."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named = func.overloadpacket.__name__, kwargs or {}
        given = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device for tensor in given if tensor.dim() or tensor.device == DEVICE}
        goes = named.get("device")
        if DEVICE in devices or goes == DEVICE:
            if name in _READS or name in _DYNAMIC or (name == "where" and len(args) == 1):
                raise Waits(f"{name} reads a tensor")
            if len(devices) > 1 or (goes is not None and devices and devices != {goes}):
                raise Waits(f"{name} is between host and device")
            if name in _INDEXING and any(
                index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
            ):
                raise Waits(f"{name} by a mask reads it")
            if name == "repeat_interleave" and len(given) > 1 and not named.get("output_size"):
                raise Waits(f"{name} reads counts")
        return func(*args, **named)
