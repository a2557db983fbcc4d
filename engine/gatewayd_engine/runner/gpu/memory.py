"""Profiling of device memory, to determine the size of the KV pool."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass

import torch

from gatewayd_engine.attention.flashinfer.workspaces import device_bytes
from gatewayd_engine.attention.triton_decode import MOST_KINDS
from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.servable import ServableModel, ServableSpec
from gatewayd_engine.runner.gpu.cuda_graphs import sizes
from gatewayd_engine.runner.gpu.draft_model import captured_lines, num_captured_guesses
from gatewayd_engine.runner.gpu.draft_steps import drafted_bytes
from gatewayd_engine.runner.gpu.drafter_graphs import MOST_LOGITS, offered_sizes
from gatewayd_engine.runner.gpu.piecewise_graphs import PiecewiseGraphs, token_counts
from gatewayd_engine.runner.gpu.widths import most_padding, most_slots, num_captured
from gatewayd_engine.tuning.matmul_candidates import WORKSPACE_BYTES

_log = logging.getLogger(__name__)
_GIB = 1 << 30
_EXECUTABLE = 512 << 10
"""Estimate of the driver's memory per captured graph, for nodes and arguments: some tens of
kilobytes for a piece of ten kernels, a few hundred for a full step of some 300. Not measured; the
log reports what is free after start-up."""
_REST = 256 << 20
"""Reserve for what is not computed exactly: activations of captured steps, 30 MB for 512 tokens of
Llama 3.1 8B, and as much as the logits for sampling; partial results of decode attention, 17 MB
there; batch rows, and fragmentation."""


class DoesNotFit(Exception):
    """No memory is left for the KV pool; the message names the sizes."""


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory of a device, in bytes.

    Attributes:
        total: memory of the device.
        others: memory in use outside of torch's allocator, for instance by other processes.
        weights: weights of the model.
        peak: peak memory of a step, in addition to the weights.
        later: allocations after profiling; see ``bytes_after_profiling``.
    """

    total: int
    others: int
    weights: int
    peak: int
    later: int


def kv_cache_bytes(usage: MemoryUsage, utilization: float) -> int:
    """Return the memory for keys and values, in bytes.

    Args:
        usage: profiled memory.
        utilization: share of the device that this process may use.

    Raises:
        DoesNotFit: nothing is left.
    """
    allowed = int(usage.total * utilization)
    # What others use reduces the share only where both together exceed the device.
    room = min(allowed, usage.total - usage.others)
    left = room - usage.weights - usage.peak - usage.later
    if left > 0:
        return left
    raise DoesNotFit(
        f"the model does not fit: weights take {_gib(usage.weights)}, activations of a step"
        f" {_gib(usage.peak)}, workspaces and CUDA graphs {_gib(usage.later)};"
        f" gpu_memory_utilization {utilization:g} allows {_gib(allowed)} of {_gib(usage.total)},"
        f" of which {_gib(usage.others)} are in use elsewhere. Lower max_batch_tokens or"
        " max_running, raise gpu_memory_utilization, or use a smaller model"
    )


@torch.inference_mode()
def measure(
    decoder: ServableModel,
    kernels: Kernels,
    max_tokens: int,
    max_lines: int,
    *,
    captures: bool,
    has_drafts: bool = False,
) -> MemoryUsage:
    """Profile memory by running the largest step once, without attention.

    Args:
        decoder: decoder on a CUDA device.
        kernels: kernels of the device.
        max_tokens: most tokens of a step.
        max_lines: most sequences of a step that get a token.
        captures: whether steps will be captured.
        has_drafts: whether steps with drafts are to be expected.
    """
    device = decoder.device
    # Garbage of loading would be counted as weights.
    gc.collect()
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest(decoder, kernels, max_tokens, max_lines, has_drafts=has_drafts)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - weights
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    # Includes the CUDA context and loaded kernels of this process.
    others = total - free - torch.cuda.memory_reserved(device)
    later = bytes_after_profiling(
        decoder, max_tokens, max_lines, captures=captures, has_drafts=has_drafts
    )
    return MemoryUsage(total, others, weights, peak, later)


