"""Recomputation of the queries at the end of a prompt, for KV compaction.

The tokens have been computed before, and their keys and values are in the pool; only their queries
were not stored. The pass appends nothing to the pool. So the result depends on the prompt alone,
and not on how much of it was cached or how it was chunked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_hooks.kv_compression import Compacted, Compaction

Ask = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], Compacted]
"""Compacts a layer: takes its index, queries ``[kv_heads, n, dim]``, and keys and values
``[kv_heads, covered, dim]``, and returns their replacement."""


class CompactionQueries:
    """Attention of the end of a prompt that also compacts the keys and values before it.

    Args:
        shape: attention shape of the model, without windows and softcap.
        pool: KV pool with all keys and values of the prompt.
        pages: pages of the prompt, in order.
        prompt_len: tokens of the prompt.
        covered: leading tokens that are to be replaced.
        ask: compacts one layer.

    Attributes:
        found: compacted keys and values, by layer.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        pages: list[int],
        prompt_len: int,
        covered: int,
        ask: Ask,
    ) -> None:
        self._scale = shape.scale
        self._pool = pool
        self._pages = torch.from_numpy(np.array(pages, np.int64))
        self._length = prompt_len
        self._covered = covered
        self._ask = ask
        self.found: list[Compacted] = []

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``; nothing is appended."""
        k, v = self._read(layer, 0), self._read(layer, 1)
        count, (kv_heads, length, dim) = len(query), k.shape
        by_head = query.view(count, kv_heads, -1, dim).permute(1, 2, 0, 3)
        front = slice(self._covered)
        # Queries of all heads that share a KV head, one head after another.
        queries = by_head.reshape(kv_heads, -1, dim)
        self.found.append(self._ask(layer, queries, k[:, front], v[:, front]))
        # The queries are of the last ``count`` positions: each sees all keys up to its own.
        mask = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        # Views: keys are not repeated for each query head.
        shared = (kv_heads, by_head.shape[1], length, dim)
        answer = F.scaled_dot_product_attention(
            by_head,
            k.unsqueeze(1).expand(shared),
            v.unsqueeze(1).expand(shared),
            attn_mask=mask,
            scale=self._scale,
        )
        return answer.permute(2, 0, 1, 3).reshape(count, -1)

    def _read(self, layer: int, half: int) -> torch.Tensor:
        """Gather keys or values of the prompt, shape ``[kv_heads, prompt_len, head_dim]``."""
        found = self._pool.data[self._pages, layer, half].flatten(0, 1)[: self._length]
        if self._pool.codec is not None:
            found = self._pool.codec.decode(found)
        return found.transpose(0, 1).contiguous()


def check_plan(plan: Compaction, prompt_len: int, page_size: int) -> None:
    """Validate a plugin's compaction plan for a prompt.

    Raises:
        ValueError: the plan is invalid.
    """
    covered, kept = plan.covered, plan.kept
    if not all(isinstance(number, int | np.integer) for number in plan):
        raise ValueError(f"plan {plan} has values that are not integers")
    if covered % page_size or kept % page_size:
        raise ValueError(f"plan {plan} is not in whole pages of {page_size} tokens")
    if not 0 < kept < covered <= prompt_len:
        raise ValueError(f"plan {plan} does not fit a prompt of {prompt_len} tokens")
    if plan.queries < 1:
        raise ValueError(f"plan {plan} asks for no queries")


def check_compacted(found: Compacted, keys: torch.Tensor, kept: int) -> None:
    """Validate a plugin's replacement of keys, shape ``[kv_heads, covered, dim]``.

    Raises:
        ValueError: its shape is wrong, or it has numbers that are not finite.
    """
    heads, _, dim = keys.shape
    for tensor, name, shape in (
        (found.keys, "keys", (heads, kept, dim)),
        (found.bias, "biases", (heads, kept)),
        (found.values, "values", (heads, kept, dim)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} have shape {list(tensor.shape)}, expected {list(shape)}")
        # In the dtype in which they will be stored.
        if not bool(tensor.to(keys.dtype).isfinite().all()):
            raise ValueError(f"{name} are not finite")
