"""Fused kernels in torch: for any device, and the reference for the Triton kernels."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.activation import activation
from gatewayd_engine.kernels.attention.torch_decode import decode_attention, prompt_attention
from gatewayd_engine.kernels.experts.torch_experts import TorchExperts
from gatewayd_engine.kernels.quantized.base import QuantizedRows
from gatewayd_engine.kernels.quantized.block_scales import GROUP, numbers
from gatewayd_engine.kernels.quantized.packing import unpack
from gatewayd_engine.kernels.sampling.torch_sampling import draw, pivots
from gatewayd_engine.kernels.verification.torch_verification import TorchVerification

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import SamplingColumns
    from gatewayd_engine.kernels.quantized.base import Activation
    from gatewayd_engine.kernels.quantized.block_scales import Blocks
    from gatewayd_engine.kernels.quantized.packing import PackedWeight
    from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch
    from gatewayd_hooks.resources import PenaltyColumns


class TorchKernels(TorchExperts, TorchVerification):
    """Straightforward torch implementation of ``Kernels``; see there for each operation."""

    can_launch_early = False
    launches_early = False

    def add_rms_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``base``."""
        if delta is not None:
            x.add_(delta)
        return _normalized(x, weight, eps)

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
        return self.quantize(self.add_rms_norm(x, delta, weight, eps), codes, group)

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
        # Rounded where the kernel rounds: the scaled stream to the matrix unit's dtype, sums once.
        wide = torch.mm((x.float() * scale).to(x.dtype).float(), weight.float().t())
        wide *= torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        made = (wide if bias is None else wide.add_(bias)).to(out.dtype)
        out.copy_(made if act is None else self.gated(made, act))

    def norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """See ``base``."""
        x.copy_(_normalized(x, weight, eps))

    def gated(self, gate_up: torch.Tensor, act: Activation) -> torch.Tensor:
        """See ``base``."""
        gate, up = gate_up.chunk(2, -1)
        return activation(act)(gate).mul_(up)

    def gated_quant(
        self, gate_up: torch.Tensor, act: Activation, codes: torch.dtype, group: int = 0
    ) -> QuantizedRows:
        """See ``base``."""
        return self.quantize(self.gated(gate_up, act), codes, group)

    def quantize(self, x: torch.Tensor, codes: torch.dtype, group: int = 0) -> QuantizedRows:
        """See ``base``."""
        wide = torch.unflatten(x.float(), 1, (-1, group or x.shape[1]))
        is_int = codes == torch.int8
        # Multiplied by the reciprocal, as in the kernel: a division may differ in the last bit.
        scales = wide.abs().amax(-1, keepdim=True) * (1 / (127 if is_int else 448))
        # Rows of zeros get codes of zero rather than NaN.
        scales = scales.clamp_min_(torch.finfo(torch.float32).tiny)
        # Integer codes cannot show NaN, so the scale does; rows with an infinity become NaN, too.
        scales = torch.where(scales.isfinite(), scales, torch.nan)
        made = (wide / scales).flatten(1)
        return QuantizedRows((made.round_() if is_int else made).to(codes), scales.squeeze(-1))

    def dequantize_sums(
        self,
        sums: torch.Tensor,
        lines: torch.Tensor,
        rows: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """See ``base``."""
        # Integer matmul pads its rows to a minimum; those beyond ``out`` are undefined.
        made = sums[: len(out)] * lines * rows
        out.copy_(made if bias is None else made.add_(bias))

    def grouped_mm(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        scratch: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """See ``base``."""
        made = torch.mm(x.float(), unpack(weight))
        out.copy_(made if bias is None else made.add_(bias))

    def dequantize_rows(self, weight: PackedWeight, first: int, out: torch.Tensor) -> None:
        """See ``base``."""
        out.copy_(unpack(weight)[:, first : first + out.shape[1]])

    def block_mm(
        self,
        x: QuantizedRows,
        weight: Blocks,
        bias: torch.Tensor | None,
        scratch: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """See ``base``."""
        spread = x.scales.repeat_interleave(GROUP, 1)
        made = torch.mm(x.codes.float() * spread, numbers(weight).t())
        out.copy_(made if bias is None else made.add_(bias))

    def block_mm_tiles(
        self,
        x: QuantizedRows,
        weight: Blocks,
        bias: torch.Tensor | None,
        scratch: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """See ``base``; there is only one variant here."""
        self.block_mm(x, weight, bias, scratch, out)

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
        page_size = pool.shape[3]
        parts, kv_heads = pool.shape[2], pool.shape[4]
        rotated, end = heads[:, : num_heads + kv_heads].float(), first + table.shape[1]
        even, odd = rotated[..., first:end:2], rotated[..., first + 1 : end : 2]
        cos, sin = torch.unflatten(table[positions].unsqueeze(1), -1, (-1, 2)).unbind(-1)
        pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
        around = (rotated[..., :first], pairs.flatten(-2), rotated[..., end:])
        rotated = torch.cat(around, -1).to(heads.dtype)
        in_place = num_heads + kv_heads if keeps_keys else num_heads
        heads[:, :in_place] = rotated[:, :in_place]
        page, offset = write // page_size, write % page_size
        kept = torch.stack((rotated[:, num_heads:], heads[:, -kv_heads:])[:parts], 1)
        if pool.dtype != heads.dtype:
            most = torch.finfo(pool.dtype).max
            # torch cannot index 8-bit floats on every device, so they are moved as bytes.
            kept = kept.float().clamp_(-most, most).to(pool.dtype).view(torch.uint8)
            pool = pool.view(torch.uint8)
        pool[page, layer, :, offset] = kept

    decode_attention = staticmethod(decode_attention)
    prompt_attention = staticmethod(prompt_attention)

    def scale_by_sinks(self, out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> None:
        """See ``base``."""
        out.mul_(torch.sigmoid(lse * math.log(2) - sinks).unsqueeze(-1))

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
        num_tokens = len(given)
        token = torch.arange(num_tokens, device=rows.device)
        # The sequence of each token. repeat_interleave would need its output size on the host.
        line = torch.searchsorted(query_indptr[1:].contiguous(), token, right=True)
        position = (starts[line] + token - query_indptr[line]).long()
        row = rows[line]
        ids[:num_tokens] = torch.where(given >= 0, given, last_tokens[row])
        positions[:num_tokens] = position
        page = block_table[row, position // page_size].long()
        write[:num_tokens] = page * page_size + position % page_size
        # An upper bound: the actual count is known on the device only.
        most = min(len(pages), len(rows) * block_table.shape[1])
        place = torch.arange(most, dtype=torch.int32, device=rows.device)
        line = torch.searchsorted(page_indptr[1:].contiguous(), place, right=True)
        own = line.clamp_max(len(rows) - 1)
        column = (place - page_indptr[own]).clamp(0, block_table.shape[1] - 1)
        held = block_table[rows[own], column]
        # Entries beyond the last sequence's pages are left unchanged.
        pages[:most] = torch.where(line < len(rows), held, pages[:most])

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
        index = rows.long()
        raw = logits.float()
        # Propagates NaN, by which the caller notices a row that failed.
        best = raw.amax(-1)
        clean = raw.masked_fill(raw.isnan(), -torch.inf)
        temperature = columns.temperature[index]
        lowest = pivots(
            clean, temperature, columns.top_k[index], columns.top_p[index], columns.min_p[index]
        )
        drawn = draw(clean, temperature, lowest, columns.seed[index], positions.long())
        if chosen is None:
            tokens = drawn.int()
        else:
            tokens, bits = chosen
            tokens.copy_(drawn)
            best = bits.view(torch.float32).copy_(best)
        if last_tokens is not None:
            # Padding rows share one batch row, whose token is never read.
            last_tokens.index_copy_(0, index, tokens)
        return tokens, best

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``base``."""
        raw = logits.float()
        normalizer = raw.logsumexp(-1, keepdim=True)
        chosen = raw.gather(-1, tokens.long().unsqueeze(-1))
        rank = 1 + (raw > chosen).sum(-1, dtype=torch.int32)
        top, ids = raw.topk(num_top, -1)
        return (chosen - normalizer).squeeze(-1), rank, top - normalizer, ids

    def mask(self, logits: torch.Tensor, bitmask: torch.Tensor, lines: torch.Tensor) -> None:
        """See ``base``. The logit of a forbidden token stays NaN if it is NaN."""
        # As little-endian bytes: a table of 256 entries fits the cache.
        places = bitmask.view(torch.uint8).flatten().int()
        most = _most(logits.device).index_select(0, places).view(len(bitmask), -1)
        index = lines.long()
        masked = torch.minimum(logits[index], most[:, : logits.shape[1]])
        logits.index_copy_(0, index, masked.to(logits.dtype))

    def penalise(
        self,
        logits: torch.Tensor,
        lines: torch.Tensor,
        rows: torch.Tensor,
        columns: PenaltyColumns,
    ) -> None:
        """See ``base``. Synchronises with the device to find the rows that have table entries."""
        lines, rows = lines.long(), rows.long()
        value = logits[lines].float()
        which = columns.seen_line[rows] >= 0
        repetition = columns.repetition[rows[which]].unsqueeze(1)
        before = value[which]
        after = torch.where(before > 0, before / repetition, before * repetition)
        seen = columns.seen[columns.seen_line[rows[which]]]
        value[which] = torch.where(seen, after, before)
        which = columns.count_line[rows] >= 0
        counts = columns.counts[columns.count_line[rows[which]]]
        frequency = columns.frequency[rows[which]].unsqueeze(1)
        presence = columns.presence[rows[which]].unsqueeze(1)
        value[which] -= counts * frequency + (counts > 0) * presence
        logits[lines] = value.to(logits.dtype)


def _normalized(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


@cache
def _most(device: torch.device) -> torch.Tensor:
    """Upper bounds of eight logits by the bitmask byte of their tokens, shape ``[256, 8]``.

    Taking a minimum with them has no branches, which a CPU would mispredict half of the time.
    """
    bits = torch.arange(256, device=device).unsqueeze(1) >> torch.arange(8, device=device) & 1
    return torch.where(bits.bool(), torch.inf, -torch.inf)
