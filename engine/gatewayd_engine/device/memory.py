"""How much of a device's memory is left for keys and values, measured once."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch

from gatewayd_engine.attention.device import RotatingAttend
from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.model.decoder import Decoder

_GIB = 1 << 30
RESERVED = 1 << 30
"""Bytes for what is made after measuring: FlashInfer's workspaces, and captured steps."""


class DoesNotFit(Exception):
    """The model leaves no room; the sentence names the sizes."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of a device.

    Attributes:
        total: that it has.
        others: that other processes have, or that no tensor is in.
        weights: of the model.
        peak: the most that a step takes beside them.
    """

    total: int
    others: int
    weights: int
    peak: int


def left_for_pages(usage: Usage, utilization: float) -> int:
    """Bytes for keys and values.

    Args:
        usage: what was measured.
        utilization: the part of the device that this process may have.

    Raises:
        DoesNotFit: nothing is left.
    """
    allowed = int(usage.total * utilization)
    left = min(allowed, usage.total - usage.others) - usage.weights - usage.peak - RESERVED
    if left > 0:
        return left
    raise DoesNotFit(
        f"the model does not fit: its weights take {_gib(usage.weights)}, a step"
        f" {_gib(usage.peak)} and what runs it {_gib(RESERVED)}; gpu_memory_utilization"
        f" {utilization:g} allows {_gib(allowed)} of {_gib(usage.total)}, of which others have"
        f" {_gib(usage.others)}. Lower max_batch_tokens or max_running, raise"
        " gpu_memory_utilization, or take a smaller model"
    )


@torch.inference_mode()
def measure(decoder: Decoder, kernels: Kernels, max_tokens: int, max_lines: int) -> Usage:
    """Run the largest step once, without pages, and look at what it takes.

    Args:
        decoder: on a CUDA device.
        kernels: of the device.
        max_tokens: most tokens of a step.
        max_lines: most of its lines that get a token.
    """
    device = decoder.device
    gc.collect()
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest(decoder, kernels, max_tokens, max_lines)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - weights
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return Usage(total, total - free - torch.cuda.memory_reserved(device), weights, peak)


def run_largest(decoder: Decoder, kernels: Kernels, max_tokens: int, max_lines: int) -> None:
    """A step with all that it may compute, but for attention."""
    device = decoder.device
    ids = torch.zeros(max_tokens, dtype=torch.int64, device=device)
    hidden = decoder.hidden(ids, ids, _Nothing(decoder.spec.num_heads))
    logits = decoder.raw_logits(hidden[:max_lines])
    rows = torch.zeros(len(logits), dtype=torch.int32, device=device)
    one = torch.ones(1, device=device)
    columns = SamplingColumns(
        temperature=one,
        top_k=rows[:1],
        top_p=one,
        min_p=torch.zeros(1, device=device),
        seed=torch.zeros(1, dtype=torch.int64, device=device),
    )
    kernels.sample(logits, rows, rows, columns)
    # Logits processors work on numbers of four bytes.
    logits.to(torch.float32, copy=True)


class _Nothing(RotatingAttend):
    """Attends to nothing, and takes the memory of those that do."""

    __slots__ = ("_num_heads",)

    def __init__(self, num_heads: int) -> None:
        self._num_heads = num_heads

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        return heads[:, : self._num_heads].flatten(1)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"
