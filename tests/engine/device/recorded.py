"""A capture for a CPU that is as strict as one of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from gatewayd_engine.device.graphs import Between, Broken, Replay

_ASKING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)

_READING = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class Recorded:
    """Notes torch's operations and does them again, over the same memory.

    What the host has decided stays so. What is made in a replay is no number before it is made
    again, so that nothing of an earlier one is read.

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

    def pieces(self, launches: Broken) -> Broken:
        notes = _Notes()
        with notes:
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
        notes = _Notes()
        with notes:
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
        with _disable_current_modes():
            return _Notes.open[-1].note(method, args, named)

    patch.setattr(owner, name, noted)


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    open: ClassVar[list[_Notes]] = []

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pieces: list[list[Callable[[], None]]] = [[]]
        self._made: list[torch.Tensor] = []

    def __enter__(self) -> _Notes:
        _Notes.open.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *why: object) -> None:
        super().__exit__(*why)  # type: ignore[no-untyped-call]
        _Notes.open.pop()

    def cut(self, index: int) -> None:
        assert index == len(self.pieces) - 1
        self.pieces.append([])

    def replay(self, between: Between) -> None:
        for tensor in self._made:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
        for index, piece in enumerate(self.pieces):
            if index:
                between(index - 1)
            for operation in piece:
                operation()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ASKING:
            raise RuntimeError("the host waits for the device")
        return self.note(func, args, kwargs or {})

    def note(self, func: Any, args: Any, named: Any) -> Any:
        """Do something, and do it again in each replay."""
        out = func(*args, **named)
        given = {_memory(tensor) for tensor in _tensors((args, named))}
        made = [
            (at, tensor) for at, tensor in enumerate(_tensors(out)) if _memory(tensor) not in given
        ]
        self._made += [tensor for _, tensor in made]

        def again() -> None:
            now = _tensors(func(*args, **named))
            for at, tensor in made:
                tensor.copy_(now[at])

        self.pieces[-1].append(again)
        return out


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
