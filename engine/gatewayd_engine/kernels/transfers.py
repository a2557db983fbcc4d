"""Asynchronous transfers between host and device, which block only where results are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def pinned(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return a pinned host copy, whose memory is not reused before the device has read it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    # Both copy, so the caller may reuse its array at once.
    return tensor.clone() if device.type == "cpu" else tensor.pin_memory()


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to the device, ordered by the current stream."""
    return pinned(array, device).to(device, non_blocking=True)


@dataclass(slots=True, eq=False, repr=False)
class PendingHostCopy:
    """Tensors that are being copied to the host."""

    _hosts: list[torch.Tensor]
    # Referenced so that their memory is not reused before the copy is complete.
    _sources: Sequence[torch.Tensor]
    _arrived: torch.cuda.Event | None

    def read(self) -> list[NDArray[Any]]:
        """Wait for the copy and return the arrays."""
        if self._arrived is not None:
            self._arrived.synchronize()
        # The copy is complete, so the memory may be reused from here on.
        self._sources = ()
        return [host.numpy() for host in self._hosts]


class HostCopier:
    """Copies results of a step to the host, concurrently with the steps that follow.

    Args:
        device: device to copy from.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if device.type == "cuda"
            else None
        )

    def allocate(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Allocate host memory for tensors of these shapes.

        Separate from ``copy``, so that a failed allocation leaves no copy half started.
        """
        is_pinned = self._stream is not None
        return [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
            for tensor in tensors
        ]

    def copy(self, tensors: Sequence[torch.Tensor], hosts: list[torch.Tensor]) -> PendingHostCopy:
        """Start copying tensors, which must not be written again, to host memory.

        Args:
            tensors: tensors of the device.
            hosts: of ``allocate``.
        """
        if self._stream is None:
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor)
            return PendingHostCopy(hosts, (), None)
        # Waits for what is launched already; kernels of later steps overlap with the copy.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
            # Waiting threads sleep rather than spin: the gateway may need the core.
            arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        return PendingHostCopy(hosts, tensors, arrived)
