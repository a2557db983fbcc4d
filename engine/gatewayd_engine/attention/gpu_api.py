"""What a device's runner asks of attention: a plan for each step, and steps that are captured."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.model.attention_api import RotatingAttend


class CapturedAttention(RotatingAttend):
    """Attention of the decode steps of one padded size, whose launches are captured once."""

    __slots__ = ()

    def suits(self, host: HostPlan) -> bool:
        """Whether it is for a step.

        Args:
            host: as many lines as were captured, each of one token.
        """
        return True

    @abstractmethod
    def attended(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend to what is in the pool.

        Args:
            layer: which layer.
            query: one rotated query of each line, shape ``[lines, num_heads, head_dim]``.

        Returns:
            As of ``__call__``.
        """

    @abstractmethod
    def plan(self, host: HostPlan) -> None:
        """Prepare the next replay, on the stream that replays.

        Nothing is asked of the device, and no address changes. The lengths on the device, and
        the pages, are the caller's to write into the tensors the capture was given.

        Args:
            host: as many lines as were captured, each of one token.
        """


class DeviceAttention(Protocol):
    """Attention over the pool on a device; one step is planned at a time."""

    @property
    def least_saved(self) -> int | None:
        """Tokens that decoding lines must begin alike with for ``eager`` to attend them once.

        Those of the first line are not counted. None if attention gains nothing from that.
        """

    def eager(self, inputs: StepInputs, out: torch.Tensor | None = None) -> RotatingAttend:
        """Plan a step whose kernels are launched one by one.

        The host's plan may be written over as soon as this returns. What is returned is valid
        until the next step is planned.

        Args:
            inputs: the step.
            out: where each layer's answer goes, shape ``[num_tokens, num_heads, head_dim]``;
                None: to a tensor of the step's own.
        """


@runtime_checkable
class CapturingAttention(DeviceAttention, Protocol):
    """Attention whose decode steps can be captured, too."""

    def captured(self, inputs: StepInputs) -> Sequence[CapturedAttention]:
        """Prepare the captures of decode steps of one padded size.

        Args:
            inputs: the tensors that every replay reads. ``host`` says how many lines there are,
                each of one token, and must be a plan that could be run.

        Returns:
            What is to be captured, each by itself. A step is replayed by the first that suits it;
            the last suits all.
        """
