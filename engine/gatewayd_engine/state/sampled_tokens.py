"""Asynchronous copies of sampled tokens from the device to the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import HostCopier, PendingHostCopy


class SampledTokens:
    """Copies of sampled tokens, made during the next step and delivered in order on request."""

    def __init__(self) -> None:
        self._sent: list[tuple[PendingHostCopy, Callable[[NDArray[np.int32]], None]]] = []
        self._copier: HostCopier | None = None

    @property
    def is_pending(self) -> bool:
        """Whether there are copies to deliver."""
        return bool(self._sent)

    def send(self, tokens: torch.Tensor, read: Callable[[NDArray[np.int32]], None]) -> None:
        """Queue the copy of a step's tokens.

        Args:
            tokens: shape ``[n]``, int32 or int64, not written to afterwards.
            read: called with the tokens by ``deliver``.
        """
        if self._copier is None:
            self._copier = HostCopier(tokens.device)
        room = self._copier.allocate([tokens])
        self._sent.append((self._copier.copy([tokens], room), read))

    def deliver(self) -> None:
        """Wait for the queued copies, and pass each to its reader."""
        sent, self._sent = self._sent, []
        for pending, read in sent:
            (tokens,) = pending.read()
            read(tokens)
