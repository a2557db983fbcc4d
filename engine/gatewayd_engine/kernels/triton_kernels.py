"""Fused kernels in Triton: for CUDA, and for CPU tensors in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gatewayd_engine.kernels.attention.decode import decode_attention
from gatewayd_engine.kernels.attention.prompt import prompt_attention
from gatewayd_engine.kernels.attention.sinks import scale_by_sinks
from gatewayd_engine.kernels.experts.matmul import expert_answers, expert_gates
from gatewayd_engine.kernels.experts.routing import route, route_visits, sort_visits, sum_visits
from gatewayd_engine.kernels.gated_mlp import gated, gated_quant
from gatewayd_engine.kernels.gather import gather
from gatewayd_engine.kernels.norm import add_rms_norm, add_rms_norm_quant, norm_heads
from gatewayd_engine.kernels.norm_matmul import norm_mm
from gatewayd_engine.kernels.quantized.block_fp8_matmul import block_mm, block_mm_tiles
from gatewayd_engine.kernels.quantized.dequantize import dequantize_rows
from gatewayd_engine.kernels.quantized.packed_matmul import grouped_mm
from gatewayd_engine.kernels.quantized.quantize_rows import dequantize_sums, quantize
from gatewayd_engine.kernels.rope import rope_append
from gatewayd_engine.kernels.sampling.logprobs import logprobs
from gatewayd_engine.kernels.sampling.mask import mask
from gatewayd_engine.kernels.sampling.penalties import penalise
from gatewayd_engine.kernels.sampling.sample import sample
from gatewayd_engine.kernels.verification.accept import accept
from gatewayd_engine.kernels.verification.compact_path import compact_path
from gatewayd_engine.kernels.verification.slots import slots

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.kernels.base import SamplingColumns
    from gatewayd_engine.kernels.quantized.base import Activation, QuantizedRows


class TritonKernels:
    """Triton implementation of ``Kernels``; see there for each operation.

    Args:
        can_launch_early: whether the device supports programmatic dependent launch.
    """

    def __init__(self, *, can_launch_early: bool = False) -> None:
        self.can_launch_early = can_launch_early
        self.launches_early = False

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``base``."""
        return add_rms_norm(x, delta, weight, eps, early=self.launches_early)

    def add_rms_norm_quant(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        codes: torch.dtype,
        group: int = 0,
    ) -> QuantizedRows:
        """See ``base``."""
        return add_rms_norm_quant(x, delta, weight, eps, codes, group, early=self.launches_early)

    def norm_mm(
        self,
        x: torch.Tensor,
        scale: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        act: Activation | None,
        out: torch.Tensor,
    ) -> None:
        """See ``base``."""
        norm_mm(x, scale, eps, weight, bias, act, out, early=self.launches_early)

    def norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """See ``base``."""
        norm_heads(x, weight, eps, early=self.launches_early)

    def gated(self, gate_up: torch.Tensor, act: Activation) -> torch.Tensor:
        """See ``base``."""
        return gated(gate_up, act, early=self.launches_early)

    def gated_quant(
        self, gate_up: torch.Tensor, act: Activation, codes: torch.dtype, group: int = 0
    ) -> QuantizedRows:
        """See ``base``."""
        return gated_quant(gate_up, act, codes, group, early=self.launches_early)

    def rope_append(
        self,
        heads: torch.Tensor,
        table: torch.Tensor,
        positions: torch.Tensor,
        write: torch.Tensor,
        pool: torch.Tensor,
        layer: int,
        num_heads: int,
        keeps_keys: bool = False,
        first: int = 0,
    ) -> None:
        """See ``base``."""
        rope_append(
            heads, table, positions, write, pool, layer, num_heads, keeps_keys, first,
            early=self.launches_early,
        )  # fmt: skip

    @property
    def decode_attention(self) -> Callable[..., None]:
        """See ``base``."""
        # Bound at each access, as the launch mode is chosen while the engine starts.
        return partial(decode_attention, early=self.launches_early)

    def scale_by_sinks(self, out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> None:
        """See ``base``."""
        scale_by_sinks(out, lse, sinks, early=self.launches_early)

    def gather(
        self,
        rows: torch.Tensor,
        query_indptr: torch.Tensor,
        page_indptr: torch.Tensor,
        starts: torch.Tensor,
        given: torch.Tensor,
        last_tokens: torch.Tensor,
        block_table: torch.Tensor,
        page_size: int,
        max_tokens: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        write: torch.Tensor,
        pages: torch.Tensor,
    ) -> None:
        """See ``base``."""
        gather(
            rows, query_indptr, page_indptr, starts, given, last_tokens, block_table, page_size,
            max_tokens, ids, positions, write, pages, early=self.launches_early,
        )  # fmt: skip

    def sample(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        columns: SamplingColumns,
        chosen: torch.Tensor | None = None,
        last_tokens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``base``."""
        early = self.launches_early
        return sample(logits, rows, positions, columns, chosen, last_tokens, early=early)

    # These have no early form: they start when all previous kernels have ended.
    prompt_attention = staticmethod(prompt_attention)
    quantize = staticmethod(quantize)
    dequantize_sums = staticmethod(dequantize_sums)
    grouped_mm = staticmethod(grouped_mm)
    dequantize_rows = staticmethod(dequantize_rows)
    block_mm = staticmethod(block_mm)
    block_mm_tiles = staticmethod(block_mm_tiles)
    logprobs = staticmethod(logprobs)
    mask = staticmethod(mask)
    penalise = staticmethod(penalise)
    route = staticmethod(route)
    route_visits = staticmethod(route_visits)
    sort_visits = staticmethod(sort_visits)
    expert_gates = staticmethod(expert_gates)
    expert_answers = staticmethod(expert_answers)
    sum_visits = staticmethod(sum_visits)
    slots = staticmethod(slots)
    accept = staticmethod(accept)
    compact_path = staticmethod(compact_path)
