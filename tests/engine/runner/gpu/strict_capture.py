"""CUDA graph capture on a CPU, as strict as a GPU's.

What ``CudaCapture`` promises is what holds here, and no more. A replay keeps the launches, and so
all that these refer to; of other tensors that were there before it has only the addresses. What was
made in a capture can be read in the same replay alone, and not by what is launched between pieces:
at all other times it is poison, as other replays and captures write to that memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from gatewayd_engine.runner.gpu.cuda_graphs import Between, PiecewiseLaunches, Replay
from tests.engine.runner.gpu.graph_memory import Address, poison, replaced, storage

_ASKING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
_FILL = torch.ops.aten.fill_.Tensor
"""Is given a number of the host as a tensor, which is a part of the launch."""
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_READING = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class Recorded:
    """Notes torch's operations and does them again, over the same memory.

    What the host has decided stays so.

    Attributes:
        replays: of each that ran, how many pieces it has.
        done: how many pieces the last one has behind it.
    """

    def __init__(self) -> None:
        self.replays: list[int] = []
        self.done = 0

    def whole(self, launches: Replay) -> Replay:
        """Not noted: the stand-in for FlashInfer computes on the host."""
        return launches

    def pieces(self, launches: PiecewiseLaunches) -> PiecewiseLaunches:
        notes = _Notes(launches)
        with notes.taken():
            launches(notes.cut)

        def replay(between: Between) -> None:
            self.replays.append(len(notes.pieces))
            self.done = 0

            def counted(index: int) -> None:
                self.done = index + 1
                between(index)

            notes.replay(counted)
            self.done = len(notes.pieces)

        return replay


class NothingRead(TorchFunctionMode):
    """Nothing of a tensor is read on the host; in inference mode reads are not dispatched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READING:
            raise RuntimeError("the host waits for the device")
        return func(*args, **(kwargs or {}))


class RecordedWhole(Recorded):
    """The same of decode steps, too, but for what is done ``beside`` the notes."""

    def whole(self, launches: Replay) -> Replay:
        notes = _Notes(launches)
        with notes.taken():
            launches()

        def replay() -> None:
            self.replays.append(1)
            notes.replay(lambda _: None)

        return replay


def is_recording() -> bool:
    """Whether what is launched now is noted."""
    return bool(_Notes.open)


def beside(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let a method that asks the host be called in each replay, with the arguments of its note."""
    method = getattr(owner, name)

    @wraps(method)
    def noted(*args: Any, **named: Any) -> Any:
        if not _Notes.open:
            return method(*args, **named)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return _Notes.open[-1].note(method, name, args, named)

    patch.setattr(owner, name, noted)


class _At:
    """Stands for a tensor that was there before, by its number in the piece."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Piece:
    """Operations between two cuts.

    Attributes:
        operations: each is given the tensors that were there before.
        outside: where those are.
        given: numbers of the memory that the operations are given.
        made: what they make.
    """

    def __init__(self) -> None:
        self.operations: list[Callable[[list[torch.Tensor]], None]] = []
        self.outside: list[Address] = []
        self.given: set[int] = set()
        self.made: list[torch.Tensor] = []
        self._places: dict[tuple[object, ...], int] = {}

    def place(self, tensor: torch.Tensor, user: str) -> int:
        """The number of a tensor among those that were there before."""
        address = Address(tensor, user)
        number = self._places.setdefault(address.key, len(self.outside))
        if number == len(self.outside):
            self.outside.append(address)
        return number


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    open: ClassVar[list[_Notes]] = []

    def __init__(self, launches: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pieces = [_Piece()]
        self._inside: set[int] = set()
        self._launches = launches

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Note what is launched meanwhile. On a GPU nothing of that is computed in a capture."""
        _Notes.open.append(self)
        try:
            with NothingRead(), self:
                yield
        finally:
            _Notes.open.pop()
            self._spoil()

    def cut(self, index: int) -> None:
        assert index == len(self.pieces) - 1
        self.pieces.append(_Piece())

    def replay(self, between: Between) -> None:
        try:
            for index, piece in enumerate(self.pieces):
                if index:
                    self._apart(index, between)
                outside = [address.tensor() for address in piece.outside]
                for operation in piece.operations:
                    operation(outside)
        finally:
            self._spoil()

    def _apart(self, index: int, between: Between) -> None:
        """Launch what is not captured, from which all that the pieces have made is hidden."""
        made = [tensor for piece in self.pieces[:index] for tensor in piece.made]
        wanted = set().union(*(piece.given for piece in self.pieces[index:]))
        kept = [(tensor, tensor.clone()) for tensor in made if storage(tensor) in wanted]
        poison(made)
        between(index - 1)
        for tensor, numbers in kept:
            tensor.copy_(numbers)

    def _spoil(self) -> None:
        for piece in self.pieces:
            poison(piece.made)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ASKING:
            raise RuntimeError("the host waits for the device")
        if func.overloadpacket.__name__ in _EMPTY:
            # Nothing is launched, and what is read before it is written is no number.
            out = func(*args, **(kwargs or {}))
            poison([self._kept(out)])
            return out
        return self.note(func, str(func), args, kwargs or {})

    def note(self, func: Any, name: str, args: Any, named: Any) -> Any:
        """Do something, and do it again in each replay."""
        out = func(*args, **named)
        piece = self.pieces[-1]
        given = {storage(tensor) for tensor in _tensors((args, named))}
        made = [
            (at, self._kept(tensor))
            for at, tensor in enumerate(_tensors(out))
            if storage(tensor) not in given
        ]
        if isinstance(func, torch._ops.OpOverload) and not made and not func._schema.is_mutable:
            return out  # a view
        piece.given |= given

        def outside(tensor: torch.Tensor) -> torch.Tensor | _At:
            if storage(tensor) in self._inside or (func is _FILL and not tensor.dim()):
                return tensor
            return _At(piece.place(tensor, name))

        call = replaced((args, named), torch.Tensor, outside)

        def again(before: list[torch.Tensor]) -> None:
            args, named = replaced(call, _At, lambda at: before[at.number])
            now = func(*args, **named)
            if made:
                now = _tensors(now)
                for at, tensor in made:
                    tensor.copy_(now[at])

        piece.operations.append(again)
        return out

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory of the graphs' pool, which is there as long as the capture."""
        self._inside.add(storage(tensor))
        self.pieces[-1].made.append(tensor)
        return tensor


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
