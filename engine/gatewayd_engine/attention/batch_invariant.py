"""Batch-invariant attention, for models that quantize activations.

Quantization of activations amplifies small differences: where the last bit of a float32 depends on
how a prompt was chunked, a number between two codes may be rounded either way. So attention is
computed in float64, whose last bits depend on it as well, and rounded to float32, which differs
once in some hundred million numbers.
"""

from __future__ import annotations

import torch

from gatewayd_engine.attention.dense import DenseAttention, SharedKeys, causal
from gatewayd_engine.model.attention_shape import AttentionShape

_BLOCK = 1 << 18
"""Numbers of keys, and of values, that are converted to float64 at once: they stay in cache."""
_QUERIES = 32
"""Tokens of a chunk that are attended at once, without reading later tokens."""


class BatchInvariantAttention(DenseAttention):
    """Dense attention in float64, rounded to the dtype of the queries.

    Keys and values are converted block by block for each layer: dense copies in float64 would take
    twice the memory, and be slower from contexts of 1,000 tokens and 32 sequences on.
    """

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        super().__init__(shape, torch.float64, device)

    def lines(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        shared: SharedKeys | None,
        seen: list[torch.Tensor] | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``DenseAttention``."""
        if shared is not None:
            shared = SharedKeys(shared.keys.double(), shared.values.double())
        heads, (_, length, dim) = self._shape.num_kv_heads, values.shape
        # Sequences per block, as many as ``_BLOCK`` numbers allow, at least one.
        count, each = len(query) // heads, max(1, _BLOCK // (heads * length * dim))
        mask = None if mask is None else mask.double()
        found: list[torch.Tensor] | None = None if seen is None else []
        if each >= count:
            wide = query.double(), keys.double(), values.double()
            answer = super().lines(*wide, mask, shared, found, sinks).to(query.dtype)
        else:
            answer = torch.empty_like(query, memory_format=torch.contiguous_format)
            for first in range(0, count, each):
                some = slice(first * heads, (first + each) * heads)
                own = None
                # Without drafts a mask has rows per KV head, with drafts one per sequence.
                if mask is not None:
                    own = mask[some] if mask.dim() == 3 else mask[first : first + each]
                wide = query[some].double(), keys[some].double(), values[some].double()
                made = super().lines(*wide, own, shared, found, sinks)
                answer[some] = made.view(answer[some].shape)
        if seen is not None and found is not None:
            seen.append(torch.cat(found).to(query.dtype))
        return answer

    def chunk(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``DenseAttention``."""
        count, length = len(query), keys.shape[1]
        keys, values = keys.double().transpose(1, 2), values.double()
        answer = torch.empty_like(query, memory_format=torch.contiguous_format)
        for first in range(0, count, _QUERIES):
            own = query[first : first + _QUERIES]
            # Later keys are masked for all queries of the block, so they are not read.
            seen = length - count + first + len(own)
            if mask is None:
                hidden = causal(len(own), seen, 0, torch.float64, query.device)
            else:
                hidden = mask[..., first : first + len(own), :seen].double()
            by_head = torch.unflatten(own.double(), 1, (len(keys), -1)).transpose(0, 1)
            # To ``lines`` this is one sequence with ``len(own)`` queries, as if with drafts.
            masked = hidden.reshape(1, -1, len(own), 1, seen)
            found = super().lines(
                *(by_head.flatten(1, 2), keys[..., :seen], values[:, :seen], masked, None),
                sinks=sinks,
            )
            found = torch.unflatten(found, 1, (len(own), -1)).transpose(0, 1)
            answer[first : first + len(own)] = found.flatten(1, 2)
        return answer
