"""Attention sinks after attention without them, where a library's kernels know none.

A sink is one more score of a softmax that no value follows. It takes the share
``exp(sink) / (exp(sink) + sum(exp(scores)))`` of the weights, so that an output is to be multiplied
by ``sigmoid(lse - sink)``, where ``lse`` is the log-sum-exp of the scores: exactly what attention
with the sink gives. Source: gpt-oss (OpenAI, arXiv 2508.10925).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.kernels.base import Kernels


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SinkScaling:
    """Scales the outputs of a model's layers.

    Args:
        kernels: of the device.
        sinks: see ``device_attention``.
    """

    _kernels: Kernels
    _sinks: Sequence[torch.Tensor]

    def __call__(self, layer: int, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Scale a layer's output in place.

        Args:
            layer: layer index.
            out: shape ``[tokens, num_heads, head_dim]``.
            lse: log2-sum-exp2 of the scores, float32, shape ``[tokens, num_heads]``.
        """
        self._kernels.scale_by_sinks(out, lse, self._sinks[layer])
