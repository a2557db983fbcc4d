"""Attention interface of the device runner: eager steps, and captured decode steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.model.attention_api import RotatingAttend


class CapturedAttention(RotatingAttend):
    """Attention of decode steps of one padded size, whose launches are captured once."""

    __slots__ = ()

    def suits(self, host: HostPlan) -> bool:
        """Whether this capture can serve a step.

        Args:
            host: plan of as many sequences as were captured, each of one token.
        """
        return True

    @abstractmethod
    def attended(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend to keys and values that are in the pool already.

        Args:
            layer: layer index.
            query: one rotated query per sequence, shape ``[sequences, num_heads, head_dim]``.

        Returns:
            As ``__call__``.
        """

    @abstractmethod
    def plan(self, host: HostPlan) -> None:
        """Plan the next replay, on the stream of the replay.

        Does not synchronise with the device, nor change any address. The caller writes the device's
        lengths and pages to the tensors that the capture was given.

        Args:
            host: plan of as many sequences as were captured, each of one token.
        """


class DeviceAttention(Protocol):
    """Attention over the KV pool on a device; one step is planned at a time."""

    @property
    def least_saved(self) -> int | None:
        """Tokens in common from which on ``eager`` attends a shared prefix once.

        Those of the first sequence are not counted. None if the backend does not benefit.
        """

    def eager(self, inputs: StepInputs, out: torch.Tensor | None = None) -> RotatingAttend:
        """Plan a step whose kernels are launched one by one.

        The host's plan may be overwritten as soon as this returns. The result is valid until the
        next step is planned.

        Args:
            inputs: inputs of the step.
            out: output of each layer, shape ``[num_tokens, num_heads, head_dim]``; None allocates
                one for the step.
        """


@runtime_checkable
class CapturingAttention(DeviceAttention, Protocol):
    """Attention whose decode steps can also be captured."""

    def captured(self, inputs: StepInputs) -> Sequence[CapturedAttention]:
        """Prepare the captures of decode steps of one padded size.

        Args:
            inputs: tensors that every replay reads. ``host`` has the number of sequences, each of
                one token, and must be a valid plan.

        Returns:
            Attention to capture separately. A step is replayed by the first that suits it; the last
            suits all.
        """