def bytes_after_profiling(
    decoder: ServableModel,
    max_tokens: int,
    max_lines: int,
    *,
    captures: bool,
    has_drafts: bool = False,
) -> int:
    """Return the bytes allocated after profiling: logits, workspaces, and captured steps.

    Assumes FlashInfer's attention.

    Args:
        decoder: decoder of the model.
        max_tokens: most tokens of a step.
        max_lines: most sequences of a step that get a token.
        captures: whether steps will be captured.
        has_drafts: whether steps with drafts are captured.
    """
    spec = decoder.spec
    logits = max_lines * spec.vocab_size * decoder.logits_dtype.itemsize
    made = logits + device_bytes(len(set(spec.windows))) + WORKSPACE_BYTES + _REST
    if captures and has_drafts:
        made += _of_drafter(decoder, max_lines)
    if not (captures and decoder.is_capturable):
        return made
    # An upper bound: the captured counts are chosen later by measurement.
    counts = token_counts(max(max_tokens, max_lines))
    made += _of_experts(spec, max(max_lines, *counts), decoder.dtype.itemsize)
    # A piece before each layer's attention and one after the last; two graphs of each decode step
    # with each kind of attention.
    steps = 2 * MOST_KINDS * len(sizes(max_lines))
    captured = (spec.num_layers + 1) * len(counts) + steps
    if has_drafts:
        captured += num_captured(max_lines)
        made += drafted_bytes(decoder, max_lines)
    return (
        made + PiecewiseGraphs.num_bytes(decoder, max(counts, default=0)) + captured * _EXECUTABLE
    )


def _of_drafter(decoder: ServableModel, max_lines: int) -> int:
    """Return the bytes of a drafter's captured launches: graphs, largest logits and probabilities.

    Draft heads that predict one token each have several rows of logits per sequence, and so smaller
    batches. A draft model has one row of logits per sequence, of the same vocabulary, and more
    graphs.
    """
    spec, itemsize = decoder.spec, decoder.logits_dtype.itemsize
    heads = MOST_LOGITS * (itemsize + 2 * torch.float32.itemsize)
    model = max(captured_lines(max_lines)) * itemsize
    graphs = max(len(offered_sizes(max_lines)), num_captured_guesses(max_lines))
    return max(heads, model) * spec.vocab_size + graphs * _EXECUTABLE


def _of_experts(spec: ServableSpec, num_tokens: int, itemsize: int) -> int:
    """Return the bytes of expert activations in a captured step of ``num_tokens`` tokens.

    Layers reuse each other's memory. Intermediate activations may also be stored quantized.
    """
    if spec.moe is None:
        return 0
    inner, hidden, shared = spec.moe.intermediate_size, spec.hidden_size, spec.moe.shared
    # Inputs that are weighed are those of visits, not of tokens.
    own = hidden if spec.moe.routing.weighs_inputs else 0
    elements = spec.moe.top_k * (2 * inner + hidden + own)
    if shared is not None:
        # Gate and up projections, the gated activation, and the output.
        elements += 3 * shared.intermediate_size + hidden
    return num_tokens * elements * itemsize


def log_free(device: torch.device, utilization: float) -> None:
    """Log the free memory after start-up, and what ``gpu_memory_utilization`` should leave free."""
    free, total = torch.cuda.mem_get_info(device)
    _log.info(
        "start-up complete: %s of the device's %s are free; gpu_memory_utilization %g leaves %s",
        _gib(free),
        _gib(total),
        utilization,
        _gib(total - int(total * utilization)),
    )


def run_largest(
    decoder: ServableModel,
    kernels: Kernels,
    max_tokens: int,
    max_lines: int,
    *,
    has_drafts: bool = False,
) -> None:
    """Run a step with the most work possible, except for attention.

    Args:
        decoder: decoder on the device.
        kernels: kernels of the device.
        max_tokens: most tokens of a step.
        max_lines: most sequences of a step that get a token.
        has_drafts: whether steps have padded drafts, which need logits as well.
    """
    device = decoder.device
    num_hidden, num_logits = max_tokens, max_lines
    if has_drafts:
        num_hidden += most_padding(max_lines, max_tokens)
        num_logits = most_slots(max_lines)
    # One token at one position throughout: memory depends on shapes alone.
    ids = torch.zeros(num_hidden, dtype=torch.int64, device=device)
    hidden = decoder.hidden(ids, ids, _NullAttend(decoder.spec.attention))
    index = ids[: min(max_tokens, num_logits)]
    rows = index.to(torch.int32)
    raw = decoder.raw_logits(hidden.index_select(0, index))
    # Logits processors work in float32.
    logits = raw.to(torch.float32, copy=True)
    one = torch.ones(1, device=device)
    columns = SamplingColumns(
        temperature=one,
        top_k=rows[:1],
        top_p=one,
        min_p=torch.zeros(1, device=device),
        seed=torch.zeros(1, dtype=torch.int64, device=device),
    )
    tokens, _ = kernels.sample(logits, rows, rows, columns)
    kernels.logprobs(raw.index_select(0, index), tokens, 0)
    if has_drafts:
        # Drafters may need the hidden states of all tokens, without padding.
        hidden[:max_tokens].clone()


class _NullAttend(RotatingAttend):
    """Attention without computation, with the memory use of real attention."""

    __slots__ = ("_shape",)

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        return heads[:, : self._shape.num_heads, : self._shape.out_dim].flatten(1)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"
