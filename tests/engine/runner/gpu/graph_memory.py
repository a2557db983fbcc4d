"""CUDA graph memory model: addresses that keep nothing alive, and a pool to overwrite.

A recorded capture keeps tensors in one of two ways. Those that were there before are addresses: if
the engine drops one of them, its memory is used again, and a replay would read whatever is there.
Those that the capture made are in the graphs' pool, which other captures and replays write to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Address:
    """A tensor that was there before the capture, which does not keep it alive.

    Args:
        tensor: the tensor, or a view of it.
        user: the first operation that was given it.

    Attributes:
        key: the same for tensors that are at one address in the same way.
    """

    def __init__(self, tensor: torch.Tensor, user: str) -> None:
        self._memory = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._shape = tuple(tensor.shape)
        self._place = (tensor.storage_offset(), self._shape, tensor.stride())
        self._dtype = tensor.dtype
        self._user = user
        self.key = (storage(tensor), tensor.dtype, *self._place)

    def tensor(self) -> torch.Tensor:
        """What lies there.

        Raises:
            RuntimeError: it was freed.
        """
        memory = torch.UntypedStorage._new_with_weak_ptr(self._memory.cdata)
        if memory is None:
            raise RuntimeError(
                f"{self._user} was captured with memory that is freed:"
                f" {self._dtype} of shape {list(self._shape)}"
            )
        return torch.empty(0, dtype=self._dtype).set_(memory, *self._place)


def storage(tensor: torch.Tensor) -> int:
    """A number for its memory, of no other memory as long as it is alive."""
    number: int = tensor.untyped_storage()._cdata
    return number


def poison(tensors: Iterable[torch.Tensor]) -> None:
    """Write what no computation can miss: no numbers, or indices beyond any tensor."""
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(torch.nan)
        else:
            tensor.fill_(int.from_bytes(b"\x7f" * tensor.dtype.itemsize, "big"))


def replaced(tree: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """Arguments in which all of one type are replaced, in containers and frozen dataclasses, too.

    Others are left as they are.
    """
    if isinstance(tree, kind):
        return by(tree)
    of = type(tree)
    if of is tuple:
        return tuple([replaced(each, kind, by) for each in tree])
    if of is list:
        return [replaced(each, kind, by) for each in tree]
    if of is dict:
        return {name: replaced(each, kind, by) for name, each in tree.items()}
    if hasattr(of, "_fields"):
        return of(*[replaced(each, kind, by) for each in tree])
    if hasattr(of, "__dataclass_fields__"):
        values = {each.name: replaced(getattr(tree, each.name), kind, by) for each in fields(tree)}
        return replace(tree, **values)
    return tree
