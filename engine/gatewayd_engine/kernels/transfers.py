"""Numbers between host and device, of which nobody waits for any until they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def pinned(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy that the device can read by itself; its memory is kept until it has."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.clone() if device.type == "cpu" else tensor.pin_memory()


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array on the device, once the stream has come so far."""
    return pinned(array, device).to(device, non_blocking=True)


class Letter:
    """Tensors on their way to the host."""

    __slots__ = ("_arrived", "_hosts", "_sources")

    def __init__(
        self,
        hosts: list[torch.Tensor],
        sources: Sequence[torch.Tensor],
        arrived: torch.cuda.Event | None,
    ) -> None:
        self._hosts = hosts
        # Their memory must not be used again before they have been copied.
        self._sources = sources
        self._arrived = arrived

    def read(self) -> list[NDArray[Any]]:
        """Wait for them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        self._sources = ()
        return [host.numpy() for host in self._hosts]


class Outbox:
    """Sends what a step has made to the host, beside the steps that follow.

    Args:
        device: which device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if device.type == "cuda"
            else None
        )

    def room(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Memory of the host for tensors like these: what may fail, before anything is sent."""
        is_pinned = self._stream is not None
        return [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
            for tensor in tensors
        ]

    def post(self, tensors: Sequence[torch.Tensor], hosts: list[torch.Tensor]) -> Letter:
        """Send tensors that nobody writes to any more to where there is room for them."""
        if self._stream is None:
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor)
            return Letter(hosts, (), None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
            # Whoever waits sleeps: the gateway and others may want the core.
            arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        return Letter(hosts, tensors, arrived)
