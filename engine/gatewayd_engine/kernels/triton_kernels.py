"""The small kernels in Triton: for CUDA, and in Triton's interpreter for CPU tensors."""

from __future__ import annotations

from gatewayd_engine.kernels.block_mm import block_mm, block_mm_tiles
from gatewayd_engine.kernels.decode_attention import decode_attention
from gatewayd_engine.kernels.expanding import expand
from gatewayd_engine.kernels.expert_mm import expert_answers, expert_gates
from gatewayd_engine.kernels.gated import gated, gated_quant
from gatewayd_engine.kernels.gather import gather
from gatewayd_engine.kernels.grouped import grouped_mm
from gatewayd_engine.kernels.logprobs import logprobs
from gatewayd_engine.kernels.mask import mask
from gatewayd_engine.kernels.norm import add_rms_norm, add_rms_norm_quant, norm_heads
from gatewayd_engine.kernels.penalties import penalise
from gatewayd_engine.kernels.rope import rope_append
from gatewayd_engine.kernels.rounding import quantise, scaled
from gatewayd_engine.kernels.routing import route, route_visits, sort_visits, sum_visits
from gatewayd_engine.kernels.sampling import sample


class TritonKernels:
    """``Kernels``, each from its file."""

    add_rms_norm = staticmethod(add_rms_norm)
    add_rms_norm_quant = staticmethod(add_rms_norm_quant)
    norm_heads = staticmethod(norm_heads)
    gated = staticmethod(gated)
    gated_quant = staticmethod(gated_quant)
    quantise = staticmethod(quantise)
    scaled = staticmethod(scaled)
    grouped_mm = staticmethod(grouped_mm)
    expand = staticmethod(expand)
    block_mm = staticmethod(block_mm)
    block_mm_tiles = staticmethod(block_mm_tiles)
    rope_append = staticmethod(rope_append)
    decode_attention = staticmethod(decode_attention)
    gather = staticmethod(gather)
    sample = staticmethod(sample)
    logprobs = staticmethod(logprobs)
    mask = staticmethod(mask)
    penalise = staticmethod(penalise)
    route = staticmethod(route)
    route_visits = staticmethod(route_visits)
    sort_visits = staticmethod(sort_visits)
    expert_gates = staticmethod(expert_gates)
    expert_answers = staticmethod(expert_answers)
    sum_visits = staticmethod(sum_visits)
