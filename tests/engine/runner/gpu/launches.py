"""Kernel launches of a step, and bytes read and written, counted on the CPU.

Each method of ``Kernels`` stands for the kernels it launches; torch's operations are one each but
for those that only make views or take memory. Bytes are those of the tensors that are given and
made: what a cache holds in between is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SEVERAL = {"sample": ("pivots", "draw", "choose")}
"""Methods that launch more than one kernel."""
_SILENT = {
    *("view", "_unsafe_view", "t", "transpose", "select", "slice", "split", "split_with_sizes"),
    *("unbind", "expand", "unsqueeze", "alias", "detach", "as_strided", "empty", "empty_like"),
    *("new_empty", "permute"),
}
"""Operations that launch nothing."""


class Launch(NamedTuple):
    """One kernel."""

    name: str
    num_bytes: int


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is launched while it is entered.

    Attributes:
        made: the launches in their order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Launch] = []
        self._is_inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not self._is_inside and name not in _SILENT:
            num_bytes = _bytes((args, kwargs, out))
            if name == "embedding":
                num_bytes = 2 * out.nbytes  # the rows that are looked up, and the answer
            self.made.append(Launch(name, num_bytes))
        return out

    @property
    def counts(self) -> Counter[str]:
        """How often each was launched."""
        return Counter(launch.name for launch in self.made)

    @contextmanager
    def inside(self, *names: str) -> Iterator[None]:
        """What is computed meanwhile is done by these kernels of a device."""
        self.made += [Launch(name, 0) for name in names]
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    def moves(self, num_bytes: int) -> None:
        """So much was read and written by the last launch."""
        self.made[-1] = Launch(self.made[-1].name, num_bytes)


class CountedKernels:
    """Kernels that are noted, if something notes.

    Attributes:
        launches: what notes; None for nothing.
    """

    can_launch_early = False
    launches_early = False

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self.launches: Launches | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._kernels, name)

        def noted(*args: Any, **named: Any) -> Any:
            if self.launches is None:
                return kernel(*args, **named)
            with self.launches.inside(*_SEVERAL.get(name, (name,))):
                out = kernel(*args, **named)
            num_bytes = _bytes((args, named, out))
            if name == "add_rms_norm":
                num_bytes += args[0].nbytes  # the stream is written as well
            if name == "rope_append":
                heads, table = args[:2]
                # Read once, written over or to the pool; an angle for each token.
                num_bytes = 2 * heads.nbytes + len(heads) * table[0].nbytes
            self.launches.moves(num_bytes)
            return out

        return noted


def _bytes(tree: Any) -> int:
    tensors = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
    return sum(tensor.nbytes for tensor in tensors.values())
