"""Which product suits a weight on a device: by what the weight is, not by who made it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.packing import pack
from gatewayd_engine.kernels.room import Room
from gatewayd_engine.model.layers import Linear, LinearOp
from gatewayd_engine.model.linears.grouped import GroupedLinear
from gatewayd_engine.model.weights import dense

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_hooks.quantization import Weight

_log = logging.getLogger(__name__)


class DeviceLinears:
    """Makes the matrices of one model; those of few bits share what they are multiplied in.

    Args:
        kernels: of the device.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._room: Room | None = None

    def make(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """The product of a weight.

        Args:
            weight: of floats of type ``dtype``, or of few bits.
            bias: of that type.
            dtype: of activations.
        """
        if isinstance(weight, torch.Tensor):
            return Apart(weight, bias)
        packed = pack(weight)
        if packed is None:
            _log.info("a matrix whose codes no kernel reads is made dense")
            return Apart(dense(weight).to(dtype), bias)
        if self._room is None:
            self._room = Room(packed.words.device, dtype)
        self._room.reserve(packed)
        return GroupedLinear(packed, bias, self._kernels, self._room)


class Apart(Linear):
    """A matrix that leaves adding to the next norm, which reads the stream anyway."""

    __slots__ = ()

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        return self(x)
