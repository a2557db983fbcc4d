"""How much of a device's memory is left for keys and values, measured once."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass

import torch

from gatewayd_engine.attention.flashinfer.workspaces import device_bytes
from gatewayd_engine.attention.triton_decode import MOST_KINDS
from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.spec import ModelSpec
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
"""Bytes of a captured graph that the driver keeps: its nodes and their arguments, some tens of
kilobytes for a piece of ten kernels, and a few hundred for a whole step of some 300. Not measured;
the log says what is free in the end."""
_REST = 256 << 20
"""Bytes for what is not worked out: memory that captured steps compute in, 30 MB for 512 tokens of
Llama 3.1 8B, and as much as logits for what samples; partial answers of decode attention, 17 MB
there; rows, and what lies beside it unused."""


class DoesNotFit(Exception):
    """The model leaves no room; the sentence names the sizes."""


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Bytes of a device.

    Attributes:
        total: that it has.
        others: that other processes have, or that no tensor is in.
        weights: of the model.
        peak: the most that a step takes beside them.
        later: for what is made after measuring; see ``made_later``.
    """

    total: int
    others: int
    weights: int
    peak: int
    later: int


def left_for_pages(usage: MemoryUsage, utilization: float) -> int:
    """Bytes for keys and values.

    Args:
        usage: what was measured.
        utilization: the part of the device that this process may have.

    Raises:
        DoesNotFit: nothing is left.
    """
    allowed = int(usage.total * utilization)
    room = min(allowed, usage.total - usage.others)
    left = room - usage.weights - usage.peak - usage.later
    if left > 0:
        return left
    raise DoesNotFit(
        f"the model does not fit: its weights take {_gib(usage.weights)}, a step"
        f" {_gib(usage.peak)} and what runs it {_gib(usage.later)}; gpu_memory_utilization"
        f" {utilization:g} allows {_gib(allowed)} of {_gib(usage.total)}, of which others have"
        f" {_gib(usage.others)}. Lower max_batch_tokens or max_running, raise"
        " gpu_memory_utilization, or take a smaller model"
    )


@torch.inference_mode()
def measure(
    decoder: Decoder,
    kernels: Kernels,
    max_tokens: int,
    max_lines: int,
    *,
    captures: bool,
    has_drafts: bool = False,
) -> MemoryUsage:
    """Run the largest step once, without pages, and look at what it takes.

    Args:
        decoder: on a CUDA device.
        kernels: of the device.
        max_tokens: most tokens of a step.
        max_lines: most of its lines that get a token.
        captures: whether steps will be captured.
        has_drafts: whether steps with drafts are to be expected.
    """
    device = decoder.device
    gc.collect()
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest(decoder, kernels, max_tokens, max_lines, has_drafts=has_drafts)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - weights
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    later = made_later(decoder, max_tokens, max_lines, captures=captures, has_drafts=has_drafts)
    return MemoryUsage(total, others, weights, peak, later)


def made_later(
    decoder: Decoder,
    max_tokens: int,
    max_lines: int,
    *,
    captures: bool,
    has_drafts: bool = False,
) -> int:
    """Bytes of what is made after measuring: logits, workspaces, and captured steps.

    Attention is taken to be FlashInfer's.

    Args:
        decoder: of the model.
        max_tokens: most tokens of a step.
        max_lines: most of its lines that get a token.
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
    # At most: they are chosen by measuring.
    counts = token_counts(max(max_tokens, max_lines))
    made += _of_experts(spec, max(max_lines, *counts), decoder.dtype.itemsize)
    # A piece before each layer's attention and one behind the last; two of each decode step, with
    # each kind of attention.
    steps = 2 * MOST_KINDS * len(sizes(max_lines))
    captured = (spec.num_layers + 1) * len(counts) + steps
    if has_drafts:
        captured += num_captured(max_lines)
        made += drafted_bytes(decoder, max_lines)
    return (
        made + PiecewiseGraphs.num_bytes(decoder, max(counts, default=0)) + captured * _EXECUTABLE
    )


def _of_drafter(decoder: Decoder, max_lines: int) -> int:
    """Bytes of what a drafter launches captured: graphs, and the logits and shares of the largest.

    Heads that each guess one token have several rows of logits a line, and so fewer lines. A small
    model has one row of logits for each line, of the same vocabulary, and more graphs.
    """
    spec, itemsize = decoder.spec, decoder.logits_dtype.itemsize
    heads = MOST_LOGITS * (itemsize + 2 * torch.float32.itemsize)
    model = max(captured_lines(max_lines)) * itemsize
    graphs = max(len(offered_sizes(max_lines)), num_captured_guesses(max_lines))
    return max(heads, model) * spec.vocab_size + graphs * _EXECUTABLE


def _of_experts(spec: ModelSpec, num_tokens: int, itemsize: int) -> int:
    """Bytes that a captured step of so many tokens computes visits of experts in.

    Each layer uses those of the one before it again. Inner numbers may be there as codes, too.
    """
    if spec.moe is None:
        return 0
    inner, hidden = spec.moe.intermediate_size, spec.hidden_size
    return num_tokens * spec.moe.top_k * (2 * inner + hidden) * itemsize


def tell_free(device: torch.device, utilization: float) -> None:
    """Say in the log what is free once all has been made, and what should be."""
    free, total = torch.cuda.mem_get_info(device)
    _log.info(
        "all is made ready: %s of the device's %s are free; gpu_memory_utilization %g leaves %s",
        _gib(free),
        _gib(total),
        utilization,
        _gib(total - int(total * utilization)),
    )


def run_largest(
    decoder: Decoder,
    kernels: Kernels,
    max_tokens: int,
    max_lines: int,
    *,
    has_drafts: bool = False,
) -> None:
    """A step with all that it may compute, but for attention.

    Args:
        decoder: on the device.
        kernels: of the device.
        max_tokens: most tokens of a step.
        max_lines: most of its lines that get a token.
        has_drafts: whether drafts are padded in a step, and have logits, too.
    """
    device = decoder.device
    num_hidden, num_logits = max_tokens, max_lines
    if has_drafts:
        num_hidden += most_padding(max_lines, max_tokens)
        num_logits = most_slots(max_lines)
    ids = torch.zeros(num_hidden, dtype=torch.int64, device=device)
    hidden = decoder.hidden(ids, ids, _Nothing(decoder.spec.num_heads))
    index = ids[: min(max_tokens, num_logits)]
    rows = index.to(torch.int32)
    raw = decoder.raw_logits(hidden.index_select(0, index))
    # Logits processors work on numbers of four bytes.
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
        # Drafters may want to see the states of all tokens, without padding.
        hidden[:max_tokens].clone()


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
